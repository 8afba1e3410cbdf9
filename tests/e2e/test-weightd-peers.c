/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that break the protocol, do not read, or are too many: weightd goes on for the others. */
#include "tests/e2e/weightd-site.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <linux/capability.h>

static void test_hello(void **state)
{
	struct site s;
	Wd__Request request = WD__REQUEST__INIT;
	Wd__List list = WD__LIST__INIT;

	(void)state;
	site_start(&s, NULL, 0);
	int sock = connect_raw(&s);
	send_hello(sock, 7);
	expect_error(sock, "protocol: expected 1, found 7");
	expect_end(sock);

	sock = connect_raw(&s);
	request.id = 1;
	request.body_case = WD__REQUEST__BODY_LIST;
	request.list = &list;
	send_request(sock, &request, NULL);
	expect_error(sock, "expected Hello, found List");
	expect_end(sock);

	sock = connect_raw(&s);
	send_hello(sock, WIRE_PROTOCOL);
	expect_welcome(sock);
	send_hello(sock, WIRE_PROTOCOL);
	expect_error(sock, "Hello: expected once");
	close(sock);

	/* A Hello that does not come. */
	sock = connect_raw(&s);
	expect_error(sock, "Hello: expected within");
	expect_end(sock);
	site_stop(&s);
}

static void test_garbage(void **state)
{
	struct site s;
	uint8_t noise[WIRE_MAX_BYTES + 1];
	uint32_t seed = 1;
	struct fdlist fds = {.n = 2, .fds = {0, 0}};
	Wd__Request request = WD__REQUEST__INIT;
	Wd__List list = WD__LIST__INIT;

	(void)state;
	site_start_model(&s);
	struct weights_client *c = connect_client(&s);
	for (unsigned i = 0; i < sizeof(noise); i++) {
		seed = seed * 1664525 + 1013904223;
		noise[i] = (uint8_t)(seed >> 24);
	}
	for (uint32_t i = 0; i < 100; i++) {
		int sock = i % 2 ? greeted(&s) : connect_raw(&s);
		int rc = wire_send(sock, noise + i, 1 + i * 600, i % 3 ? &fds : NULL);
		assert_int_equal(rc, 0);
		expect_error(sock, ": ");
		expect_end(sock);
	}
	/* More than a packet may have. */
	int sock = greeted(&s);
	assert_int_equal(send(sock, noise, sizeof(noise), 0), sizeof(noise));
	expect_error(sock, "expected at most 65536");
	expect_end(sock);
	/* Descriptors beside a request that does not count them, and one that wants none. */
	for (unsigned n = 0; n <= 2; n += 2) {
		sock = greeted(&s);
		request.id = 2;
		request.n_fds = n;
		request.body_case = WD__REQUEST__BODY_LIST;
		request.list = &list;
		send_request(sock, &request, &fds);
		expect_error(sock, "descriptors");
		expect_end(sock);
	}
	/* An empty packet is an end. */
	sock = greeted(&s);
	assert_int_equal(send(sock, noise, 0, 0), 0);
	expect_end(sock);
	assert_string_equal(get_state(c, 1), "ready");
	struct weights_client_status status = get_status(c);
	assert_int_equal(status.n_peers, 1);
	weights_client_status_fini(&status);
	weights_client_free(c);
	site_stop(&s);
}

/* A Resume of nobody's, with and without what it says. */
static void try_resume(
	const struct site *s, Wd__Resume *m, const struct fdlist *fds, const char *expected)
{
	Wd__Request request = WD__REQUEST__INIT;
	int sock = greeted(s);

	request.id = 2;
	request.n_fds = fds ? fds->n : 0;
	request.body_case = WD__REQUEST__BODY_RESUME;
	request.resume = m;
	send_request(sock, &request, fds);
	expect_error(sock, expected);
	close(sock);
}

static void test_resume(void **state)
{
	struct site s;
	Wd__Resume m = WD__RESUME__INIT;
	uint8_t uuid[16] = {0};
	struct err e = ERR_NULL;
	struct weights_client_contents contents = {0};
	bool gave = true;

	(void)state;
	site_start_model(&s);
	struct weights_client *c = connect_client(&s), *again = NULL;
	struct weights_client_acquired a = acquire(c, "atlas");
	struct weights_client_held held = {.model = "atlas",
		.generation = a.generation,
		.device_uuid = uuid,
		.driver_uuid = uuid,
		.manifest_fd = a.manifest_fd};
	const struct fdlist fds = {.n = 1, .fds = {a.manifest_fd}};
	/* The lease again, on a connection of its own, with the manifest that it came with. */
	again = connect_client(&s);
	check(weights_client_resume(again, &held, &e, &gave, &contents), &e, "resume");
	assert_false(gave);
	/* Its identity is that of the lease and of the status, and so is what stands in for it. */
	assert_true(contents.has_identity && contents.has_file);
	assert_memory_equal(&contents, &a.contents, sizeof(contents));
	struct weights_client_status status = get_status(c);
	assert_int_equal(status.models[0].generations[0].n_leases, 2);
	assert_memory_equal(status.models[0].generations[0].identity, contents.identity, 32);
	weights_client_status_fini(&status);
	held.generation++;
	assert_int_equal(weights_client_resume(again, &held, &e, &gave, &contents), -ENOENT);
	weights_client_free(again);

	m.model = (char *)"atlas";
	m.generation = a.generation;
	try_resume(&s, &m, NULL, "uuids");
	m.device_uuid = m.driver_uuid = (ProtobufCBinaryData){.data = uuid, .len = 16};
	try_resume(&s, &m, NULL, "is not to be had back"); /* no manifest */
	m.has_manifest = true;
	try_resume(&s, &m, NULL, "expected descriptors");
	try_resume(&s, &m, &fds, "is not to be had back");
	m.generation = UINT64_MAX;
	try_resume(&s, &m, &fds, "not to be had");
	m.model = (char *)"/";
	try_resume(&s, &m, &fds, "model name");
	assert_string_equal(get_state(c, 1), "ready");
	weights_client_acquired_fini(&a);
	weights_client_free(c);
	site_stop(&s);
}

