/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of several tenants: what each shows and allows, and that nobody waits for another. */
#include "tests/e2e/weightd-site.h"

#include <grp.h>
#include <sys/socket.h>
#include <time.h>

enum {
	STRANGER = 1234, /* a uid and a gid that nobody has */
	N_SAMPLES = 150,
	SAMPLE_MS = 50,     /* within which others are served */
	STOPPED_STATUS = 9, /* exit of one that was dropped */
	N_MANY = 880,
	N_FEW = N_MANY / 4,
};

/* weightd with `atlas` and `other`, and a --listen for each of the texts: its socket is DIR/NAME,
 * the text being "NAME,OPTION...". */
static void start(struct site *s, const char *const *listens)
{
	char atlas[4200], other[4200], texts[4][256];
	const char *args[16] = {"--model", atlas, "--model", other};
	int n = 4;

	snprintf(atlas, sizeof(atlas), "atlas=%s", model_path());
	snprintf(other, sizeof(other), "other=%s", model_path());
	site_init(s);
	/* Strangers are stopped by weightd, not by the directory. */
	assert_int_equal(chmod(s->dir, 0755), 0);
	for (int i = 0; listens[i]; i++) {
		snprintf(texts[i], sizeof(texts[i]), "%s/%s", s->dir, listens[i]);
		args[n++] = "--listen";
		args[n++] = texts[i];
	}
	site_spawn(s, args, 0);
	site_wait_ready(s);
}

/* The same site, seen from another of its sockets. */
static struct site at(const struct site *s, const char *name)
{
	struct site other = *s;

	snprintf(other.socket, sizeof(other.socket), "%s/%s", s->dir, name);
	return other;
}

static int try_acquire(struct weights_client *c, const char *model, struct err *e)
{
	const struct weights_client_device *d = weights_client_get_device(c);
	struct weights_client_acquired a;
	int rc = weights_client_acquire(c, model, d->uuid, d->driver_uuid, e, &a);

	if (rc == 0)
		weights_client_acquired_fini(&a);
	return rc;
}

static int acquire_both(struct weights_client *c)
{
	struct err e = ERR_NULL;

	return try_acquire(c, "atlas", &e) || try_acquire(c, "other", &e);
}

static void expect_refusal(int rc, int code, const struct err *e, const char *text)
{
	if (rc != code || strcmp(e->text, text))
		fail_msg("expected %d \"%s\", found %d \"%s\"", code, text, rc, e->text);
}

/* ---- what is shown ---- */

static void check_models(struct weights_client *c, uint32_t n, const char *first)
{
	struct weights_client_status lists[2];
	struct err e = ERR_NULL;

	check(weights_client_list(c, &e, &lists[0]), &e, "list");
	lists[1] = get_status(c);
	for (unsigned i = 0; i < ARRAY_SIZE(lists); i++) {
		assert_int_equal(lists[i].n_models, n);
		assert_string_equal(lists[i].models[0].name, first);
		weights_client_status_fini(&lists[i]);
	}
}

static void check_hidden(struct weights_client *c, const char *hidden, const char *text)
{
	struct weights_client_acquired a;
	struct err e = ERR_NULL;

	expect_refusal(try_acquire(c, hidden, &e), -ENOENT, &e, text);
	expect_refusal(weights_client_describe(c, hidden, &e, &a), -ENOENT, &e, text);
}

