/* SPDX-License-Identifier: Apache-2.0 */
/* As many prefixes as there can be: who goes for one more, and for whom nobody does. */
#include "weightd/prefixes.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"
#include "weightd/peer.h"

enum { PEER = 7 };

struct world {
	struct prefixes *prefixes;
	uint64_t now_ns;
	uint64_t last_freed; /* its id */
	uint32_t n_freed;
};

static void note_freed(const struct prefix *x, void *userdata)
{
	struct world *w = userdata;

	w->last_freed = x->id;
	w->n_freed++;
}

static void world_open(struct world *w)
{
	*w = (struct world){.now_ns = 1};
	assert_int_equal(prefixes_new(note_freed, w, &w->prefixes), 0);
}

static int add(struct world *w, uint32_t socket, struct err *e, uint64_t *ret_id)
{
	const struct prefix x = {.generation = 1,
		.model = "a",
		.socket = socket,
		.n_tokens = 32,
		.tokens_fd = -1,
		.memory_fd = -1,
		.memory = {.n_bytes = 1},
		.used_ns = w->now_ns++};

	const struct prefix *spare = NULL;
	int rc = prefixes_find_spare(w->prefixes, socket, e, &spare);

	if (rc == 0 && spare)
		rc = prefixes_remove(w->prefixes, spare->id, e);
	return rc < 0 ? rc : prefixes_add(w->prefixes, &x, e, ret_id);
}

static void test_idle_ones_go(void **state)
{
	struct world w;
	struct err e = ERR_NULL;
	uint64_t ids[PREFIXES_MAX], id = 0;

	(void)state;
	world_open(&w);
	for (uint32_t i = 0; i < PREFIXES_MAX; i++)
		assert_int_equal(add(&w, i % 4, &e, &ids[i]), 0);
	assert_int_equal(w.n_freed, 0);
	/* The first is in use, the second was just now: the third is the one. */
	assert_int_equal(prefixes_take(w.prefixes, ids[0], PEER, w.now_ns++, &e), 0);
	assert_int_equal(prefixes_take(w.prefixes, ids[1], PEER, w.now_ns++, &e), 0);
	assert_int_equal(prefixes_drop(w.prefixes, ids[1], PEER, w.now_ns++, &e), 0);
	assert_int_equal(add(&w, 5, &e, &id), 0);
	assert_int_equal(w.n_freed, 1);
	assert_int_equal(w.last_freed, ids[2]);
	assert_int_equal(prefixes_count(w.prefixes), PREFIXES_MAX);
	assert_non_null(prefixes_find(w.prefixes, id));
	prefixes_free(w.prefixes);
}

static void test_none_goes_that_is_in_use(void **state)
{
	struct world w;
	struct err e = ERR_NULL;
	uint64_t id = 0;

	(void)state;
	world_open(&w);
	for (uint32_t i = 0; i < PREFIXES_MAX; i++) {
		assert_int_equal(add(&w, i % 4, &e, &id), 0);
		assert_int_equal(prefixes_take(w.prefixes, id, PEER, w.now_ns++, &e), 0);
	}
	assert_int_equal(add(&w, 5, &e, &id), -ENOSPC);
	assert_non_null(strstr(e.text, "256 prefixes are published, 0 of them by this socket"));
	assert_int_equal(w.n_freed, 0);
	prefixes_free(w.prefixes);
}

/* One socket's publishers leave room to the others', and take none from them. */
static void test_share_of_a_socket(void **state)
{
	struct world w;
	struct err e = ERR_NULL;
	uint64_t others = 0, first = 0, id = 0;

	(void)state;
	world_open(&w);
	assert_int_equal(add(&w, 2, &e, &others), 0);
	for (uint32_t i = 0; i < PREFIXES_MAX_SOCKET; i++) {
		assert_int_equal(add(&w, 1, &e, &id), 0);
		first = first ? first : id;
	}
	/* Its own goes, though another one has not been used for longer. */
	assert_int_equal(add(&w, 1, &e, &id), 0);
	assert_int_equal(w.last_freed, first);
	assert_non_null(prefixes_find(w.prefixes, others));
	for (uint32_t i = 0; i < prefixes_count(w.prefixes); i++)
		if (prefixes_at(w.prefixes, i)->socket == 1)
			assert_int_equal(prefixes_take(w.prefixes, prefixes_at(w.prefixes, i)->id,
						 PEER, 1, &e),
				0);
	assert_int_equal(add(&w, 1, &e, &id), -ENOSPC);
	assert_non_null(strstr(e.text, "129 prefixes are published, 128 of them by this socket"));
	assert_int_equal(add(&w, 2, &e, &id), 0);
	assert_int_equal(w.n_freed, 1);
	prefixes_free(w.prefixes);
}

static void test_leases_of_a_socket(void **state)
{
	struct world w;
	struct err e = ERR_NULL;
	uint64_t ids[PREFIXES_MAX_SOCKET];
	const uint32_t n_peers = PREFIXES_MAX_SOCKET_LEASES / PREFIXES_MAX_SOCKET;

	(void)state;
	world_open(&w);
	for (uint32_t i = 0; i < PREFIXES_MAX_SOCKET; i++)
		assert_int_equal(add(&w, 1, &e, &ids[i]), 0);
	for (uint32_t i = 0; i < PREFIXES_MAX_SOCKET * n_peers; i++)
		assert_int_equal(prefixes_take(w.prefixes, ids[i % PREFIXES_MAX_SOCKET],
					 peer_make_id(1, 1 + i / PREFIXES_MAX_SOCKET), 1, &e),
			0);
	/* What one has is no more; others' peers have room. */
	assert_int_equal(prefixes_take(w.prefixes, ids[0], peer_make_id(1, 1), 1, &e), 0);
	assert_int_equal(prefixes_take(w.prefixes, ids[0], peer_make_id(1, 9999), 1, &e), -ENOSPC);
	assert_non_null(strstr(e.text, "8192 of them by this socket, the most"));
	assert_int_equal(prefixes_take(w.prefixes, ids[0], peer_make_id(2, 1), 1, &e), 0);
	assert_int_equal(prefixes_drop(w.prefixes, ids[1], peer_make_id(1, 1), 1, &e), 0);
	assert_int_equal(prefixes_take(w.prefixes, ids[0], peer_make_id(1, 9999), 1, &e), 0);
	prefixes_free(w.prefixes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_idle_ones_go),
		CASE(test_none_goes_that_is_in_use),
		CASE(test_share_of_a_socket),
		CASE(test_leases_of_a_socket),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