/* A watcher that never reads is dropped; the one whose events it does not read goes on. */
static void test_slow_watcher(void **state)
{
	struct site s;
	struct err e = ERR_NULL;

	(void)state;
	site_start_model(&s);
	struct weights_client *slow = connect_client(&s);
	struct weights_client *c = connect_client(&s);
	check(weights_client_watch(slow, &e), &e, "watch");
	uint32_t n_peers = 2;
	for (int i = 0; i < 20000 && n_peers == 2; i++) {
		struct weights_client_acquired a = acquire(c, "atlas");
		weights_client_acquired_fini(&a);
		if (i % 500)
			continue;
		struct weights_client_status status = get_status(c);
		n_peers = status.n_peers;
		weights_client_status_fini(&status);
	}
	assert_int_equal(n_peers, 1);
	weights_client_free(slow);
	weights_client_free(c);
	site_stop(&s);
}

/* User and system time of weightd, in clock ticks. */
static unsigned long get_cpu(const struct site *s)
{
	char path[64], text[1024];
	unsigned long user = 0, system = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)s->pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	assert_true(n > 0);
	text[n] = '\0';
	/* Fields 14 and 15 of proc(5), counted from behind the name. */
	assert_int_equal(
		sscanf(strrchr(text, ')') + 1,
			" %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system),
		2);
	return user + system;
}

static unsigned count_open_fds(const struct site *s)
{
	char path[64];
	unsigned n = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)s->pid);
	DIR *dir = opendir(path);
	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void test_out_of_fds(void **state)
{
	enum { MAX_FDS = 96, N = 150 };
	struct site s;
	int socks[N];
	struct err e = ERR_NULL;

	(void)state;
	site_start(&s, NULL, MAX_FDS);
	struct weights_client *c = connect_client(&s);
	struct weights_client_status status = get_status(c);
	weights_client_status_fini(&status);
	unsigned n_before = count_open_fds(&s);
	for (int i = 0; i < N; i++)
		socks[i] = connect_raw(&s);
	/* Those beyond the limit are told so and closed; nobody spins; who is in is served. */
	expect_error(socks[N - 1], "no file descriptors left");
	unsigned long cpu = get_cpu(&s);
	usleep(300000);
	assert_true(get_cpu(&s) - cpu <= 10);
	status = get_status(c);
	assert_true(status.n_peers > 20 && status.n_peers < N);
	weights_client_status_fini(&status);

	/* A descriptor that cannot be received: the peer is told, and nothing leaks. */
	uint64_t generation;
	int fd = open_model();
	assert_true(weights_client_load(c, "atlas", "p", fd, false, &e, &generation) < 0);
	weights_client_free(c);
	for (int i = 0; i < N; i++)
		close(socks[i]);
	c = connect_client(&s);
	for (int i = 0; i < 1000 && count_open_fds(&s) != n_before; i++)
		usleep(5000);
	assert_int_equal(count_open_fds(&s), n_before);
	check(weights_client_load(c, "atlas", "p", fd, false, &e, &generation), &e, "load");
	close(fd);
	weights_client_free(c);
	site_stop(&s);
}

/* The generation's Acquired is on its way; nobody reads it. */
static void send_acquire(int sock, const struct weights_client_device *d, uint64_t id)
{
	Wd__Request request = WD__REQUEST__INIT;
	Wd__Acquire m = WD__ACQUIRE__INIT;

	m.model = (char *)"atlas";
	m.device_uuid = (ProtobufCBinaryData){.len = 16, .data = (uint8_t *)d->uuid};
	m.driver_uuid = (ProtobufCBinaryData){.len = 16, .data = (uint8_t *)d->driver_uuid};
	request.id = id;
	request.body_case = WD__REQUEST__BODY_ACQUIRE;
	request.acquire = &m;
	send_request(sock, &request, NULL);
}

