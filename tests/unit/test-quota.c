/* SPDX-License-Identifier: Apache-2.0 */
/* What the peers of a socket hold together, against what they may; what is shown and hidden. */
#include "weightd/quota.h"

#include <errno.h>
#include <event2/event.h>
#include <string.h>
#include <sys/syscall.h>

#include "proto/util/err.h"
#include "proto/weightd.pb-c.h"
#include "tests/case.h"
#include "weightd/access.h"
#include "weightd/holders.h"
#include "weightd/peer.h"
#include "weightd/registry.h"
#include "weightd/rpc-scan.h"
#include "weightd/shown.h"

static uint64_t get_bytes(const void *data)
{
	return *(const uint64_t *)data;
}

struct world {
	struct registry *registry;
	uint64_t bytes[3]; /* of the models a, b, c */
	uint64_t ids[3];
	struct access access[2]; /* of the sockets 0 and 1 */
	struct peer peers[4];    /* 0 and 1 of socket 1, 2 of socket 2, 3 of --socket */
	struct peer_list list;
	struct holders *holders; /* NULL: nobody is told apart */
};

static void world_init(struct world *w, const char *listen)
{
	static const char *const names[] = {"a", "b", "c"};
	static const uint32_t sockets[] = {1, 1, 2, 0};
	struct err e = ERR_NULL;

	*w = (struct world){.bytes = {100, 30, 7}};
	TAILQ_INIT(&w->list);
	assert_int_equal(registry_new(&w->registry), 0);
	access_init_owner(&w->access[0], "o", 0600);
	if (access_parse(listen, &e, &w->access[1]) < 0)
		fail_msg("%s", e.text);
	for (uint32_t i = 0; i < ARRAY_SIZE(names); i++) {
		assert_int_equal(
			registry_load(w->registry, names[i], false, &w->bytes[i], &e, &w->ids[i]),
			0);
		registry_loaded(w->registry, w->ids[i], 1);
	}
	for (uint32_t i = 0; i < ARRAY_SIZE(sockets); i++) {
		w->peers[i].id = peer_make_id(sockets[i], i + 1);
		w->peers[i].access = &w->access[sockets[i] > 0];
		TAILQ_INSERT_TAIL(&w->list, &w->peers[i], entry);
	}
}

static int take(struct world *w, uint32_t peer, uint32_t model, struct err *e)
{
	uint64_t id;
	int rc = quota_check_lease(w->registry, &w->list, w->holders, NULL, &w->peers[peer],
		w->ids[model], get_bytes, e);

	if (rc == 0)
		rc = registry_acquire(w->registry, (char[]){(char)('a' + (int)model), 0},
			w->peers[peer].id, 1, e, &id);
	return rc;
}

static void test_leases(void **state)
{
	struct world w;
	struct err e = ERR_NULL;

	(void)state;
	world_init(&w, "s,leases=2");
	assert_int_equal(take(&w, 0, 0, &e), 0);
	assert_int_equal(take(&w, 1, 1, &e), 0);
	assert_int_equal(take(&w, 1, 1, &e), 0); /* it has that one */
	assert_int_equal(take(&w, 0, 2, &e), -EDQUOT);
	assert_non_null(strstr(e.text, "model c: 2 leases of this socket are in use, the most"));
	/* Others are not concerned, nor the owner at all. */
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(take(&w, 3, i, &e), 0);
	assert_int_equal(take(&w, 2, 0, &e), 0);
	assert_int_equal(take(&w, 2, 1, &e), 0);
	assert_int_equal(take(&w, 2, 2, &e), -EDQUOT);
	/* A connection that ended is charged until its process is gone. */
	registry_close(w.registry, w.peers[0].id, w.peers[0].id, 1);
	assert_int_equal(take(&w, 1, 2, &e), -EDQUOT);
	registry_exit(w.registry, w.peers[0].id);
	assert_int_equal(take(&w, 1, 2, &e), 0);
	registry_free(w.registry);
}

static void ignore_exit(uint64_t id, void *userdata)
{
	(void)id;
	(void)userdata;
}

