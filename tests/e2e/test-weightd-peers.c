/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that break the protocol, do not read, or are too many: weightd goes on for the others. */
#include "tests/e2e/weightd-site.h"

#include <sys/socket.h>

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_hello),
		CASE(test_garbage),
		CASE(test_slow_watcher),
		CASE(test_out_of_fds),
	};

	signal(SIGPIPE, SIG_IGN);
	if (!getenv("WEIGHTD_BIN"))
		return CASE_SKIP;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