static void test_two_tenants(void **state)
{
	struct site s;
	struct err e = ERR_NULL;

	(void)state;
	start(&s, (const char *const[]){"a,models=atlas", "b,models=o*+new", NULL});
	struct site site_a = at(&s, "a"), site_b = at(&s, "b");
	struct weights_client *owner = connect_client(&s), *a = connect_client(&site_a),
			      *b = connect_client(&site_b);
	check_models(owner, 2, "atlas");
	check_models(a, 1, "atlas");
	check_models(b, 1, "other");
	check_hidden(a, "other", "no model other on this socket: it has atlas");
	check_hidden(a, "absent", "no model absent on this socket: it has atlas");
	check_hidden(b, "atlas", "no model atlas on this socket: it has other");
	check_hidden(b, "new", "no model new on this socket: it has other");
	check(try_acquire(a, "atlas", &e), &e, "a");
	check(try_acquire(b, "other", &e), &e, "b");
	/* Each sees itself alone, and the owner all. */
	const struct {
		struct weights_client *client;
		uint32_t n_peers;
	} rows[] = {{a, 1}, {b, 1}, {owner, 3}};
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		struct weights_client_status status = get_status(rows[i].client);
		assert_int_equal(status.n_peers, rows[i].n_peers);
		weights_client_status_fini(&status);
	}
	weights_client_free(a);
	weights_client_free(b);
	weights_client_free(owner);
	site_stop(&s);
}

static unsigned n_events, n_attached;

static void count_event(const struct weights_client_event *event, void *userdata)
{
	(void)userdata;
	n_events++;
	n_attached += event->kind == WEIGHTS_CLIENT_ATTACHED;
	assert_string_equal(event->model, "atlas");
}

static void test_control(void **state)
{
	static const char refusal[] =
		": not allowed on this socket, which was made without control=yes";
	struct site s;
	struct err e = ERR_NULL;
	uint64_t id;
	char text[128];
	int fd = open_model();

	(void)state;
	start(&s, (const char *const[]){"a,models=atlas", "c,models=atlas+mine,control=yes", NULL});
	struct site site_a = at(&s, "a"), site_c = at(&s, "c");
	struct weights_client *a = connect_client(&site_a), *c = connect_client(&site_c),
			      *owner = connect_client(&s);
	snprintf(text, sizeof(text), "Load%s", refusal);
	expect_refusal(weights_client_load(a, "atlas", "p", fd, true, &e, &id), -EPERM, &e, text);
	snprintf(text, sizeof(text), "Unload%s", refusal);
	expect_refusal(weights_client_unload(a, "atlas", &e), -EPERM, &e, text);
	expect_refusal(weights_client_load(c, "other", "p", fd, true, &e, &id), -EPERM, &e,
		"Load: expected a name that this socket shows, found other");
	expect_refusal(weights_client_unload(c, "other", &e), -ENOENT, &e,
		"no model other on this socket: it has atlas");
	/* Both watch; a hears of its model alone, and nothing of who has it. */
	weights_client_set_event_fn(a, count_event, NULL);
	check(weights_client_watch(a, &e), &e, "watch");
	check(weights_client_load(c, "mine", "p", fd, false, &e, &id), &e, "load mine");
	check(weights_client_unload(c, "mine", &e), &e, "unload mine");
	check(try_acquire(owner, "atlas", &e), &e, "acquire");
	check_models(a, 1, "atlas");
	assert_int_equal(n_events, 0);
	check(weights_client_load(c, "atlas", "p", fd, true, &e, &id), &e, "replace");
	check_models(a, 1, "atlas");
	assert_true(n_events > 0);
	assert_int_equal(n_attached, 0);
	close(fd);
	weights_client_free(a);
	weights_client_free(c);
	weights_client_free(owner);
	site_stop(&s);
}

/* "a\0b" is no name, whatever is in front of the NUL. */
static void test_nul(void **state)
{
	struct site s;
	uint8_t data[64];
	Wd__Request request = WD__REQUEST__INIT;
	Wd__Describe m = WD__DESCRIBE__INIT;

	(void)state;
	start(&s, (const char *const[]){NULL});
	int sock = greeted(&s);
	m.model = (char *)"atlas-tail";
	request.id = 2;
	request.body_case = WD__REQUEST__BODY_DESCRIBE;
	request.describe = &m;
	size_t n = wd__request__pack(&request, data);
	uint8_t *tail = memchr(data, '-', n);
	assert_non_null(tail);
	*tail = '\0';
	assert_int_equal(wire_send(sock, data, (uint32_t)n, NULL), 0);
	expect_error(sock, "Describe: model: expected text, found a NUL in it");
	expect_end(sock);
	site_stop(&s);
}

