/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry against its invariants: by example, over every sequence of events up to a small
 * depth, and over long random ones.
 */
#include "tests/case.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/registry.h"

enum { N_PEERS = 2, EXPLORE_DEPTH = 5, RANDOM_RUNS = 300, RANDOM_STEPS = 400 };

static const char *const models[] = {"a", "b"};

struct run {
	struct registry *r;
	uint64_t n_begun;
	uint64_t n_freed;
	uint64_t last_freed_sum;
	uint64_t sum_begun;
};

static void run_take_freed(struct run *run)
{
	struct registry_generation g;

	while (registry_take_freed(run->r, &g)) {
		assert_int_equal(g.state, REGISTRY_ABSENT);
		assert_int_equal(g.n_leases, 0);
		assert_int_equal(g.n_holds, 0);
		assert_false(g.is_filling);
		for (uint32_t i = 0; i < registry_count_leases(run->r); i++)
			assert_true(registry_lease_at(run->r, i)->generation != g.id);
		run->n_freed++;
		run->last_freed_sum += g.id;
	}
}

static void check_generation(struct registry *r, const struct registry_generation *g)
{
	uint32_t n_leases = 0;
	uint32_t n_holds = 0;

	for (uint32_t i = 0; i < registry_count_leases(r); i++) {
		const struct registry_lease *l = registry_lease_at(r, i);
		if (l->generation != g->id)
			continue;
		n_leases += !l->is_hold;
		n_holds += l->is_hold;
	}
	assert_int_equal(g->n_leases, n_leases);
	assert_int_equal(g->n_holds, n_holds);
	switch (g->state) {
	case REGISTRY_ABSENT: fail_msg("absent generations are taken"); break;
	case REGISTRY_LOADING:
		assert_true(g->is_filling);
		assert_int_equal(n_leases + n_holds, 0);
		break;
	case REGISTRY_READY: assert_false(g->is_filling); break;
	case REGISTRY_DRAINING: assert_true(n_leases > 0 || g->is_filling); break;
	case REGISTRY_HELD:
		assert_int_equal(n_leases, 0);
		assert_true(n_holds > 0);
		break;
	case REGISTRY_LOST: assert_true(n_leases + n_holds > 0); break;
	default: fail_msg("state %d", g->state);
	}
}

static void check(struct registry *r)
{
	uint64_t last_id = 0;

	for (uint32_t i = 0; i < registry_count(r); i++) {
		const struct registry_generation *g = registry_at(r, i);
		assert_true(g->id > last_id);
		last_id = g->id;
		check_generation(r, g);
		for (uint32_t j = 0; j < i; j++) {
			const struct registry_generation *h = registry_at(r, j);
			bool is_same = !strcmp(g->model, h->model) && g->state == h->state;
			assert_false(is_same && g->state == REGISTRY_READY);
			assert_false(is_same && g->state == REGISTRY_LOADING);
		}
	}
	for (uint32_t i = 0; i < registry_count_leases(r); i++)
		assert_non_null(registry_find(r, registry_lease_at(r, i)->generation));
}

/* The first generation that the loader works on, 0 when there is none. */
static uint64_t find_filling(struct registry *r)
{
	for (uint32_t i = 0; i < registry_count(r); i++)
		if (registry_at(r, i)->is_filling)
			return registry_at(r, i)->id;
	return 0;
}

enum {
	EVENT_LOAD = 0,                         /* [model][replace] */
	EVENT_FILLED = 4,                       /* [failed] */
	EVENT_ACQUIRE = 6,                      /* [peer][model] */
	EVENT_UNLOAD = 6 + 2 * N_PEERS,         /* [model] */
	EVENT_CLOSE = EVENT_UNLOAD + 2,         /* [peer][alive] */
	EVENT_EXIT = EVENT_CLOSE + 2 * N_PEERS, /* [peer] */
	EVENT_LOSE = EVENT_EXIT + N_PEERS,
	EVENT_N = EVENT_LOSE + 1,
};

static void do_load(struct run *run, unsigned which)
{
	uint64_t id;

	if (registry_load(run->r, models[which / 2], which % 2, NULL, NULL, &id) == 0) {
		run->n_begun++;
		run->sum_begun += id;
	}
}

