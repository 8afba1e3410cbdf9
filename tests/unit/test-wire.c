/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "proto/fdlist.h"
#include "proto/util/err.h"
#include "proto/wire.h"
#include "tests/unit/socket-dir.h"

static uint8_t data[WIRE_MAX_BYTES];

static void open_pair(int type, int pair[2])
{
	assert_int_equal(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair), 0);
}

static void close_pair(int pair[2])
{
	close(pair[0]);
	close(pair[1]);
}

/* A packet as no wire_send would make it: n_fds copies of fd beside n_bytes. */
static void send_raw(int sock, uint32_t n_bytes, int fd, uint32_t n_fds)
{
	static uint8_t zeros[WIRE_MAX_BYTES + 1];
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * 128)] = {0};
	struct iovec iov = {.iov_base = zeros, .iov_len = n_bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

	if (n_fds > 0) {
		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		for (uint32_t i = 0; i < n_fds; i++)
			memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(int));
	}
	assert_int_equal(sendmsg(sock, &msg, MSG_NOSIGNAL), n_bytes);
}

static void expect_refusal(int sock, const char *text)
{
	struct fdlist fds = FDLIST_NULL;
	struct err e = ERR_NULL;
	uint32_t n = 12345;

	assert_int_equal(wire_recv(sock, data, &n, &fds, &e), -EBADMSG);
	assert_int_equal(n, 12345);
	assert_int_equal(fds.n, 0);
	assert_string_not_equal(e.text, "");
	assert_non_null(strstr(e.text, text));
}

static void expect_refused(int sock)
{
	expect_refusal(sock, "packet: ");
}

static void carries_bytes_and_descriptors(void **state)
{
	struct fdlist sent = FDLIST_NULL, got = FDLIST_NULL;
	struct err e = ERR_NULL;
	int pair[2], pipes[2];
	uint32_t n;
	char c;

	(void)state;
	open_pair(SOCK_SEQPACKET, pair);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	assert_int_equal(fdlist_add(&sent, pipes[0]), 0);
	assert_int_equal(fdlist_add(&sent, pipes[1]), 0);
	assert_int_equal(wire_send(pair[0], "hello", 5, &sent), 0);
	assert_int_equal(wire_send(pair[0], "again", 5, NULL), 0);
	fdlist_fini(&sent);

	assert_int_equal(wire_recv(pair[1], data, &n, &got, &e), 0);
	assert_int_equal(n, 5);
	assert_memory_equal(data, "hello", 5);
	assert_int_equal(got.n, 2);
	for (uint32_t i = 0; i < got.n; i++)
		assert_int_equal(fcntl(got.fds[i], F_GETFD), FD_CLOEXEC);
	assert_int_equal(write(got.fds[1], "x", 1), 1);
	assert_int_equal(read(got.fds[0], &c, 1), 1);
	assert_int_equal(c, 'x');
	fdlist_fini(&got);

	/* The packets did not merge, and the second had no descriptors. */
	assert_int_equal(wire_recv(pair[1], data, &n, &got, &e), 0);
	assert_memory_equal(data, "again", 5);
	assert_int_equal(got.n, 0);
	close_pair(pair);
}

static void carries_the_caps(void **state)
{
	struct fdlist sent = FDLIST_NULL, got = FDLIST_NULL;
	struct err e = ERR_NULL;
	uint32_t n;
	int pair[2];

	(void)state;
	open_pair(SOCK_SEQPACKET, pair);
	while (sent.n < FDLIST_MAX)
		assert_int_equal(fdlist_add(&sent, open("/dev/null", O_RDONLY | O_CLOEXEC)), 0);
	memset(data, 'x', sizeof(data));
	assert_int_equal(wire_send(pair[0], data, WIRE_MAX_BYTES, &sent), 0);
	assert_int_equal(wire_send(pair[0], data, WIRE_MAX_BYTES + 1, NULL), -EMSGSIZE);
	assert_int_equal(wire_send(pair[0], data, 0, NULL), -EMSGSIZE);
	memset(data, 0, sizeof(data));
	assert_int_equal(wire_recv(pair[1], data, &n, &got, &e), 0);
	assert_int_equal(n, WIRE_MAX_BYTES);
	assert_int_equal(data[WIRE_MAX_BYTES - 1], 'x');
	assert_int_equal(got.n, FDLIST_MAX);
	fdlist_fini(&got);
	fdlist_fini(&sent);
	close_pair(pair);
}

