/* SPDX-License-Identifier: Apache-2.0 */
/* Reserve and Release: what is granted, to whom, for how long, and who hears of it. */
#include "tests/case.h"
#include "tests/e2e/weightd-site.h"

#define MIB (1024ull * 1024)

static int reserve(struct weights_client *c, uint64_t n_bytes, struct err *e)
{
	uint64_t n_got = UINT64_MAX;
	int r = weights_client_reserve(
		c, weights_client_get_device(c)->uuid, n_bytes, n_bytes, false, e, &n_got);

	if (r == 0)
		assert_int_equal(n_got, n_bytes);
	return r;
}

static struct weights_client_account get_account(struct weights_client *c)
{
	struct weights_client_status s = get_status(c);
	struct weights_client_account a = s.devices[0].account;

	assert_true(s.devices[0].has_account);
	weights_client_status_fini(&s);
	return a;
}

static uint64_t get_reserved(struct weights_client *c, int32_t pid)
{
	struct weights_client_status s = get_status(c);
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < s.n_peers; i++)
		if (s.peers[i].pid == pid)
			n_bytes += s.peers[i].reserved_bytes;
	weights_client_status_fini(&s);
	return n_bytes;
}

/* A process that has a grant; it closes its connection when told so, and lives on. */
static struct holder reserver_start(const struct site *s, uint64_t n_bytes)
{
	struct holder h;
	int down[2], up[2];
	char byte;

	assert_int_equal(pipe2(down, O_CLOEXEC), 0);
	assert_int_equal(pipe2(up, O_CLOEXEC), 0);
	h.pid = fork();
	assert_true(h.pid >= 0);
	if (h.pid == 0) {
		struct err e = ERR_NULL;
		struct weights_client *c = connect_client(s);
		if (reserve(c, n_bytes, &e) < 0 || write(up[1], "x", 1) != 1 ||
			read(down[0], &byte, 1) != 1)
			_exit(1);
		weights_client_free(c);
		pause();
		_exit(0);
	}
	close(up[1]);
	assert_int_equal(read(up[0], &byte, 1), 1);
	close(down[0]);
	close(up[0]);
	h.tell = down[1];
	return h;
}

static void on_event(const struct weights_client_event *event, void *userdata)
{
	unsigned *n_pressures = userdata;

	/* Nothing else comes without Watch. */
	assert_int_equal(event->kind, WEIGHTS_CLIENT_PRESSURE);
	++*n_pressures;
}

static void test_grants(void **state)
{
	const uint8_t nobodys[16] = {1, 2, 3};
	unsigned n_pressures = 0;
	uint64_t n_got = 0;
	struct err e = ERR_NULL;
	struct site s;

	(void)state;
	site_start(&s, (const char *const[]){"--device-budget", "64M", NULL}, 0);
	struct weights_client *c = connect_client(&s);
	weights_client_set_event_fn(c, on_event, &n_pressures);
	assert_int_equal(get_account(c).budget_bytes, 64 * MIB);
	assert_int_equal(reserve(c, 65 * MIB, &e), -ENOMEM);
	assert_non_null(strstr(e.text, "held: nothing"));
	check(reserve(c, 40 * MIB, &e), &e, "reserve");
	assert_int_equal(get_account(c).reserved_bytes, 40 * MIB);
	assert_int_equal(get_reserved(c, getpid()), 40 * MIB);
	/* It replaces what there was, and 0 gives it back. */
	check(reserve(c, 50 * MIB, &e), &e, "grow");
	check(reserve(c, 30 * MIB, &e), &e, "shrink");
	assert_int_equal(get_account(c).reserved_bytes, 30 * MIB);
	/* Of a device that is none of weightd's there is no account. */
	check(weights_client_reserve(c, nobodys, 900 * MIB, 900 * MIB, false, &e, &n_got), &e,
		"foreign");
	assert_int_equal(get_account(c).reserved_bytes, 30 * MIB);
	assert_int_equal(n_pressures, 0);

	/* Another wants more than there is: we are asked, and make room. */
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(reserve(connect_client(&s), 60 * MIB, &e) ? 1 : 0);
	for (int i = 0; i < 2000 && n_pressures < 2; i++) {
		assert_int_equal(weights_client_dispatch(c, &e), 0);
		usleep(5000);
	}
	assert_true(n_pressures >= 2); /* said again while it waits */
	assert_int_equal(get_account(c).n_waiting, 1);
	assert_int_equal(get_account(c).reserved_bytes, 30 * MIB);
	check(reserve(c, 4 * MIB, &e), &e, "make room");
	int status = -1;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	for (int i = 0; i < 1000 && get_account(c).reserved_bytes != 4 * MIB; i++)
		usleep(5000);
	assert_int_equal(get_account(c).reserved_bytes, 4 * MIB);
	weights_client_free(c);
	site_stop(&s);
}

