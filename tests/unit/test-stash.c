/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What outlives weightd: names, the keeper's protocol over a keeper of this very program, the
 * manager's datagrams, and the stash over both.
 */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "proto/fdlist.h"
#include "proto/util/err.h"
#include "proto/util/notify-fds.h"
#include "proto/wire.h"
#include "tests/unit/socket-dir.h"
#include "weightd/keeper.h"
#include "weightd/stash.h"

enum { KEEP_SECONDS = 30, MAX_SEEN = 16 };

static int make_fd(const char *text)
{
	int fd = memfd_create("stash", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	return fd;
}

/* What came: "NAME=TEXT ..." in order of names. */
static char seen[MAX_SEEN][96];
static uint32_t n_seen;

static void see(const char *name, int fd, void *userdata)
{
	char text[16] = "";

	(void)userdata;
	assert_true(n_seen < MAX_SEEN);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_true(pread(fd, text, sizeof(text) - 1, 0) >= 0);
	snprintf(seen[n_seen++], sizeof(seen[0]), "%s=%s", name, text);
	close(fd);
}

static int compare(const void *a, const void *b)
{
	return strcmp(a, b);
}

static const char *sort_seen(void)
{
	static char all[1024];
	size_t n = 0;

	qsort(seen, n_seen, sizeof(seen[0]), compare);
	all[0] = '\0';
	for (uint32_t i = 0; i < n_seen; i++)
		n += (size_t)snprintf(all + n, sizeof(all) - n, "%s%s", i ? " " : "", seen[i]);
	n_seen = 0;
	return all;
}

/* ---- names ---- */

static void prints_and_parses_names(void **state)
{
	static const char *const good[] = {"g7.manifest.0", "g7.alloc.0.3", "g7.opaque.0.3",
		"g7.memfd", "g7.file", "g18446744073709551615.alloc.4294967295.4294967295",
		"g0.file"};
	static const char *const bad[] = {"", "g", "g7", "g7.", "7.file", "g7.fil", "g7.files",
		"g07.file", "g-1.file", "g+1.file", "g 1.file", "g7.file ", "g7.file.0",
		"g7.memfd.0", "g7.manifest", "g7.manifest.", "g7.manifest.00", "g7.manifest.0.1",
		"g7.alloc.0", "g7.alloc.0.", "g7.alloc.0.3.4", "g7.alloc.-1.3", "g7.alloc.0.03",
		"g18446744073709551616.file", "g7.alloc.4294967296.0", "g7.ALLOC.0.3",
		"g7.alloc.0.3\n",
		"g7.alloc.0.3xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"};
	struct stash_name name = {0};
	char text[STASH_NAME_BYTES];

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(good); i++) {
		assert_int_equal(stash_name_parse(good[i], &name), 0);
		stash_name_print(&name, text);
		assert_string_equal(text, good[i]);
	}
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++)
		if (stash_name_parse(bad[i], &name) != -EINVAL)
			fail_msg("\"%s\" was taken for a name", bad[i]);
	assert_int_equal(stash_name_parse("g7.alloc.2.3", &name), 0);
	assert_int_equal(name.kind, STASH_ALLOC);
	assert_int_equal(name.generation, 7);
	assert_int_equal(name.slot, 2);
	assert_int_equal(name.index, 3);
}

/* ---- the keeper ---- */

static int start_keeper(const char *path, unsigned n_seconds)
{
	struct err e = ERR_NULL;
	int sock = -1;

	if (keeper_start(path, n_seconds, &e, &sock) < 0)
		fail_msg("%s", e.text);
	return sock;
}

static void put(int sock, const char *name, const char *text)
{
	int fd = make_fd(text);

	assert_int_equal(keeper_put(sock, name, fd), 0);
	close(fd);
}

static const char *take(int sock)
{
	struct err e = ERR_NULL;

	if (keeper_take(sock, see, NULL, &e) < 0)
		fail_msg("%s", e.text);
	return sort_seen();
}