static void do_acquire(struct run *run, unsigned which)
{
	uint64_t id = 0;
	uint64_t peer = which / 2 + 1;
	int rc = registry_acquire(run->r, models[which % 2], peer, 0, NULL, &id);

	if (rc == 0) {
		assert_int_equal(registry_find(run->r, id)->state, REGISTRY_READY);
		assert_string_equal(registry_find(run->r, id)->model, models[which % 2]);
		assert_true(registry_count_peer(run->r, peer) > 0);
	} else {
		assert_true(rc == REGISTRY_WAIT || rc == -ENOENT || rc == -EIO);
	}
}

static void run_step(struct run *run, unsigned event)
{
	struct registry *r = run->r;
	uint64_t filling = find_filling(r);

	if (event < EVENT_FILLED) {
		do_load(run, event - EVENT_LOAD);
	} else if (event < EVENT_ACQUIRE) {
		if (filling && event == EVENT_FILLED)
			registry_loaded(r, filling);
		else if (filling)
			registry_failed(r, filling);
	} else if (event < EVENT_UNLOAD) {
		do_acquire(run, event - EVENT_ACQUIRE);
	} else if (event < EVENT_CLOSE) {
		int rc = registry_unload(r, models[event - EVENT_UNLOAD], NULL);
		assert_true(rc == 0 || rc == -ENOENT);
	} else if (event < EVENT_EXIT) {
		uint64_t peer = (event - EVENT_CLOSE) / 2 + 1;
		registry_close(r, peer, (event - EVENT_CLOSE) % 2 ? peer : 0);
		assert_int_equal(registry_count_peer(r, peer), 0);
	} else if (event < EVENT_LOSE) {
		registry_exit(r, event - EVENT_EXIT + 1);
	} else {
		/* With their device: all that are in memory. */
		for (uint32_t i = 0; i < registry_count(r); i++)
			registry_lose(r, registry_at(r, i)->id);
		registry_lose(r, UINT64_MAX);
	}
	run_take_freed(run);
	check(r);
}

static void run_begin(struct run *run)
{
	*run = (struct run){0};
	assert_int_equal(registry_new(&run->r), 0);
}

/* Whatever came before: when everybody is gone and all is unloaded, nothing is left. */
static void run_end(struct run *run)
{
	for (unsigned m = 0; m < 2; m++)
		run_step(run, EVENT_UNLOAD + m);
	while (find_filling(run->r))
		run_step(run, EVENT_FILLED);
	for (unsigned p = 0; p < N_PEERS; p++) {
		run_step(run, EVENT_CLOSE + 2 * p);
		run_step(run, EVENT_EXIT + p);
	}
	assert_int_equal(registry_count(run->r), 0);
	assert_int_equal(registry_count_leases(run->r), 0);
	assert_int_equal(run->n_freed, run->n_begun);
	assert_int_equal(run->last_freed_sum, run->sum_begun);
	registry_free(run->r);
}

static void test_every_sequence(void **state)
{
	unsigned events[EXPLORE_DEPTH] = {0};
	int at = EXPLORE_DEPTH - 1;

	(void)state;
	while (at >= 0) {
		struct run run;
		run_begin(&run);
		/* A ready model with one lease is where it becomes interesting. */
		run_step(&run, EVENT_LOAD);
		run_step(&run, EVENT_FILLED);
		run_step(&run, EVENT_ACQUIRE);
		for (int i = 0; i < EXPLORE_DEPTH; i++)
			run_step(&run, events[i]);
		run_end(&run);
		for (at = EXPLORE_DEPTH - 1; at >= 0 && ++events[at] == EVENT_N; at--)
			events[at] = 0;
	}
}

static void test_random(void **state)
{
	uint64_t seed = 0x9e3779b97f4a7c15ull;

	(void)state;
	for (int i = 0; i < RANDOM_RUNS; i++) {
		struct run run;
		run_begin(&run);
		for (int j = 0; j < RANDOM_STEPS; j++) {
			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			run_step(&run, (unsigned)(seed >> 33) % EVENT_N);
		}
		run_end(&run);
	}
}