static void refuses_too_many_descriptors(void **state)
{
	int pair[2];

	(void)state;
	open_pair(SOCK_SEQPACKET, pair);
	send_raw(pair[0], 1, pair[0], FDLIST_MAX + 1);
	expect_refused(pair[1]);
	send_raw(pair[0], 1, pair[0], 128);
	expect_refused(pair[1]);
	close_pair(pair);
}

static void refuses_too_many_bytes(void **state)
{
	int pair[2];

	(void)state;
	open_pair(SOCK_SEQPACKET, pair);
	send_raw(pair[0], WIRE_MAX_BYTES + 1, pair[0], 3);
	expect_refused(pair[1]);
	close_pair(pair);
}

/* The kernel hands over what still fits and says MSG_CTRUNC; keeping those would be a leak. */
static void leaks_nothing_at_the_descriptor_limit(void **state)
{
	struct rlimit old, low;
	int pair[2], top;

	(void)state;
	open_pair(SOCK_SEQPACKET, pair);
	send_raw(pair[0], 1, pair[0], 8);
	top = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	low = old;
	low.rlim_cur = (rlim_t)top + 3;
	char text[80];
	snprintf(text, sizeof(text), "may have %llu open (RLIMIT_NOFILE",
		(unsigned long long)low.rlim_cur);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	expect_refusal(pair[1], text);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	close(top);
	close_pair(pair);
}