/* Who lost its connection, or ended it to begin anew, is not in its own way. */
static void test_own_hold(void **state)
{
	struct event_base *base = event_base_new();
	struct world w;
	struct err e = ERR_NULL;

	(void)state;
	world_init(&w, "s,leases=1,bytes=100");
	assert_int_equal(holders_new(base, ignore_exit, NULL, &w.holders), 0);
	w.peers[0].process = w.peers[1].process = 7;
	w.peers[0].pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	w.peers[1].pidfd = w.peers[2].pidfd = w.peers[3].pidfd = -1;
	assert_int_equal(take(&w, 0, 0, &e), 0);
	uint64_t holder = holders_add(w.holders, &w.peers[0]);
	assert_int_equal(holder, w.peers[0].id);
	registry_close(w.registry, w.peers[0].id, holder, 1);
	TAILQ_REMOVE(&w.list, &w.peers[0], entry);
	/* Another generation is one more, the same one is what it has. */
	assert_int_equal(take(&w, 1, 1, &e), -EDQUOT);
	assert_non_null(strstr(e.text, "model b: 1 lease of this socket is in use"));
	assert_int_equal(take(&w, 1, 0, &e), 0);
	struct quota_usage u = quota_count(w.registry, &w.list, w.holders, NULL, 1, get_bytes);
	assert_int_equal(u.n_leases, 1);
	assert_int_equal(u.weights_bytes, 100);
	/* It lets go of the lease: the hold is charged again, and others have no part in it. */
	registry_close(w.registry, w.peers[1].id, holder, 1);
	u = quota_count(w.registry, &w.list, w.holders, NULL, 1, get_bytes);
	assert_int_equal(u.n_leases, 1);
	w.peers[1].process = 8;
	assert_int_equal(take(&w, 1, 0, &e), -EDQUOT);
	registry_free(w.registry);
	holders_free(w.holders);
	close(w.peers[0].pidfd);
	event_base_free(base);
}

/* Each hold is charged but where a connection of its own process has the generation again. */
static void test_holds_of_several(void **state)
{
	struct event_base *base = event_base_new();
	struct world w;
	struct err e = ERR_NULL;

	(void)state;
	world_init(&w, "s,leases=9");
	assert_int_equal(holders_new(base, ignore_exit, NULL, &w.holders), 0);
	for (uint32_t i = 0; i < ARRAY_SIZE(w.peers); i++)
		w.peers[i].pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	/* Two processes of socket 1, which hold a and b, and b; one of socket 2, which holds a. */
	for (uint32_t i = 0; i < 3; i++)
		w.peers[i].process = 7 + i;
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(take(&w, (const uint32_t[]){0, 0, 1, 2}[i],
					 (const uint32_t[]){0, 1, 1, 0}[i], &e),
			0);
	for (uint32_t i = 0; i < 3; i++)
		registry_close(w.registry, w.peers[i].id, holders_add(w.holders, &w.peers[i]), 1);
	/* The first is back, as a connection that is told apart from its holder. */
	w.peers[0].id = peer_make_id(1, 9);
	struct quota_usage u = quota_count(w.registry, &w.list, w.holders, NULL, 1, get_bytes);
	assert_int_equal(u.n_leases, 3);
	assert_int_equal(take(&w, 0, 1, &e), 0);
	u = quota_count(w.registry, &w.list, w.holders, NULL, 1, get_bytes);
	assert_int_equal(u.n_leases, 3);
	assert_int_equal(take(&w, 0, 2, &e), 0);
	u = quota_count(w.registry, &w.list, w.holders, NULL, 1, get_bytes);
	assert_int_equal(u.n_leases, 4);
	u = quota_count(w.registry, &w.list, w.holders, NULL, 2, get_bytes);
	assert_int_equal(u.n_leases, 1);
	registry_free(w.registry);
	holders_free(w.holders);
	for (uint32_t i = 0; i < ARRAY_SIZE(w.peers); i++)
		close(w.peers[i].pidfd);
	event_base_free(base);
}

static uint64_t fail_bytes(const void *data)
{
	(void)data;
	fail_msg("%s", "what nothing limits was counted");
	return 0;
}

/* Counting is for sockets that have a limit. */
static void test_no_limit(void **state)
{
	struct world w;
	struct err e = ERR_NULL;

	(void)state;
	world_init(&w, "s");
	assert_int_equal(take(&w, 0, 0, &e), 0);
	assert_int_equal(quota_check_reserve(w.registry, &w.list, w.holders, NULL, &w.peers[0],
				 1000, fail_bytes, &e),
		0);
	registry_free(w.registry);
}