static void test_names(void **state)
{
	struct err err = ERR_NULL;
	char longest[REGISTRY_NAME_MAX + 2];

	(void)state;
	memset(longest, 'x', sizeof(longest));
	longest[REGISTRY_NAME_MAX + 1] = '\0';
	assert_int_equal(registry_check_name(longest, &err), -EINVAL);
	longest[REGISTRY_NAME_MAX] = '\0';
	assert_int_equal(registry_check_name(longest, NULL), 0);
	assert_int_equal(registry_check_name("Qwen3-0.6B_q8.gguf", NULL), 0);
	assert_int_equal(registry_check_name("", NULL), -EINVAL);
	assert_int_equal(registry_check_name("a/b", NULL), -EINVAL);
	assert_int_equal(registry_check_name("a b", NULL), -EINVAL);
	assert_non_null(strstr(err.text, "1 to 64"));
}

static void test_sentences(void **state)
{
	struct err err = ERR_NULL;
	struct registry *r;
	uint64_t a, b, id;

	(void)state;
	assert_int_equal(registry_new(&r), 0);
	assert_int_equal(registry_acquire(r, "x", 1, 0, &err, &id), -ENOENT);
	assert_string_equal(err.text, "no model x: none is loaded");
	assert_int_equal(registry_load(r, "a", false, NULL, NULL, &a), 0);
	assert_int_equal(registry_load(r, "a", true, NULL, &err, &id), -EBUSY);
	assert_int_equal(registry_acquire(r, "a", 1, 0, NULL, &id), REGISTRY_WAIT);
	registry_loaded(r, a);
	assert_int_equal(registry_load(r, "a", false, NULL, &err, &id), -EEXIST);
	assert_non_null(strstr(err.text, "as generation 1"));
	assert_int_equal(registry_load(r, "b", false, NULL, NULL, &b), 0);
	assert_int_equal(registry_unload(r, "x", &err), -ENOENT);
	assert_string_equal(err.text, "no model x: there are a, b");
	assert_true(registry_is_wanted(r, b));
	assert_int_equal(registry_unload(r, "b", &err), 0);
	assert_false(registry_is_wanted(r, b));
	assert_string_equal(registry_state_name(registry_find(r, b)->state), "draining");
	assert_int_equal(registry_unload(r, "b", &err), -ENOENT);
	assert_string_equal(err.text, "no model b: there is a");
	registry_free(r);
}

static void test_replace_drains(void **state)
{
	struct registry_generation freed;
	struct registry *r;
	uint64_t old, new, id;

	(void)state;
	assert_int_equal(registry_new(&r), 0);
	assert_int_equal(registry_load(r, "a", false, NULL, NULL, &old), 0);
	registry_loaded(r, old);
	assert_int_equal(registry_acquire(r, "a", 1, 5, NULL, &id), 0);
	assert_int_equal(registry_load(r, "a", true, NULL, NULL, &new), 0);
	/* Until the new one is ready the old one serves. */
	assert_int_equal(registry_acquire(r, "a", 2, 5, NULL, &id), 0);
	assert_int_equal(id, old);
	registry_loaded(r, new);
	assert_int_equal(registry_find(r, old)->state, REGISTRY_DRAINING);
	assert_int_equal(registry_acquire(r, "a", 2, 6, NULL, &id), 0);
	assert_int_equal(id, new);
	registry_close(r, 1, 0);
	assert_int_equal(registry_find(r, old)->n_leases, 1);
	registry_close(r, 2, 7);
	assert_int_equal(registry_find(r, old)->state, REGISTRY_HELD);
	assert_false(registry_take_freed(r, &freed));
	registry_exit(r, 7);
	assert_true(registry_take_freed(r, &freed));
	assert_int_equal(freed.id, old);
	assert_int_equal(registry_find(r, new)->state, REGISTRY_READY);
	registry_free(r);
}

static void test_transitions(void **state)
{
	unsigned n_legal = 0;

	(void)state;
	for (unsigned s = 0; s < REGISTRY_N_STATES; s++)
		for (unsigned e = 0; e < REGISTRY_N_EVENTS; e++)
			n_legal += registry_is_legal(s, e);
	assert_int_equal(n_legal, 12);
	assert_int_equal(registry_next(REGISTRY_LOADING, REGISTRY_LOADED), REGISTRY_READY);
	assert_false(registry_is_legal(REGISTRY_READY, REGISTRY_RELEASE));
	assert_false(registry_is_legal(REGISTRY_HELD, REGISTRY_HOLD));
}