/* Its connection may end, its memory does not until it does. */
static void test_grant_of_a_process(void **state)
{
	struct err e = ERR_NULL;
	struct site s;

	(void)state;
	site_start(&s, (const char *const[]){"--device-budget", "64M", NULL}, 0);
	struct weights_client *c = connect_client(&s);
	struct holder h = reserver_start(&s, 40 * MIB);
	assert_int_equal(get_reserved(c, h.pid), 40 * MIB);
	holder_close(&h);
	for (int i = 0; i < 1000 && get_reserved(c, h.pid); i++)
		usleep(5000);
	assert_int_equal(get_reserved(c, h.pid), 0);
	assert_int_equal(get_account(c).reserved_bytes, 40 * MIB);
	char who[64];
	snprintf(who, sizeof(who), "pid %d (model none) %llu without a connection", (int)h.pid,
		40 * MIB);
	assert_int_equal(reserve(c, 30 * MIB, &e), -ENOMEM);
	assert_non_null(strstr(e.text, who));
	check(reserve(c, 20 * MIB, &e), &e, "what is left");
	holder_kill(&h);
	for (int i = 0; i < 1000 && get_account(c).reserved_bytes != 20 * MIB; i++)
		usleep(5000);
	check(reserve(c, 60 * MIB, &e), &e, "after its end");
	/* Killed with its connection, at once. */
	check(reserve(c, 0, &e), &e, "nothing");
	h = reserver_start(&s, 64 * MIB);
	holder_kill(&h);
	for (int i = 0; i < 1000 && get_account(c).reserved_bytes; i++)
		usleep(5000);
	check(reserve(c, 64 * MIB, &e), &e, "after its death");
	weights_client_free(c);
	site_stop(&s);
}

static void test_release(void **state)
{
	struct err e = ERR_NULL;
	struct site s;

	(void)state;
	site_start_model(&s);
	struct weights_client *c = connect_client(&s);
	assert_int_equal(weights_client_release(c, 1, &e), -ENOENT);
	struct weights_client_acquired a = acquire(c, "atlas");
	weights_client_acquired_fini(&a);
	check(weights_client_release(c, 1, &e), &e, "release");
	assert_int_equal(weights_client_release(c, 1, &e), -ENOENT);
	/* The connection lives and holds nothing: an unload finds nobody. */
	a = acquire(c, "atlas");
	weights_client_acquired_fini(&a);
	check(weights_client_unload(c, "atlas", &e), &e, "unload");
	assert_string_equal(get_state(c, 1), "draining");
	check(weights_client_release(c, 1, &e), &e, "release");
	wait_state(c, 1, "gone");
	weights_client_free(c);
	site_stop(&s);
}

static void send_reserve(int sock, uint64_t id, size_t n_uuid, uint64_t n_bytes, uint64_t n_least)
{
	Wd__Request request = WD__REQUEST__INIT;
	Wd__Reserve reserve_ = WD__RESERVE__INIT;
	uint8_t uuid[32] = {0};

	reserve_.device_uuid = (ProtobufCBinaryData){.data = uuid, .len = n_uuid};
	reserve_.n_bytes = n_bytes;
	reserve_.least_bytes = n_least;
	request.id = id;
	request.body_case = WD__REQUEST__BODY_RESERVE;
	request.reserve = &reserve_;
	send_request(sock, &request, NULL);
}

static void test_bad_requests(void **state)
{
	struct site s;

	(void)state;
	site_start(&s, NULL, 0);
	int sock = greeted(&s);
	send_reserve(sock, 2, 15, 1, 1);
	expect_error(sock, "expected a uuid of 16 bytes, found 15");
	send_reserve(sock, 3, 16, 1, 2);
	expect_error(sock, "no more as the least");
	send_reserve(sock, 4, 16, UINT64_MAX, 0);
	expect_error(sock, "expected at most 9223372036854775807 bytes");
	/* None of it was a reason to go. */
	send_reserve(sock, 5, 16, 0, 0);
	Wd__Reply *reply = receive(sock);
	assert_int_equal(reply->body_case, WD__REPLY__BODY_RESERVED);
	wd__reply__free_unpacked(reply, NULL);
	close(sock);
	site_stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_grants),
		CASE(test_grant_of_a_process),
		CASE(test_release),
		CASE(test_bad_requests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