static void keeps_beyond_a_connection(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct err e = ERR_NULL;
	struct stat st;
	int sock = start_keeper(dir.path, KEEP_SECONDS), other = -1;

	(void)state;
	assert_int_equal(stat(dir.path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_string_equal(take(sock), "");
	put(sock, "b", "2");
	put(sock, "a", "1");
	put(sock, "c", "3");
	put(sock, "a", "4"); /* in place of the first */
	assert_int_equal(keeper_drop(sock, "b"), 0);
	assert_int_equal(keeper_drop(sock, "never"), 0);
	/* What is sent before a sudden end counts. */
	put(sock, "d", "5");
	close(sock);
	assert_int_equal(keeper_connect(dir.path, &e, &other), 0);
	assert_string_equal(take(other), "a=4 c=3 d=5");
	assert_string_equal(take(other), "a=4 c=3 d=5"); /* it all stays */
	keeper_end(other);
	close(other);
	assert_int_equal(stat(dir.path, &st), -1);
	assert_int_equal(keeper_connect(dir.path, &e, &other), -ENOENT);
	socket_dir_free(&dir);
}

static void keeps_many(void **state)
{
	enum { N = 300 };
	struct socket_dir dir = socket_dir_new();
	struct err e = ERR_NULL;
	int sock = start_keeper(dir.path, KEEP_SECONDS);
	int fd = make_fd("x"), rc;

	(void)state;
	for (int i = 0; i < N; i++) {
		char name[16];
		snprintf(name, sizeof(name), "n%d", i);
		assert_int_equal(keeper_put(sock, name, fd), 0);
	}
	for (int i = 0; i < N - 3; i++) {
		char name[16];
		snprintf(name, sizeof(name), "n%d", i);
		assert_int_equal(keeper_drop(sock, name), 0);
	}
	rc = keeper_take(sock, see, NULL, &e);
	assert_int_equal(rc, 0);
	assert_string_equal(sort_seen(), "n297=x n298=x n299=x");
	close(fd);
	keeper_end(sock);
	close(sock);
	socket_dir_free(&dir);
}

/* Sends one packet and sees whether the keeper ends the connection. */
static bool is_dropped_for(const char *path, const struct keeper_packet *p, size_t n_bytes, int fd)
{
	const struct fdlist fds = {.n = fd >= 0, .fds = {fd}};
	struct err e = ERR_NULL;
	int sock = -1;
	char byte;

	assert_int_equal(keeper_connect(path, &e, &sock), 0);
	assert_int_equal(wire_send(sock, p, (uint32_t)n_bytes, &fds), 0);
	bool is_dropped = recv(sock, &byte, 1, 0) <= 0;
	close(sock);
	return is_dropped;
}

static void drops_who_breaks_the_protocol(void **state)
{
	struct socket_dir dir = socket_dir_new();
	int sock = start_keeper(dir.path, KEEP_SECONDS);
	struct keeper_packet p = {.protocol = KEEPER_PROTOCOL, .op = KEEPER_TAKE};
	int fd = make_fd("x");

	(void)state;
	put(sock, "a", "1");
	assert_false(is_dropped_for(dir.path, &p, sizeof(p), -1));
	assert_true(is_dropped_for(dir.path, &p, sizeof(p), fd));
	assert_true(is_dropped_for(dir.path, &p, sizeof(p) - 1, -1));
	p.op = KEEPER_PUT;
	assert_true(is_dropped_for(dir.path, &p, sizeof(p), -1));
	memset(p.name, 'n', sizeof(p.name));
	assert_true(is_dropped_for(dir.path, &p, sizeof(p), fd));
	p = (struct keeper_packet){.protocol = KEEPER_PROTOCOL + 1, .op = KEEPER_TAKE};
	assert_true(is_dropped_for(dir.path, &p, sizeof(p), -1));
	for (uint32_t op = KEEPER_HAVE; op < KEEPER_HAVE + 3; op++) {
		p = (struct keeper_packet){.protocol = KEEPER_PROTOCOL, .op = op};
		assert_true(is_dropped_for(dir.path, &p, sizeof(p), -1));
	}
	/* And the others lost nothing. */
	assert_string_equal(take(sock), "a=1");
	close(fd);
	keeper_end(sock);
	close(sock);
	socket_dir_free(&dir);
}

static void ends_when_nobody_comes(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct stat st;
	int sock = start_keeper(dir.path, 1);

	(void)state;
	usleep(1500 * 1000); /* somebody is there */
	put(sock, "a", "1");
	assert_string_equal(take(sock), "a=1");
	close(sock);
	for (int i = 0; i < 500 && stat(dir.path, &st) == 0; i++)
		usleep(10 * 1000);
	assert_int_equal(stat(dir.path, &st), -1);
	socket_dir_free(&dir);
}

/* ---- the manager ---- */

static int open_manager(const struct socket_dir *dir)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	strcpy(address.sun_path, dir->path);
	assert_true(sock >= 0);
	assert_int_equal(bind(sock, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(setenv("NOTIFY_SOCKET", dir->path, 1), 0);
	assert_int_equal(setenv("FDSTORE", "16", 1), 0);
	return sock;
}

/* The next datagram, and whether a descriptor came with it. */
static const char *hear(int sock, bool *ret_has_fd)
{
	static char text[256];
	struct iovec iov = {.iov_base = text, .iov_len = sizeof(text) - 1};
	char control[CMSG_SPACE(sizeof(int))];
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&msg) : NULL;
	int fd;

	text[n > 0 ? n : 0] = '\0';
	*ret_has_fd = c;
	if (c) {
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
		close(fd);
	}
	return text;
}

static void close_manager(int sock)
{
	close(sock);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("FDSTORE");
}

static void speaks_to_the_manager(void **state)
{
	struct socket_dir dir = socket_dir_new();
	int fd = make_fd("x"), sock;
	bool has_fd;

	(void)state;
	assert_false(notify_fds_has_store());
	assert_int_equal(notify_fds_put("a", fd), -EDESTADDRREQ);
	sock = open_manager(&dir);
	assert_true(notify_fds_has_store());
	assert_int_equal(notify_fds_put("g1.file", fd), 0);
	assert_string_equal(hear(sock, &has_fd), "FDSTORE=1\nFDPOLL=0\nFDNAME=g1.file");
	assert_true(has_fd);
	assert_int_equal(notify_fds_drop("g1.file"), 0);
	assert_string_equal(hear(sock, &has_fd), "FDSTOREREMOVE=1\nFDNAME=g1.file");
	assert_false(has_fd);
	assert_int_equal(setenv("FDSTORE", "0", 1), 0);
	assert_false(notify_fds_has_store());
	close_manager(sock);
	close(fd);
	socket_dir_free(&dir);
}

/* ---- the stash ---- */

static bool see_stashed(const struct stash_name *name, int fd, void *userdata)
{
	const uint64_t *refused = userdata;
	char text[STASH_NAME_BYTES];

	stash_name_print(name, text);
	see(text, fd, NULL);
	return name->generation != *refused;
}

static void want(struct stash *s, enum stash_kind kind, uint64_t generation, const char *text)
{
	const struct stash_name name = {.kind = kind, .generation = generation};
	int fd = make_fd(text);

	stash_want(s, &name, fd);
	close(fd);
}

static struct stash *open_stash(
	const struct socket_dir *dir, unsigned n_seconds, uint64_t refused, const char *expected)
{
	struct stash *s = NULL;

	assert_int_equal(stash_new(dir->path, n_seconds, &s), 0);
	stash_take_all(s, see_stashed, &refused);
	assert_string_equal(sort_seen(), expected);
	return s;
}

static void outlives_its_owner(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct stat st;
	struct stash *s = open_stash(&dir, KEEP_SECONDS, 0, "");

	(void)state;
	assert_int_equal(stat(dir.path, &st), -1); /* nothing to keep, no keeper */
	stash_begin(s);
	want(s, STASH_FILE, 1, "f1");
	want(s, STASH_MEMFD, 1, "m1");
	want(s, STASH_FILE, 2, "f2");
	stash_end(s);
	assert_true(stash_get_fd(s) >= 0);
	s = stash_free(s);
	/* Generation 2 is of no use to the next: its names are free. */
	s = open_stash(&dir, KEEP_SECONDS, 2, "g1.file=f1 g1.memfd=m1 g2.file=f2");
	stash_begin(s);
	want(s, STASH_FILE, 1, "other"); /* known by its name: not put again */
	want(s, STASH_FILE, 2, "new2");
	stash_end(s);
	s = stash_free(s);
	s = open_stash(&dir, KEEP_SECONDS, 0, "g1.file=f1 g2.file=new2");
	stash_drop_generation(s, 1);
	stash_begin(s);
	want(s, STASH_FILE, 1, "new1");
	want(s, STASH_FILE, 2, "other");
	stash_end(s);
	s = stash_free(s);
	s = open_stash(&dir, KEEP_SECONDS, 0, "g1.file=new1 g2.file=new2");
	stash_begin(s);
	want(s, STASH_FILE, 3, "f3");
	stash_end(s);
	assert_int_equal(stat(dir.path, &st), 0);
	stash_begin(s);
	stash_end(s); /* nothing is left to keep */
	assert_int_equal(stat(dir.path, &st), -1);
	assert_int_equal(stash_get_fd(s), -1);
	stash_begin(s);
	want(s, STASH_FILE, 3, "f3");
	stash_end(s);
	assert_int_equal(stat(dir.path, &st), 0);
	stash_forget_all(s);
	s = stash_free(s);
	assert_int_equal(stat(dir.path, &st), -1);
	s = open_stash(&dir, KEEP_SECONDS, 0, "");
	stash_free(s);
	socket_dir_free(&dir);
}

static void goes_without_a_keeper(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct stat st;
	struct stash *s = open_stash(&dir, 0, 0, "");

	(void)state;
	stash_begin(s);
	want(s, STASH_FILE, 1, "f1");
	stash_end(s);
	assert_int_equal(stash_get_fd(s), -1);
	assert_int_equal(stat(dir.path, &st), -1);
	stash_forget_all(s);
	stash_free(s);
	socket_dir_free(&dir);
}

static void prefers_the_manager(void **state)
{
	struct socket_dir dir = socket_dir_new();
	int sock = open_manager(&dir);
	struct stash *s = NULL;
	uint64_t none = 0;
	char keeper[128];
	struct stat st;
	bool has_fd;

	(void)state;
	snprintf(keeper, sizeof(keeper), "%s.keeper", dir.path);
	assert_int_equal(stash_new(keeper, KEEP_SECONDS, &s), 0);
	stash_take_all(s, see_stashed, &none);
	stash_begin(s);
	want(s, STASH_FILE, 1, "f1");
	stash_end(s);
	assert_string_equal(hear(sock, &has_fd), "FDSTORE=1\nFDPOLL=0\nFDNAME=g1.file");
	assert_true(has_fd);
	assert_int_equal(stat(keeper, &st), -1);
	stash_forget_all(s);
	assert_string_equal(hear(sock, &has_fd), "FDSTOREREMOVE=1\nFDNAME=g1.file");
	stash_free(s);
	close_manager(sock);
	socket_dir_free(&dir);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(prints_and_parses_names),
		CASE(keeps_beyond_a_connection),
		CASE(keeps_many),
		CASE(drops_who_breaks_the_protocol),
		CASE(ends_when_nobody_comes),
		CASE(speaks_to_the_manager),
		CASE(outlives_its_owner),
		CASE(goes_without_a_keeper),
		CASE(prefers_the_manager),
	};

	/* The keeper of these cases is this program, as weightd's is weightd. */
	if (argc > 1 && !strcmp(argv[1], "--keeper"))
		return keeper_main(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