static void adopts(void **state)
{
	struct registry *r = NULL;
	struct registry_generation g;
	struct err e = ERR_NULL;
	uint64_t id = 0;
	int data;

	(void)state;
	assert_int_equal(registry_new(&r), 0);
	assert_int_equal(registry_adopt(r, 9, "a", REGISTRY_READY, &data), 0);
	assert_int_equal(registry_adopt(r, 4, "a", REGISTRY_DRAINING, NULL), 0);
	assert_int_equal(registry_adopt(r, 9, "b", REGISTRY_READY, NULL), -EEXIST);
	assert_int_equal(registry_adopt(r, 10, "b/", REGISTRY_READY, NULL), -EINVAL);
	assert_int_equal(registry_count(r), 2);
	assert_int_equal(registry_at(r, 0)->id, 4);
	assert_int_equal(registry_at(r, 1)->id, 9);
	assert_ptr_equal(registry_find(r, 9)->data, &data);
	assert_false(registry_find(r, 9)->is_filling);
	/* Ids go on behind the largest that ever was. */
	registry_skip_ids(r, 20);
	registry_skip_ids(r, 3);
	assert_int_equal(registry_load(r, "b", false, NULL, &e, &id), 0);
	assert_int_equal(id, 21);
	registry_failed(r, id);
	assert_true(registry_take_freed(r, &g));
	/* A lease on the very one, even where Acquire would give another. */
	assert_int_equal(registry_acquire(r, "a", 1, 0, &e, &id), 0);
	assert_int_equal(id, 9);
	assert_int_equal(registry_resume(r, 4, 1, 5, &e), 0);
	assert_int_equal(registry_resume(r, 4, 1, 6, &e), 0);
	assert_int_equal(registry_count_peer(r, 1), 2);
	registry_sweep(r);
	assert_false(registry_take_freed(r, &g));
	assert_int_equal(registry_resume(r, 5, 1, 0, &e), -ENOENT);
	registry_lose(r, 9);
	assert_int_equal(registry_resume(r, 9, 2, 0, &e), -EIO);
	registry_close(r, 1, 0);
	assert_true(registry_take_freed(r, &g) && g.id == 4);
	assert_true(registry_take_freed(r, &g) && g.id == 9);
	/* Nobody came back for it. */
	assert_int_equal(registry_adopt(r, 30, "a", REGISTRY_DRAINING, NULL), 0);
	assert_false(registry_take_freed(r, &g));
	registry_sweep(r);
	assert_true(registry_take_freed(r, &g) && g.id == 30);
	/* Held by a process that did not. */
	assert_int_equal(registry_adopt(r, 31, "a", REGISTRY_DRAINING, NULL), 0);
	assert_int_equal(registry_resume(r, 31, 8, 0, &e), 0);
	registry_close(r, 8, 8);
	registry_sweep(r);
	assert_int_equal(registry_find(r, 31)->state, REGISTRY_HELD);
	assert_int_equal(registry_resume(r, 31, 9, 0, &e), -ENOENT);
	registry_exit(r, 8);
	assert_true(registry_take_freed(r, &g) && g.id == 31);
	registry_free(r);
}

static void adopts_no_more_than_it_holds(void **state)
{
	struct registry *r = NULL;

	(void)state;
	assert_int_equal(registry_new(&r), 0);
	for (uint64_t i = 1; i <= REGISTRY_MAX_GENERATIONS; i++)
		assert_int_equal(registry_adopt(r, i, "a", REGISTRY_DRAINING, NULL), 0);
	assert_int_equal(registry_adopt(r, 1000, "a", REGISTRY_DRAINING, NULL), -ENOSPC);
	registry_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_names),
		CASE(test_transitions),
		CASE(test_sentences),
		CASE(test_replace_drains),
		CASE(test_every_sequence),
		CASE(test_random),
		CASE(adopts),
		CASE(adopts_no_more_than_it_holds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