static void refuses_foreign_ancillary_data(void **state)
{
	int pair[2], on = 1;

	(void)state;
	open_pair(SOCK_SEQPACKET, pair);
	assert_int_equal(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
	send_raw(pair[0], 1, pair[0], 0);
	expect_refused(pair[1]);
	send_raw(pair[0], 1, pair[0], 2);
	expect_refused(pair[1]);
	close_pair(pair);
}

static void ends(void **state)
{
	struct fdlist fds = FDLIST_NULL;
	struct err e = ERR_NULL;
	uint32_t n = 0;
	int pair[2];

	(void)state;
	/* An empty packet is an end, and what came beside it is closed. */
	open_pair(SOCK_SEQPACKET, pair);
	send_raw(pair[0], 0, pair[0], 2);
	assert_int_equal(wire_recv(pair[1], data, &n, &fds, &e), WIRE_END);
	assert_int_equal(fds.n, 0);
	close(pair[0]);
	assert_int_equal(wire_recv(pair[1], data, &n, &fds, &e), WIRE_END);
	assert_int_equal(wire_send(pair[1], "x", 1, NULL), -EPIPE);
	close(pair[1]);

	/* A peer that went without reading what we sent. */
	open_pair(SOCK_SEQPACKET, pair);
	assert_int_equal(wire_send(pair[1], "x", 1, NULL), 0);
	close(pair[0]);
	assert_int_equal(wire_recv(pair[1], data, &n, &fds, &e), WIRE_END);
	close(pair[1]);
}

static void says_again(void **state)
{
	struct fdlist fds = FDLIST_NULL;
	struct err e = ERR_NULL;
	uint32_t n;
	int pair[2], r;

	(void)state;
	open_pair(SOCK_SEQPACKET | SOCK_NONBLOCK, pair);
	assert_int_equal(wire_recv(pair[1], data, &n, &fds, &e), WIRE_AGAIN);
	for (int i = 0; i < 10000; i++) {
		r = wire_send(pair[0], data, WIRE_MAX_BYTES, NULL);
		if (r != 0)
			break;
	}
	assert_int_equal(r, WIRE_AGAIN);
	close_pair(pair);
}

static void listens_and_connects(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct err e = ERR_NULL;
	struct stat st;
	int listener, client, server;
	mode_t old_umask = umask(0077);

	(void)state;
	assert_int_equal(wire_listen(dir.path, 0666, &e, &listener), 0);
	assert_int_equal(umask(old_umask), 0077);
	assert_int_equal(stat(dir.path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0666);
	assert_int_equal(fcntl(listener, F_GETFD), FD_CLOEXEC);
	assert_true(fcntl(listener, F_GETFL) & O_NONBLOCK);
	assert_int_equal(accept(listener, NULL, NULL), -1);
	assert_int_equal(errno, EAGAIN);

	assert_int_equal(wire_connect(dir.path, &e, &client), 0);
	assert_int_equal(fcntl(client, F_GETFD), FD_CLOEXEC);
	assert_false(fcntl(client, F_GETFL) & O_NONBLOCK);
	server = accept(listener, NULL, NULL);
	assert_true(server >= 0);
	close(server);
	close(client);

	/* A living owner keeps its socket and still answers. */
	int second = -1;
	assert_int_equal(wire_listen(dir.path, 0600, &e, &second), -EADDRINUSE);
	assert_int_equal(second, -1);
	assert_int_equal(wire_connect(dir.path, &e, &client), 0);
	close(client);
	close(listener);
	socket_dir_free(&dir);
}

static void replaces_a_stale_socket(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct err e = ERR_NULL;
	int listener, client;

	(void)state;
	assert_int_equal(wire_listen(dir.path, 0600, &e, &listener), 0);
	close(listener);
	assert_int_equal(access(dir.path, F_OK), 0);
	assert_int_equal(wire_connect(dir.path, &e, &client), -ECONNREFUSED);
	assert_int_equal(wire_listen(dir.path, 0600, &e, &listener), 0);
	assert_int_equal(wire_connect(dir.path, &e, &client), 0);
	close(client);
	close(listener);
	socket_dir_free(&dir);
}

static void leaves_other_files_alone(void **state)
{
	struct socket_dir dir = socket_dir_new();
	struct err e = ERR_NULL;
	struct stat st;
	int fd = open(dir.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600), listener = -1;

	(void)state;
	assert_int_equal(write(fd, "keep", 4), 4);
	close(fd);
	assert_int_equal(wire_listen(dir.path, 0600, &e, &listener), -EEXIST);
	assert_int_equal(stat(dir.path, &st), 0);
	assert_int_equal(st.st_size, 4);
	assert_int_equal(unlink(dir.path), 0);
	assert_int_equal(symlink("nowhere", dir.path), 0);
	assert_int_equal(wire_listen(dir.path, 0600, &e, &listener), -EEXIST);
	assert_int_equal(listener, -1);
	socket_dir_free(&dir);
}

static void refuses_bad_paths(void **state)
{
	struct socket_dir dir = socket_dir_new();
	char path[512];
	struct err e = ERR_NULL;
	int fd = -1;

	(void)state;
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(wire_connect(path, &e, &fd), -ENAMETOOLONG);
	assert_int_equal(wire_listen(path, 0600, &e, &fd), -ENAMETOOLONG);
	assert_int_equal(wire_connect("", &e, &fd), -EINVAL);
	assert_int_equal(wire_connect(dir.path, &e, &fd), -ENOENT);
	assert_non_null(strstr(e.text, dir.path));
	snprintf(path, sizeof(path), "%s/none/s", dir.dir);
	assert_int_equal(wire_listen(path, 0600, &e, &fd), -ENOENT);
	assert_int_equal(fd, -1);
	socket_dir_free(&dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(carries_bytes_and_descriptors),
		CASE(carries_the_caps),
		CASE(refuses_too_many_descriptors),
		CASE(refuses_too_many_bytes),
		CASE(leaks_nothing_at_the_descriptor_limit),
		CASE(refuses_foreign_ancillary_data),
		CASE(ends),
		CASE(says_again),
		CASE(listens_and_connects),
		CASE(replaces_a_stale_socket),
		CASE(leaves_other_files_alone),
		CASE(refuses_bad_paths),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
