/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of several tenants: what each shows, whom it lets in, and how much they may have. */
#include "tests/e2e/listen-site.h"

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
	listen_start(&s, (const char *const[]){"a,models=atlas", "b,models=o*+new", NULL});
	struct site site_a = listen_at(&s, "a"), site_b = listen_at(&s, "b");
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
	listen_start(&s,
		(const char *const[]){"a,models=atlas", "c,models=atlas+mine,control=yes", NULL});
	struct site site_a = listen_at(&s, "a"), site_c = listen_at(&s, "c");
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
	struct weights_client_verified verified;
	expect_refusal(weights_client_verify(c, "other", &e, &verified), -ENOENT, &e,
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
	listen_start(&s, (const char *const[]){NULL});
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
	listen_start(&s, (const char *const[]){"u,uids=0+7,mode=0666", "g,gids=4321,mode=0666",
				 "p,mode=0600", NULL});
	struct site u = listen_at(&s, "u"), g = listen_at(&s, "g"), p = listen_at(&s, "p");
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
	listen_start(&s, (const char *const[]){"a,leases=2", "b,leases=2", NULL});
	struct site a = listen_at(&s, "a"), b = listen_at(&s, "b");
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
	listen_start(&s, (const char *const[]){"a,bytes=9M", NULL});
	struct site a = listen_at(&s, "a");
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_two_tenants),
		CASE(test_control),
		CASE(test_nul),
		CASE(test_uids),
		CASE(test_leases),
		CASE(test_bytes),
	};

	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!getenv("WEIGHTD_BIN"))
		return CASE_SKIP;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
