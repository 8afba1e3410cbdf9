/* SPDX-License-Identifier: Apache-2.0 */
/* While somebody attacks one tenant's socket, the others are served. */
#include "tests/e2e/listen-site.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

enum {
	N_SAMPLES = 150,
	SAMPLE_MS = 50,     /* within which others are served */
	ATTACK_S = 300,     /* longer than all looks at one take on a slow machine */
	STOPPED_STATUS = 9, /* exit of one that was dropped */
	N_MANY = 880,
	N_FEW = N_MANY / 4,
	N_FLOODS = 448,     /* connections of one uid on the one --listen socket, the most */
	SETTLE_US = 500000, /* until what an attacker made weightd do before it began is over */
};

static int acquire_both(struct weights_client *c)
{
	struct err e = ERR_NULL;

	return try_acquire(c, "atlas", &e) || try_acquire(c, "other", &e);
}

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int compare_ms(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* One connection, its Hello and a List. */
static void serve_one(const struct site *s)
{
	struct weights_client *c = connect_client(s);
	struct weights_client_status status;
	struct err e = ERR_NULL;

	check(weights_client_list(c, &e, &status), &e, "list");
	weights_client_status_fini(&status);
	weights_client_free(c);
}

/* What 19 of 20 take at most, in ms. */
static double measure_served(const struct site *s, const char *name, const char *what)
{
	struct site other = name ? listen_at(s, name) : *s;
	double ms[N_SAMPLES];

	for (int i = 0; i < N_SAMPLES; i++) {
		double start_ms = now_ms();
		serve_one(&other);
		ms[i] = now_ms() - start_ms;
		usleep(3000);
	}
	qsort(ms, N_SAMPLES, sizeof(ms[0]), compare_ms);
	double most = ms[N_SAMPLES * 19 / 20];
	printf("# %s, socket %s: connect, Hello, List: median %.2f ms, 95%% %.2f ms, max %.2f ms\n",
		what, name ? name : "of the owner", ms[N_SAMPLES / 2], most, ms[N_SAMPLES - 1]);
	return most;
}

/*
 * In time, once in a few looks: the machine has other work too, and then who measures waits as
 * well. With sanitizers every request costs what weightd takes for a costly one (weightd/pace.c),
 * so that those who flood and those who do not are the same to it: then it is served, and no more.
 */
static void check_served(const struct site *s, const char *name, const char *what)
{
	double most = measure_served(s, name, what);

#ifndef __SANITIZE_ADDRESS__
	enum { N_LOOKS = 4 };
	for (int i = 1; i < N_LOOKS && most > SAMPLE_MS; i++)
		most = measure_served(s, name, what);
	if (most > SAMPLE_MS)
		fail_msg("%s: %.1f ms", what, most);
#else
	(void)most;
#endif
}

typedef void (*attack_fn)(const struct site *s, int tell);

/* A process that attacks until it is killed; it writes a byte to `tell` when it is at work. */
static pid_t attack(const struct site *s, attack_fn fn)
{
	int tell[2];
	char byte;

	assert_int_equal(pipe2(tell, O_CLOEXEC), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(ATTACK_S);
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		fn(s, tell[1]);
		_exit(1);
	}
	close(tell[1]);
	assert_int_equal(read(tell[0], &byte, 1), 1);
	close(tell[0]);
	return pid;
}

static void end_attack(pid_t pid)
{
	int status;

	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void tell_once(int tell)
{
	static bool has_told;

	if (!has_told && write(tell, "x", 1) != 1)
		_exit(2);
	has_told = true;
}

/* Requests as fast as they go, on one connection; the answers are thrown away. */
static void flood_requests(const struct site *s, int tell)
{
	static uint8_t data[WIRE_MAX_BYTES];
	Wd__Request request = WD__REQUEST__INIT;
	Wd__StatusRequest status = WD__STATUS_REQUEST__INIT;
	int sock = greeted(s);

	request.body_case = WD__REQUEST__BODY_STATUS;
	request.status = &status;
	for (uint64_t i = 2;; i++) {
		request.id = i;
		size_t n = wd__request__pack(&request, data);
		if (send(sock, data, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			usleep(100);
		while (recv(sock, data, sizeof(data), MSG_DONTWAIT) > 0)
			;
		tell_once(tell);
	}
}

/* Acquire without Hello, on connection after connection. */
static void flood_without_hello(const struct site *s, int tell)
{
	Wd__Request request = WD__REQUEST__INIT;
	Wd__Acquire m = WD__ACQUIRE__INIT;

	m.model = (char *)"atlas";
	request.id = 1;
	request.body_case = WD__REQUEST__BODY_ACQUIRE;
	request.acquire = &m;
	for (;;) {
		int sock = connect_raw(s);
		send_request(sock, &request, NULL);
		expect_error(sock, "expected Hello, found Acquire");
		close(sock);
		tell_once(tell);
	}
}

/* Somebody who may not connect and does not give up. */
static void flood_as_stranger(const struct site *s, int tell)
{
	if (setresuid(STRANGER, STRANGER, STRANGER) < 0)
		_exit(3);
	for (;;) {
		int sock = connect_raw(s);
		expect_error(sock, "this socket is not for uid 1234");
		close(sock);
		tell_once(tell);
	}
}

static void send_status_request(int sock)
{
	uint8_t data[64];
	Wd__Request request = WD__REQUEST__INIT;
	Wd__StatusRequest status = WD__STATUS_REQUEST__INIT;

	request.id = 2;
	request.body_case = WD__REQUEST__BODY_STATUS;
	request.status = &status;
	size_t n = wd__request__pack(&request, data);
	if (send(sock, data, n, MSG_NOSIGNAL) < 0)
		_exit(STOPPED_STATUS);
}

/* Asks for more than its socket holds, reads nothing, and is stopped. Woken, it goes on so until
 * it is dropped, and ends. */
static void stop_full(const struct site *s, int tell)
{
	int sock = greeted(s);

	for (int i = 0; i < 400; i++)
		send_status_request(sock);
	tell_once(tell);
	raise(SIGSTOP);
	for (;;)
		send_status_request(sock);
}

static uint32_t count_peers(const struct site *s)
{
	struct weights_client *c = connect_client(s);
	struct weights_client_status status = get_status(c);
	uint32_t n = status.n_peers;

	weights_client_status_fini(&status);
	weights_client_free(c);
	return n;
}

static void test_stopped_peer(void **state)
{
	struct site s;
	int status;

	(void)state;
	listen_start(&s, (const char *const[]){"a", "b,models=atlas", NULL});
	struct site a = listen_at(&s, "a");
	pid_t pid = attack(&a, stop_full);
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	assert_int_equal(count_peers(&s), 2);
	check_served(&s, "b", "a stopped peer with a full socket");
	check_served(&s, "a", "a stopped peer with a full socket");
	assert_int_equal(kill(pid, SIGCONT), 0);
	check_served(&s, "b", "one that asks and does not read");
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == STOPPED_STATUS);
	assert_int_equal(count_peers(&s), 1);
	site_stop(&s);
}

static void test_floods(void **state)
{
	static const struct {
		attack_fn fn;
		const char *what;
	} rows[] = {
		{flood_without_hello, "Acquire without Hello"},
		{flood_as_stranger, "a foreign uid"},
		{flood_requests, "a flood of Status"},
	};
	struct site s;

	(void)state;
	if (geteuid() != 0)
		skip();
	listen_start(&s, (const char *const[]){"a,uids=0,mode=0666", "b,models=atlas", NULL});
	struct site a = listen_at(&s, "a");
	check_served(&s, "b", "nothing else");
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		pid_t pid = attack(&a, rows[i].fn);
		check_served(&s, "b", rows[i].what);
		end_attack(pid);
	}
	site_stop(&s);
}

/* What comes faster than allowed waits; the socket's other peers have their turn, and others are
 * not concerned. */
static void test_requests(void **state)
{
	enum { RATE = 40, N_FAST = 3 * RATE };
	struct site s;
	Wd__Request request = WD__REQUEST__INIT;
	Wd__List list = WD__LIST__INIT;

	(void)state;
	listen_start(&s, (const char *const[]){"a,requests=40", "b,models=atlas", NULL});
	struct site a = listen_at(&s, "a");
	int sock = greeted(&a), gone = greeted(&a);
	double start_ms = now_ms();
	request.body_case = WD__REQUEST__BODY_LIST;
	request.list = &list;
	for (uint64_t i = 0; i < N_FAST; i++) {
		request.id = i + 2;
		send_request(sock, &request, NULL);
	}
	/* One that asked and went is forgotten before its turn. */
	send_request(gone, &request, NULL);
	close(gone);
	for (uint64_t i = 0; i < N_FAST; i++) {
		Wd__Reply *reply = receive(sock);
		assert_int_equal(reply->id, i + 2);
		wd__reply__free_unpacked(reply, NULL);
	}
	/* The first second's worth is there at once; two Hellos were of it. */
	double took_ms = now_ms() - start_ms;
	printf("# %d requests at %d a second: %.0f ms\n", N_FAST, RATE, took_ms);
	assert_true(took_ms > 1e3 * (N_FAST - RATE) / RATE * 0.9);
	assert_true(took_ms < 1e3 * (N_FAST - RATE) / RATE * 1.5 + 1000);

	pid_t pid = attack(&a, flood_requests);
	check_served(&s, "b", "a flood above its socket's requests");
	/* Its neighbour waits for three requests' turns, among two peers: not for the flood. */
	start_ms = now_ms();
	serve_one(&a);
	took_ms = now_ms() - start_ms;
	printf("# beside the flood, on its socket: %.0f ms\n", took_ms);
	assert_true(took_ms < 1000);
	end_attack(pid);
	close(sock);
	site_stop(&s);
}

/* 10,000 connections of one uid on a socket, kept open as far as that goes. */
static void hold_connections(const struct site *s, int tell)
{
	enum { N_ATTEMPTS = 10000 };
	static int fds[N_ATTEMPTS];
	struct rlimit limit;
	int n = 0;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
	for (int i = 0; i < N_ATTEMPTS; i++) {
		if (wire_connect(s->socket, NULL, &fds[n]) == 0)
			n++;
		else if (n > 0) /* no more fit into this process: of the latest one is let go */
			close(fds[--n]);
	}
	tell_once(tell);
	for (;;)
		pause();
}

static void test_connections(void **state)
{
	struct site s;

	(void)state;
	if (geteuid() != 0)
		skip();
	listen_start(&s, (const char *const[]){"a,mode=0666", "b,connections=3,mode=0666", NULL});
	struct site a = listen_at(&s, "a"), b = listen_at(&s, "b");
	pid_t pid = attack(&a, hold_connections);
	/* Half of the socket's half of 896 are one uid's. */
	assert_int_equal(count_peers(&s), 224 + 1);
	run_as(STRANGER, STRANGER, -1, is_served, &a);
	check_served(&s, NULL, "10,000 connections of one uid");
	check_served(&s, "b", "10,000 connections of one uid");
	int sock = connect_raw(&a);
	expect_error(sock, "224 connections of uid 0 are open on this socket, the most of one uid");
	expect_end(sock);

	int socks[] = {greeted(&b), greeted(&b), greeted(&b)};
	sock = connect_raw(&b);
	expect_error(sock, "3 connections of this socket are open, the most");
	expect_end(sock);
	for (unsigned i = 0; i < ARRAY_SIZE(socks); i++)
		close(socks[i]);
	/* On the owner's socket too: its group has half of what there is, and tenants theirs. */
	pid_t own = attack(&s, hold_connections);
	run_as(STRANGER, 0, -1, is_served, &s);
	check_served(&s, "b", "10,000 connections to the owner's socket");
	run_as(STRANGER, STRANGER, -1, is_served, &a);
	end_attack(own);
	/* Ten thousand refusals are a few lines. */
	assert_true(count_lines(site_log(&s)) < 200);
	end_attack(pid);
	site_stop(&s);
}

/* n connections with two leases each. */
static void hold_leases(const struct site *s, int tell, int n)
{
	for (int i = 0; i < n; i++)
		(void)acquire_both(connect_client(s));
	tell_once(tell);
	for (;;)
		pause();
}

static void hold_few(const struct site *s, int tell)
{
	hold_leases(s, tell, N_FEW);
}

static void hold_many(const struct site *s, int tell)
{
	hold_leases(s, tell, N_MANY - N_FEW);
}

/* The least time that a Status takes: other processes only ever add to it. */
static double time_status(const struct site *s)
{
	struct weights_client *c = connect_client(s);
	double least_ms = 1e9;

	for (int i = 0; i < 60; i++) {
		double start_ms = now_ms();
		struct weights_client_status status = get_status(c);
		double ms = now_ms() - start_ms;
		least_ms = ms < least_ms ? ms : least_ms;
		weights_client_status_fini(&status);
		usleep(1000);
	}
	weights_client_free(c);
	return least_ms;
}

/* A Status that grows with the square of the peers would keep everybody waiting. */
static void test_status_of_many(void **state)
{
	struct site s;

	(void)state;
	listen_start(&s, (const char *const[]){"a,connections=890,uid-connections=890", "b", NULL});
	struct site a = listen_at(&s, "a");
	pid_t few = attack(&a, hold_few);
	assert_int_equal(count_peers(&s), N_FEW + 1);
	double few_ms = time_status(&s);
	pid_t many = attack(&a, hold_many);
	assert_int_equal(count_peers(&s), N_MANY + 1);
	double many_ms = time_status(&s);
	printf("# Status of %d peers with two leases each: %.2f ms, of %d: %.2f ms\n", N_FEW,
		few_ms, N_MANY, many_ms);
	/* Four times as many take four times as long, and not sixteen times. */
	assert_true(many_ms < 12 * few_ms);
	check_served(&s, "b", "880 peers with leases");
	end_attack(few);
	end_attack(many);
	site_stop(&s);
}

/* Status as fast as it goes, on every connection that one uid may have; each has a lease or two. */
static void flood_from_many(const struct site *s, int tell)
{
	static uint8_t data[WIRE_MAX_BYTES];
	Wd__Request request = WD__REQUEST__INIT;
	Wd__StatusRequest status = WD__STATUS_REQUEST__INIT;
	int socks[N_FLOODS], n_asked[N_FLOODS] = {0};

	for (int i = 0; i < N_FLOODS; i++) {
		struct weights_client *c = connect_client(s);
		(void)acquire_both(c);
		socks[i] = weights_client_get_fd(c);
	}
	request.id = 1000;
	request.body_case = WD__REQUEST__BODY_STATUS;
	request.status = &status;
	for (;;) {
		for (int i = 0; i < N_FLOODS; i++) {
			/* Who does not read is dropped. */
			while (recv(socks[i], data, sizeof(data), MSG_DONTWAIT) > 0)
				n_asked[i] = 0;
			request.id++;
			size_t n = wd__request__pack(&request, data);
			for (; n_asked[i] < 4; n_asked[i]++)
				if (send(socks[i], data, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
					_exit(STOPPED_STATUS);
		}
		tell_once(tell);
	}
}

static void test_flood_from_many(void **state)
{
	struct site s;

	(void)state;
	listen_start(&s, (const char *const[]){"a,connections=448,uid-connections=448", "b", NULL});
	struct site a = listen_at(&s, "a");
	check_served(&s, "b", "nothing else");
	pid_t pid = attack(&a, flood_from_many);
	usleep(SETTLE_US);
	check_served(&s, "b", "a flood of Status on 448 connections");
	check_served(&s, NULL, "a flood of Status on 448 connections");
	end_attack(pid);
	/* The owner's socket has no tenants to be kept from, but others of its group. */
	pid = attack(&s, flood_from_many);
	usleep(SETTLE_US);
	check_served(&s, "b", "the same on the owner's socket");
	check_served(&s, NULL, "the same on the owner's socket");
	end_attack(pid);
	site_stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_floods),
		CASE(test_stopped_peer),
		CASE(test_requests),
		CASE(test_connections),
		CASE(test_status_of_many),
		CASE(test_flood_from_many),
	};

	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!getenv("WEIGHTD_BIN"))
		return CASE_SKIP;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