static void test_bytes(void **state)
{
	struct world w;
	struct err e = ERR_NULL;

	(void)state;
	world_init(&w, "s,bytes=130");
	assert_int_equal(take(&w, 0, 0, &e), 0);
	assert_int_equal(take(&w, 1, 0, &e), 0); /* the same copy */
	assert_int_equal(take(&w, 1, 1, &e), 0);
	struct quota_usage u = quota_count(w.registry, &w.list, w.holders, NULL, 1, get_bytes);
	assert_int_equal(u.n_leases, 3);
	assert_int_equal(u.weights_bytes, 130);
	assert_int_equal(take(&w, 0, 2, &e), -EDQUOT);
	assert_string_equal(e.text,
		"c: 7 bytes more than the 130 of weights and 0 of reservations that this socket "
		"holds are above its 130");
	assert_int_equal(take(&w, 2, 2, &e), 0);
	registry_close(w.registry, w.peers[1].id, w.peers[1].id, 1);
	assert_int_equal(take(&w, 0, 2, &e), -EDQUOT);
	registry_exit(w.registry, w.peers[1].id);
	assert_int_equal(take(&w, 0, 2, &e), 0);

	/* 107 of weights; 23 are left for reservations of all its peers. */
	assert_int_equal(quota_check_reserve(w.registry, &w.list, w.holders, NULL, &w.peers[0], 24,
				 get_bytes, &e),
		-EDQUOT);
	assert_int_equal(quota_check_reserve(w.registry, &w.list, w.holders, NULL, &w.peers[0], 23,
				 get_bytes, &e),
		0);
	w.peers[0].reserved_bytes = 20;
	assert_int_equal(quota_check_reserve(w.registry, &w.list, w.holders, NULL, &w.peers[1], 4,
				 get_bytes, &e),
		-EDQUOT);
	assert_int_equal(quota_check_reserve(w.registry, &w.list, w.holders, NULL, &w.peers[0], 23,
				 get_bytes, &e),
		0);
	assert_int_equal(take(&w, 1, 1, &e), -EDQUOT);
	/* Above already, for the limit is not what it was: less may be had, more not. */
	w.peers[0].reserved_bytes = UINT64_MAX;
	assert_int_equal(quota_check_reserve(w.registry, &w.list, w.holders, NULL, &w.peers[0], 100,
				 get_bytes, &e),
		0);
	assert_int_equal(quota_check_reserve(w.registry, &w.list, w.holders, NULL, &w.peers[1],
				 UINT64_MAX, get_bytes, &e),
		-EDQUOT);
	assert_int_equal(quota_check_reserve(w.registry, &w.list, w.holders, NULL, &w.peers[3],
				 UINT64_MAX, get_bytes, &e),
		0);
	registry_free(w.registry);
}

static void test_shown(void **state)
{
	struct world w;
	struct err e = ERR_NULL;
	struct peer *tenant = &w.peers[0], *owner = &w.peers[3];

	(void)state;
	world_init(&w, "s,models=a+c+x*");
	assert_int_equal(shown_check(w.registry, tenant, "a", &e), 0);
	assert_int_equal(shown_check(w.registry, owner, "b", &e), 0);
	assert_int_equal(shown_check(w.registry, tenant, "x1", &e), 0);
	/* Hidden and absent: the same words, and only what is shown in them. */
	assert_int_equal(shown_check(w.registry, tenant, "b", &e), -ENOENT);
	assert_string_equal(e.text, "no model b on this socket: it has a, c");
	assert_int_equal(shown_refuse(w.registry, tenant, "x1", -ENOENT, &e), -ENOENT);
	assert_string_equal(e.text, "no model x1 on this socket: it has a, c");
	e = (struct err){.text = "as it was"};
	assert_int_equal(shown_refuse(w.registry, owner, "x1", -ENOENT, &e), -ENOENT);
	assert_int_equal(shown_refuse(w.registry, tenant, "a", -EIO, &e), -EIO);
	assert_int_equal(shown_refuse(w.registry, tenant, "a", 0, &e), 0);
	assert_string_equal(e.text, "as it was");

	assert_true(shown_peer(tenant, &w.peers[1]));
	assert_true(shown_peer(owner, tenant));
	assert_false(shown_peer(tenant, owner));
	assert_false(shown_peer(tenant, &w.peers[2]));
	assert_true(shown_event(tenant, "a", 0));
	assert_true(shown_event(tenant, NULL, 0));
	assert_false(shown_event(tenant, "b", 0));
	assert_false(shown_event(tenant, "a", 17));
	assert_false(shown_pids(tenant));
	assert_true(shown_pids(owner));
	assert_true(shown_event(owner, "b", 17));
	registry_free(w.registry);
	world_init(&w, "s,models=y");
	assert_int_equal(shown_check(w.registry, tenant, "a", &e), -ENOENT);
	assert_string_equal(e.text, "no model a on this socket: it has none");
	registry_free(w.registry);
}

