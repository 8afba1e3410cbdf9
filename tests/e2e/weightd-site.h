/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_E2E_WEIGHTD_SITE_H
#define TESTS_E2E_WEIGHTD_SITE_H

/*
 * The built weightd (WEIGHTD_BIN) on a socket in a directory of its own, clients of it, and peers
 * that speak the wire themselves. Failures fail the test.
 */
#include "tests/case.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "proto/fdlist.h"
#include "proto/util/err.h"
#include "proto/weightd.pb-c.h"
#include "proto/weights-client.h"
#include "proto/wire.h"
#include "tests/deny-uring.h"

enum { SITE_START_MS = 50000 };

struct site {
	char dir[64];
	char socket[80];
	char log[80];
	pid_t pid;
	int uring_errnum; /* io_uring fails with it in weightd; 0: it does not */
};

static inline const char *model_path(void)
{
	static char path[4096];

	snprintf(
		path, sizeof(path), "%s/models/atlas-dense-q8_0.gguf", getenv("WEIGHTD_TEST_DATA"));
	return path;
}

static inline int open_model(void)
{
	int fd = open(model_path(), O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

/* ---- starting and ending ---- */

static inline void site_init(struct site *s)
{
	strcpy(s->dir, "/tmp/weightd-test-XXXXXX");
	assert_non_null(mkdtemp(s->dir));
	snprintf(s->socket, sizeof(s->socket), "%s/s", s->dir);
	snprintf(s->log, sizeof(s->log), "%s/log", s->dir);
	s->pid = -1;
	s->uring_errnum = 0;
}

/* weightd with these options and no other device. max_fds: its limit, 0 for this process's. */
static inline void site_spawn_plain(struct site *s, const char *const *args, rlim_t max_fds)
{
	const char *argv[24] = {getenv("WEIGHTD_BIN"), "--socket", s->socket};
	int n = 3;

	while (args && *args)
		argv[n++] = *args++;
	s->pid = fork();
	assert_true(s->pid >= 0);
	if (s->pid > 0)
		return;
	/* A case that fails leaves nothing running. */
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	int log = open(s->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	struct rlimit limit = {.rlim_cur = max_fds, .rlim_max = max_fds};
	if (log < 0 || dup2(log, 2) < 0 || (max_fds && setrlimit(RLIMIT_NOFILE, &limit) < 0))
		_exit(126);
	if (s->uring_errnum && deny_uring(s->uring_errnum) < 0)
		_exit(126);
	execv(argv[0], (char *const *)argv);
	_exit(127);
}

/* On the device that is tested. */
static inline void site_spawn(struct site *s, const char *const *args, rlim_t max_fds)
{
	const char *with_device[20] = {"--device",
		getenv("WEIGHTD_TEST_DEVICE") ? getenv("WEIGHTD_TEST_DEVICE") : "software"};
	int n = 2;

	while (args && *args)
		with_device[n++] = *args++;
	site_spawn_plain(s, with_device, max_fds);
}

static inline const char *site_log(const struct site *s)
{
	static char text[65536];
	int fd = open(s->log, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = '\0';
	return text;
}

static inline void site_wait_ready(const struct site *s)
{
	for (int i = 0; i < SITE_START_MS / 10; i++) {
		if (strstr(site_log(s), "ready: socket"))
			return;
		if (waitpid(s->pid, NULL, WNOHANG) == s->pid)
			break;
		usleep(10000);
	}
	fail_msg("not ready: %s", site_log(s));
}

static inline void site_start(struct site *s, const char *const *args, rlim_t max_fds)
{
	site_init(s);
	site_spawn(s, args, max_fds);
	site_wait_ready(s);
}

static inline void site_start_model(struct site *s)
{
	char model[4200];

	snprintf(model, sizeof(model), "atlas=%s", model_path());
	site_start(s, (const char *const[]){"--model", model, NULL}, 0);
}

static inline int site_wait(struct site *s)
{
	int status;

	assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
	s->pid = -1;
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static inline void site_remove(const struct site *s)
{
	unlink(s->log);
	if (rmdir(s->dir) < 0)
		fail_msg("something was left in %s", s->dir);
}

/* SIGTERM ends it with 0 and no socket is left. */
static inline void site_stop(struct site *s)
{
	struct stat st;

	assert_int_equal(kill(s->pid, SIGTERM), 0);
	assert_int_equal(site_wait(s), 0);
	assert_int_equal(stat(s->socket, &st), -1);
	site_remove(s);
}

static inline unsigned count_lines(const char *text)
{
	unsigned n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

/* What weightd has open that is named so in /proc. */
static inline unsigned count_open(const struct site *s, const char *name)
{
	char path[300], link[300];
	unsigned n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)s->pid);
	dir = opendir(path);
	assert_non_null(dir);
	for (struct dirent *d; (d = readdir(dir));) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%.20s", (int)s->pid, d->d_name);
		ssize_t k = readlink(path, link, sizeof(link) - 1);
		link[k > 0 ? k : 0] = '\0';
		n += strstr(link, name) != NULL;
	}
	closedir(dir);
	return n;
}

/* At most n such, at last: a descriptor may be closed after the answer. */
static inline void expect_open(const struct site *s, const char *name, unsigned n)
{
	for (int i = 0; i < 10000 && count_open(s, name) > n; i++)
		usleep(1000);
	assert_in_range(count_open(s, name), 0, n);
}

/* ---- clients ---- */

static inline void check(int rc, const struct err *e, const char *what)
{
	if (rc)
		fail_msg("%s: %d %s", what, rc, e->text);
}

static inline struct weights_client *connect_client(const struct site *s)
{
	struct weights_client *c = NULL;
	struct err e = ERR_NULL;

	check(weights_client_new(s->socket, WEIGHTS_CLIENT_WORKER, &e, &c), &e, "connect");
	return c;
}

static inline struct weights_client_acquired acquire(struct weights_client *c, const char *model)
{
	const struct weights_client_device *d = weights_client_get_device(c);
	struct weights_client_acquired a;
	struct err e = ERR_NULL;

	check(weights_client_acquire(c, model, d->uuid, d->driver_uuid, &e, &a), &e, "acquire");
	return a;
}

static inline struct weights_client_status get_status(struct weights_client *c)
{
	struct weights_client_status status;
	struct err e = ERR_NULL;

	check(weights_client_status(c, &e, &status), &e, "status");
	return status;
}

/* "loading", ..., or "gone". */
static inline const char *get_state(struct weights_client *c, uint64_t generation)
{
	struct weights_client_status s = get_status(c);
	const char *state = "gone";

	for (uint32_t i = 0; i < s.n_models; i++)
		for (uint32_t k = 0; k < s.models[i].n_generations; k++)
			if (s.models[i].generations[k].id == generation)
				state = s.models[i].generations[k].state;
	weights_client_status_fini(&s);
	return state;
}

static inline void wait_state(struct weights_client *c, uint64_t generation, const char *state)
{
	for (int i = 0; i < 1000 && strcmp(get_state(c, generation), state); i++)
		usleep(5000);
	assert_string_equal(get_state(c, generation), state);
}

/* A process that has a lease; it closes its connection when told so, and lives on. */
struct holder {
	pid_t pid;
	int tell;
};

static inline struct holder holder_start(const struct site *s, const char *model)
{
	struct holder h;
	int down[2], up[2];
	char byte;

	assert_int_equal(pipe2(down, O_CLOEXEC), 0);
	assert_int_equal(pipe2(up, O_CLOEXEC), 0);
	h.pid = fork();
	assert_true(h.pid >= 0);
	if (h.pid == 0) {
		struct weights_client *c = connect_client(s);
		struct weights_client_acquired a = acquire(c, model);
		weights_client_acquired_fini(&a);
		if (write(up[1], "x", 1) != 1 || read(down[0], &byte, 1) != 1)
			_exit(1);
		weights_client_free(c);
		pause();
		_exit(0);
	}
	assert_int_equal(read(up[0], &byte, 1), 1);
	close(down[0]);
	close(up[0]);
	close(up[1]);
	h.tell = down[1];
	return h;
}

static inline void holder_close(const struct holder *h)
{
	assert_int_equal(write(h->tell, "x", 1), 1);
}

static inline void holder_kill(const struct holder *h)
{
	close(h->tell);
	assert_int_equal(kill(h->pid, SIGKILL), 0);
	assert_int_equal(waitpid(h->pid, NULL, 0), h->pid);
}

/* ---- peers that speak the wire themselves ---- */

static inline int connect_raw(const struct site *s)
{
	int fd = -1;
	struct err e = ERR_NULL;

	check(wire_connect(s->socket, &e, &fd), &e, "connect");
	return fd;
}

static inline void send_request(int sock, Wd__Request *request, const struct fdlist *fds)
{
	uint8_t data[4096];
	size_t n = wd__request__get_packed_size(request);

	assert_true(n <= sizeof(data));
	wd__request__pack(request, data);
	assert_int_equal(wire_send(sock, data, (uint32_t)n, fds), 0);
}

static inline void send_hello(int sock, uint32_t protocol)
{
	Wd__Request request = WD__REQUEST__INIT;
	Wd__Hello hello = WD__HELLO__INIT;

	hello.protocol = protocol;
	hello.role = WD__ROLE__ROLE_WORKER;
	request.id = 1;
	request.body_case = WD__REQUEST__BODY_HELLO;
	request.hello = &hello;
	send_request(sock, &request, NULL);
}

/* The next packet, for wd__reply__free_unpacked. */
static inline Wd__Reply *receive(int sock)
{
	static uint8_t data[WIRE_MAX_BYTES];
	struct fdlist fds = FDLIST_NULL;
	uint32_t n_bytes = 0;
	struct err e = ERR_NULL;

	check(wire_recv(sock, data, &n_bytes, &fds, &e), &e, "answer");
	fdlist_fini(&fds);
	Wd__Reply *reply = wd__reply__unpack(NULL, n_bytes, data);
	assert_non_null(reply);
	return reply;
}

static inline void expect_welcome(int sock)
{
	Wd__Reply *reply = receive(sock);

	assert_int_equal(reply->body_case, WD__REPLY__BODY_WELCOME);
	wd__reply__free_unpacked(reply, NULL);
}

/* The next packet is a refusal with this text in it. */
static inline void expect_error(int sock, const char *text)
{
	Wd__Reply *reply = receive(sock);

	assert_int_equal(reply->body_case, WD__REPLY__BODY_ERROR);
	assert_true(reply->error->code > 0);
	if (!strstr(reply->error->text, text))
		fail_msg("expected \"%s\", found \"%s\"", text, reply->error->text);
	wd__reply__free_unpacked(reply, NULL);
}

static inline void expect_end(int sock)
{
	static uint8_t data[WIRE_MAX_BYTES];
	struct fdlist fds = FDLIST_NULL;
	uint32_t n_bytes;

	assert_int_equal(wire_recv(sock, data, &n_bytes, &fds, NULL), WIRE_END);
	close(sock);
}

static inline int greeted(const struct site *s)
{
	int sock = connect_raw(s);

	send_hello(sock, WIRE_PROTOCOL);
	expect_welcome(sock);
	return sock;
}

#endif