/* Leases of another process, which reads what it is sent. */
static void acquire_elsewhere(const struct site *s)
{
	int status = -1;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		struct weights_client *c = NULL;
		struct weights_client_acquired a;

		alarm(5);
		if (weights_client_new(s->socket, WEIGHTS_CLIENT_WORKER, NULL, &c) < 0)
			_exit(1);
		const struct weights_client_device *d = weights_client_get_device(c);
		for (int i = 0; i < 20; i++) {
			if (weights_client_acquire(c, "atlas", d->uuid, d->driver_uuid, NULL, &a) <
				0)
				_exit(2);
			weights_client_acquired_fini(&a);
		}
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* Peers that ask for descriptors and do not read them: others get theirs, at once. */
static void test_unread_descriptors(void **state)
{
	enum { MAX_FDS = 256, N = 40, N_EACH = 40 };
	struct site s;
	int socks[N];
	char model[4200];

	(void)state;
	snprintf(model, sizeof(model), "atlas=%s", model_path());
	/* With these the kernel does not count; where there are none, none can be dropped. */
	(void)prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE);
	(void)prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN);
	site_start(&s, (const char *const[]){"--model", model, NULL}, MAX_FDS);
	struct weights_client *c = connect_client(&s);
	for (int i = 0; i < N; i++)
		socks[i] = greeted(&s);
	for (uint64_t k = 0; k < N_EACH; k++)
		for (int i = 0; i < N; i++)
			send_acquire(socks[i], weights_client_get_device(c), k + 2);
	acquire_elsewhere(&s);
	/* Nobody was dropped; who reads at last gets everything. */
	struct weights_client_status status = get_status(c);
	assert_int_equal(status.n_peers, N + 1);
	weights_client_status_fini(&status);
	for (int i = 1; i < N; i++)
		close(socks[i]);
	for (uint64_t k = 0; k < N_EACH; k++) {
		Wd__Reply *reply = receive(socks[0]);
		assert_int_equal(reply->id, k + 2);
		assert_int_equal(reply->body_case, WD__REPLY__BODY_ACQUIRED);
		wd__reply__free_unpacked(reply, NULL);
	}
	close(socks[0]);
	assert_null(strstr(site_log(&s), "quota"));
	weights_client_free(c);
	site_stop(&s);
}

static int wait_for_socket(const struct site *s)
{
	int fd = -1;

	for (int i = 0; i < SITE_START_MS && fd < 0; i++) {
		if (wire_connect(s->socket, NULL, &fd) == 0)
			return fd;
		usleep(1000);
	}
	fail_msg("no socket: %s", site_log(s));
	return -1;
}

/* A model of the command line is unloaded while it waits for its turn: the others are served. */
static void test_unload_at_start(void **state)
{
	enum { N = 6 };
	struct site s;
	char models[N][4200];
	const char *args[2 * N + 1] = {NULL};
	Wd__Request request = WD__REQUEST__INIT;
	Wd__Unload unload = WD__UNLOAD__INIT;

	(void)state;
	for (int i = 0; i < N; i++) {
		snprintf(models[i], sizeof(models[i]), "m%d=%s", i, model_path());
		args[2 * i] = "--model";
		args[2 * i + 1] = models[i];
	}
	site_init(&s);
	site_spawn(&s, args, 0);
	int sock = wait_for_socket(&s);
	send_hello(sock, WIRE_PROTOCOL);
	unload.name = (char *)"m5";
	request.id = 2;
	request.body_case = WD__REQUEST__BODY_UNLOAD;
	request.unload = &unload;
	send_request(sock, &request, NULL);
	site_wait_ready(&s);
	assert_non_null(strstr(site_log(&s), "it was unloaded while it loaded"));
	struct weights_client *c = connect_client(&s);
	assert_string_equal(get_state(c, 1), "ready");
	assert_string_equal(get_state(c, N), "gone");
	weights_client_free(c);
	close(sock);
	site_stop(&s);
}

static void test_signal_at_start(void **state)
{
	struct site s;

	(void)state;
	site_init(&s);
	site_spawn(&s, NULL, 0);
	close(wait_for_socket(&s));
	site_stop(&s);
}

/* Whatever took the socket's place is not weightd's to remove. */
static void test_foreign_socket(void **state)
{
	struct site s;

	(void)state;
	site_start(&s, NULL, 0);
	char aside[100];
	snprintf(aside, sizeof(aside), "%s-aside", s.socket);
	assert_int_equal(rename(s.socket, aside), 0);
	int fd = open(s.socket, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(kill(s.pid, SIGTERM), 0);
	assert_int_equal(site_wait(&s), 0);
	assert_int_equal(unlink(s.socket), 0);
	assert_int_equal(unlink(aside), 0);
	site_remove(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_hello),
		CASE(test_garbage),
		CASE(test_resume),
		CASE(test_slow_watcher),
		CASE(test_out_of_fds),
		CASE(test_unread_descriptors),
		CASE(test_unload_at_start),
		CASE(test_signal_at_start),
		CASE(test_foreign_socket),
	};

	signal(SIGPIPE, SIG_IGN);
	if (!getenv("WEIGHTD_BIN"))
		return CASE_SKIP;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