/* A Request by hand: id 1, then body 4 (Acquire) with field 1 (model). */
static void test_scan(void **state)
{
	static const struct {
		const char *bytes;
		uint32_t n_bytes;
		const char *refusal;
	} rows[] = {
		{"\x08\x01\x22\x05\x0a\x03"
		 "abc",
			9, NULL},
		{"\x08\x01\x22\x05\x0a\x03"
		 "a\0c",
			9, "Acquire: model: expected text, found a NUL in it"},
		{"\x08\x01\x22\x05\x0a\x03"
		 "ab\0",
			9, "Acquire: model: expected text, found a NUL in it"},
		/* Load (5): path is field 2. */
		{"\x08\x01\x2a\x06\x0a\x01\x6d\x12\x01\0", 10, "Load: path: expected text"},
		/* A uuid, field 2 of Acquire, is bytes; field 100 nobody knows. */
		{"\x08\x01\x22\x03\x12\x01\0", 7, NULL},
		{"\x08\x01\x22\x04\xa2\x06\x01\0", 8, NULL},
		/* Cut, and lengths beyond the end: unpacking judges these. */
		{"\x08\x01\x22\x05\x0a", 5, NULL},
		{"\x08\x01\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 13, NULL},
		{"\x08", 1, NULL},
		{"\x0b", 1, NULL},
		{"", 0, NULL},
	};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		struct err e = ERR_NULL;
		/* Of its exact size, so that a sanitizer sees what is read behind it. */
		uint8_t *data = malloc(rows[i].n_bytes + !rows[i].n_bytes);
		assert_non_null(data);
		memcpy(data, rows[i].bytes, rows[i].n_bytes);
		int rc = rpc_scan_request(data, rows[i].n_bytes, &e);
		free(data);
		assert_int_equal(rc, rows[i].refusal ? -EBADMSG : 0);
		if (rows[i].refusal && !strstr(e.text, rows[i].refusal))
			fail_msg("row %u: %s", i, e.text);
	}
}

/* An Acquire of nothing but empty refusals, as many as the packet has room for. */
static void test_scan_many(void **state)
{
	static const struct {
		uint32_t n;
		int rc;
	} rows[] = {{4, 0}, {63, 0}, {64, -EBADMSG}, {8000, -EBADMSG}};

	(void)state;
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		static uint8_t data[5 + 2 * 8000];
		uint32_t n_bytes = 2 * rows[i].n;
		struct err e = ERR_NULL;
		Wd__Acquire acquire = WD__ACQUIRE__INIT;
		Wd__Refusal refusal = WD__REFUSAL__INIT, *one = &refusal;

		/* Of the schema: tag and no bytes. */
		acquire.n_refusals = 1;
		acquire.refusals = &one;
		assert_int_equal(wd__acquire__pack(&acquire, data), 2);
		const uint8_t tag = data[0];
		memcpy(data, (const uint8_t[]){0x08, 0x01, 0x22}, 3);
		data[3] = (uint8_t)(n_bytes | 0x80);
		data[4] = (uint8_t)(n_bytes >> 7);
		uint32_t at = 5;
		for (uint32_t k = 0; k < rows[i].n; k++) {
			data[at++] = tag;
			data[at++] = 0;
		}
		assert_int_equal(rpc_scan_request(data, at, &e), rows[i].rc);
		if (rows[i].rc)
			assert_string_equal(e.text, "packet: expected at most 64 messages in it");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_leases),
		CASE(test_own_hold),
		CASE(test_holds_of_several),
		CASE(test_no_limit),
		CASE(test_bytes),
		CASE(test_shown),
		CASE(test_scan),
		CASE(test_scan_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