/* ---- who may ---- */

/* A process of another user: 0 when fn says so. */
static void run_as(
	uid_t uid, gid_t gid, int group, int (*fn)(const struct site *s), const struct site *s)
{
	int status = -1;
	pid_t pid = fork();
	gid_t groups[] = {(gid_t)group};

	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(20);
		if (setgroups(group >= 0, groups) < 0 || setresgid(gid, gid, gid) < 0 ||
			setresuid(uid, uid, uid) < 0)
			_exit(100);
		_exit(fn(s));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static int is_served(const struct site *s)
{
	struct weights_client *c = NULL;
	struct weights_client_status status;

	if (weights_client_new(s->socket, WEIGHTS_CLIENT_WORKER, NULL, &c) < 0)
		return 1;
	int rc = weights_client_list(c, NULL, &status);
	if (rc == 0)
		weights_client_status_fini(&status);
	weights_client_free(c);
	return rc < 0;
}

static int is_refused(const struct site *s)
{
	int sock = connect_raw(s);
	char text[80];

	snprintf(text, sizeof(text), "this socket is not for uid %d and its groups", STRANGER);
	expect_error(sock, text);
	expect_end(sock);
	return 0;
}

static int cannot_connect(const struct site *s)
{
	int fd;

	return wire_connect(s->socket, NULL, &fd) != -EACCES;
}

static void test_uids(void **state)
{
	struct site s;

	(void)state;
	if (geteuid() != 0)
		skip();
	start(&s, (const char *const[]){
			  "u,uids=0+7,mode=0666", "g,gids=4321,mode=0666", "p,mode=0600", NULL});
	struct site u = at(&s, "u"), g = at(&s, "g"), p = at(&s, "p");
	run_as(0, 0, -1, is_served, &u);
	run_as(7, STRANGER, -1, is_served, &u);
	run_as(STRANGER, STRANGER, -1, is_refused, &u);
	/* By its own group, and by another that it is in. */
	run_as(STRANGER, 4321, -1, is_served, &g);
	run_as(STRANGER, STRANGER, 4321, is_served, &g);
	run_as(STRANGER, STRANGER, 4322, is_refused, &g);
	/* The file's mode is a judgement of its own. */
	run_as(0, 0, -1, is_served, &p);
	run_as(STRANGER, STRANGER, -1, cannot_connect, &p);
	site_stop(&s);
}

/* ---- how much ---- */

static void test_leases(void **state)
{
	static const char refusal[] = "model atlas: 2 leases of this socket are in use, the most; "
				      "one whose connection ended is, until its process does";
	struct site s;
	struct err e = ERR_NULL;

	(void)state;
	start(&s, (const char *const[]){"a,leases=2", "b,leases=2", NULL});
	struct site a = at(&s, "a"), b = at(&s, "b");
	struct holder holders[] = {holder_start(&a, "atlas"), holder_start(&a, "other")};
	struct weights_client *c = connect_client(&a), *neighbour = connect_client(&b);
	expect_refusal(try_acquire(c, "atlas", &e), -EDQUOT, &e, refusal);
	check(try_acquire(neighbour, "atlas", &e), &e, "neighbour");
	/* A connection that ended has still what its process imported. */
	holder_close(&holders[0]);
	struct weights_client *owner = connect_client(&s);
	for (uint32_t n_peers = 0, i = 0; n_peers != 4 && i < 1000; i++) {
		struct weights_client_status status = get_status(owner);
		n_peers = status.n_peers;
		weights_client_status_fini(&status);
		usleep(2000);
	}
	expect_refusal(try_acquire(c, "atlas", &e), -EDQUOT, &e, refusal);
	holder_kill(&holders[0]);
	int rc = -EDQUOT;
	for (int i = 0; i < 1000 && rc == -EDQUOT; i++, usleep(5000))
		rc = try_acquire(c, "atlas", &e);
	check(rc, &e, "after the holder's end");
	holder_kill(&holders[1]);
	weights_client_free(c);
	weights_client_free(neighbour);
	weights_client_free(owner);
	site_stop(&s);
}

static void test_bytes(void **state)
{
	struct site s;
	struct err e = ERR_NULL;

	(void)state;
	/* The model has some 6 MB: one fits, however often, and two do not. */
	start(&s, (const char *const[]){"a,bytes=9M", NULL});
	struct site a = at(&s, "a");
	struct weights_client *c = connect_client(&a), *again = connect_client(&a),
			      *owner = connect_client(&s);
	check(try_acquire(c, "atlas", &e), &e, "first");
	check(try_acquire(again, "atlas", &e), &e, "the same copy");
	assert_int_equal(try_acquire(again, "other", &e), -EDQUOT);
	if (strncmp(e.text, "other: ", 7) || !strstr(e.text, "are above its 9437184"))
		fail_msg("%s", e.text);
	check(try_acquire(owner, "other", &e), &e, "owner");
	weights_client_free(c);
	weights_client_free(again);
	weights_client_free(owner);
	site_stop(&s);
}

/* ---- others are served meanwhile ---- */

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

/* 19 of 20 in time: the machine has other work too, and then who measures waits as well. */
static void check_served(const struct site *s, const char *name, const char *what)
{
	struct site other = name ? at(s, name) : *s;
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
	if (most > SAMPLE_MS)
		fail_msg("%s: %.1f ms", what, most);
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
		alarm(50);
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
	start(&s, (const char *const[]){"a", "b,models=atlas", NULL});
	struct site a = at(&s, "a");
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
	start(&s, (const char *const[]){"a,uids=0,mode=0666", "b,models=atlas", NULL});
	struct site a = at(&s, "a");
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
	start(&s, (const char *const[]){"a,requests=40", "b,models=atlas", NULL});
	struct site a = at(&s, "a");
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
	start(&s, (const char *const[]){"a,mode=0666", "b,connections=3,mode=0666", NULL});
	struct site a = at(&s, "a"), b = at(&s, "b");
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

/* The median of the time that a Status takes. */
static double time_status(const struct site *s)
{
	struct weights_client *c = connect_client(s);
	double ms[21];

	for (unsigned i = 0; i < ARRAY_SIZE(ms); i++) {
		double start_ms = now_ms();
		struct weights_client_status status = get_status(c);
		ms[i] = now_ms() - start_ms;
		weights_client_status_fini(&status);
	}
	qsort(ms, ARRAY_SIZE(ms), sizeof(ms[0]), compare_ms);
	weights_client_free(c);
	return ms[ARRAY_SIZE(ms) / 2];
}

/* A Status that grows with the square of the peers would keep everybody waiting. */
static void test_status_of_many(void **state)
{
	struct site s;

	(void)state;
	start(&s, (const char *const[]){"a,connections=890,uid-connections=890", "b", NULL});
	struct site a = at(&s, "a");
	pid_t few = attack(&a, hold_few);
	assert_int_equal(count_peers(&s), N_FEW + 1);
	double few_ms = time_status(&s);
	pid_t many = attack(&a, hold_many);
	assert_int_equal(count_peers(&s), N_MANY + 1);
	double many_ms = time_status(&s);
	printf("# Status of %d peers with two leases each: %.2f ms, of %d: %.2f ms\n", N_FEW,
		few_ms, N_MANY, many_ms);
	/* Four times as many take four times as long, and not sixteen times. */
	assert_true(many_ms < 8 * few_ms);
	check_served(&s, "b", "880 peers with leases");
	end_attack(few);
	end_attack(many);
	site_stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_two_tenants),
		CASE(test_control),
		CASE(test_nul),
		CASE(test_uids),
		CASE(test_leases),
		CASE(test_bytes),
		CASE(test_floods),
		CASE(test_stopped_peer),
		CASE(test_requests),
		CASE(test_connections),
		CASE(test_status_of_many),
	};

	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!getenv("WEIGHTD_BIN"))
		return CASE_SKIP;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
