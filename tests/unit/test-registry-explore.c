/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry against its invariants: over every interleaving of events up to a depth
 * of EXPLORE_DEPTH, each state expanded once; and over long random ones.
 *
 * Beside the registry runs a small truth of its own: which process has which generation imported.
 * Nothing may be freed that a living process has.
 */
#include "tests/case.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/cleanup.h"
#include "weightd/registry.h"

enum {
	N_MODELS = 2,
	N_PROCESSES = 2,     /* one connection each */
	MAX_GENERATIONS = 3, /* at a time; loads beyond are not tried */
	MAX_IDS = 512,       /* of a random run */
	EXPLORE_DEPTH = 10,
	EXPLORE_MAX_STATES = 1 << 20,
	RANDOM_RUNS = 300,
	RANDOM_STEPS = 400,
	HOLDER = 100, /* a process's id as a holder: HOLDER + its connection's */
};

static const char *const models[N_MODELS] = {"a", "b"};

struct run {
	struct registry *r;
	uint64_t now_ns;
	uint64_t n_begun;
	uint64_t n_freed;
	bool has[N_PROCESSES][MAX_IDS]; /* imported, by generation */
	bool is_heated[MAX_IDS];        /* it fills, and was warm before */
};

/* Is the memory of this generation nobody's? */
static void check_nobody_has(const struct run *run, uint64_t id)
{
	for (unsigned p = 0; p < N_PROCESSES; p++)
		assert_false(run->has[p][id]);
	for (uint32_t i = 0; i < registry_count_leases(run->r); i++)
		assert_true(registry_lease_at(run->r, i)->generation != id);
}

static void run_take_freed(struct run *run)
{
	struct registry_generation g;

	while (registry_take_freed(run->r, &g)) {
		assert_int_equal(g.state, REGISTRY_ABSENT);
		assert_int_equal(g.n_leases, 0);
		assert_int_equal(g.n_holds, 0);
		assert_false(g.is_filling);
		assert_false(g.is_returning); /* one that nobody knew of may come back */
		check_nobody_has(run, g.id);
		run->n_freed++;
	}
}

static uint32_t count_leases(const struct run *run, uint64_t id, bool is_hold)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < registry_count_leases(run->r); i++) {
		const struct registry_lease *l = registry_lease_at(run->r, i);
		n += l->generation == id && l->is_hold == is_hold;
	}
	return n;
}

static void check_generation(const struct run *run, const struct registry_generation *g)
{
	uint32_t n_leases = count_leases(run, g->id, false);
	uint32_t n_holds = count_leases(run, g->id, true);

	assert_int_equal(g->n_leases, n_leases);
	assert_int_equal(g->n_holds, n_holds);
	/* Whoever has it imported is known to have it. */
	for (unsigned p = 0; p < N_PROCESSES; p++) {
		bool is_known = false;
		for (uint32_t i = 0; i < registry_count_leases(run->r); i++) {
			const struct registry_lease *l = registry_lease_at(run->r, i);
			is_known |= l->generation == g->id &&
				    l->peer == p + 1 + (l->is_hold ? HOLDER : 0);
		}
		assert_int_equal(run->has[p][g->id], is_known);
	}
	switch (g->state) {
	case REGISTRY_ABSENT: fail_msg("absent generations are taken"); break;
	case REGISTRY_LOADING:
		assert_true(g->is_filling);
		assert_int_equal(n_leases + n_holds, 0);
		break;
	case REGISTRY_READY: assert_false(g->is_filling); break;
	case REGISTRY_WARM:
		assert_false(g->is_filling);
		assert_int_equal(n_leases + n_holds, 0);
		break;
	/* What drains waits for somebody who can end it. */
	case REGISTRY_DRAINING:
		assert_true(n_leases > 0 || g->is_filling || g->is_returning);
		break;
	case REGISTRY_HELD:
		assert_int_equal(n_leases, 0);
		assert_true(n_holds > 0 || g->is_returning);
		break;
	case REGISTRY_LOST: assert_true(n_leases + n_holds > 0 || g->is_returning); break;
	default: fail_msg("state %d", g->state);
	}
}

static bool is_current(const struct registry_generation *g)
{
	return g->state == REGISTRY_READY || g->state == REGISTRY_WARM;
}

/* The order of use, each idle generation once. */
static void check_idle(struct registry *r)
{
	const struct registry_generation *last = NULL, *g;
	uint32_t n = 0;

	while ((g = registry_find_idle(r, last))) {
		assert_true(registry_is_idle(g));
		assert_true(!last || last->used_ns <= g->used_ns);
		assert_int_equal(g->n_leases + g->n_holds, 0);
		assert_false(g->is_pinned);
		assert_false(g->is_returning);
		last = g;
		n++;
	}
	for (uint32_t i = 0; i < registry_count(r); i++)
		n -= registry_is_idle(registry_at(r, i));
	assert_int_equal(n, 0);
}

static void check(const struct run *run)
{
	struct registry *r = run->r;
	uint64_t last_id = 0;

	for (uint32_t i = 0; i < registry_count(r); i++) {
		const struct registry_generation *g = registry_at(r, i);
		assert_true(g->id > last_id);
		last_id = g->id;
		check_generation(run, g);
		for (uint32_t j = 0; j < i; j++) {
			const struct registry_generation *h = registry_at(r, j);
			if (strcmp(g->model, h->model) != 0)
				continue;
			assert_false(is_current(g) && is_current(h));
			assert_false(g->state == REGISTRY_LOADING && h->state == REGISTRY_LOADING);
		}
	}
	for (uint32_t i = 0; i < registry_count_leases(r); i++)
		assert_non_null(registry_find(r, registry_lease_at(r, i)->generation));
	check_idle(r);
}

/* ---- events: each says whether there was anything to do ---- */

/* The which-th generation that the loader works on; NULL. */
static struct registry_generation *find_filling(struct registry *r, unsigned which)
{
	for (uint32_t i = 0; i < registry_count(r); i++)
		if (registry_at(r, i)->is_filling && which-- == 0)
			return registry_at(r, i);
	return NULL;
}

static struct registry_generation *find_state(
	struct registry *r, unsigned model, enum registry_state state)
{
	for (uint32_t i = 0; i < registry_count(r); i++)
		if (registry_at(r, i)->state == state &&
			!strcmp(registry_at(r, i)->model, models[model]))
			return registry_at(r, i);
	return NULL;
}

static struct registry_generation *find_rank(struct registry *r, unsigned rank)
{
	return rank < registry_count(r) ? registry_at(r, rank) : NULL;
}

static bool do_load(struct run *run, unsigned which)
{
	uint64_t id;

	if (registry_count(run->r) >= MAX_GENERATIONS)
		return false;
	if (registry_load(run->r, models[which / 2], which % 2, NULL, NULL, &id) < 0)
		return false;
	run->n_begun++;
	return true;
}

/* [which][loaded, failed, chilled] */
static bool do_fill(struct run *run, unsigned which)
{
	const struct registry_generation *g = find_filling(run->r, which / 3);

	if (!g || (which % 3 == 2 && !run->is_heated[g->id]))
		return false;
	run->is_heated[g->id] = false;
	if (which % 3 == 0)
		registry_loaded(run->r, g->id, run->now_ns);
	else if (which % 3 == 1)
		registry_failed(run->r, g->id);
	else
		registry_chilled(run->r, g->id);
	return true;
}

static bool do_acquire(struct run *run, unsigned which)
{
	uint64_t id = 0;
	unsigned process = which / N_MODELS;
	int rc = registry_acquire(
		run->r, models[which % N_MODELS], process + 1, run->now_ns, NULL, &id);

	if (rc) {
		assert_true(rc == REGISTRY_WAIT || rc == -ENOENT || rc == -EIO);
		assert_null(find_state(run->r, which % N_MODELS, REGISTRY_READY));
		return false;
	}
	assert_int_equal(registry_find(run->r, id)->state, REGISTRY_READY);
	assert_string_equal(registry_find(run->r, id)->model, models[which % N_MODELS]);
	run->has[process][id] = true;
	return true;
}

static bool do_release(struct run *run, unsigned which)
{
	unsigned process = which / MAX_GENERATIONS;
	const struct registry_generation *g = find_rank(run->r, which % MAX_GENERATIONS);

	if (!g)
		return false;
	uint64_t id = g->id;
	bool had = run->has[process][id];
	run->has[process][id] = false;
	int rc = registry_release(run->r, id, process + 1, HOLDER + process + 1, run->now_ns, NULL);
	assert_int_equal(rc, had ? 0 : -ENOENT);
	return had;
}

/* All leases of a generation, of processes that do not let go. */
static bool do_expel(struct run *run, unsigned rank)
{
	const struct registry_generation *g = find_rank(run->r, rank);

	if (!g || g->n_leases == 0)
		return false;
	uint64_t id = g->id;
	for (unsigned p = 0; p < N_PROCESSES; p++)
		registry_expel(run->r, id, p + 1, HOLDER + p + 1, run->now_ns);
	assert_int_equal(registry_find(run->r, id)->n_leases, 0);
	return true;
}

/* [process][it lives on] */
static bool do_close(struct run *run, unsigned which)
{
	unsigned process = which / 2;

	if (registry_count_peer(run->r, process + 1) == 0)
		return false;
	if (which % 2 == 0)
		memset(run->has[process], 0, sizeof(run->has[process]));
	registry_close(run->r, process + 1, which % 2 ? HOLDER + process + 1 : 0, run->now_ns);
	/* Its holds of before end with it. */
	if (which % 2 == 0)
		registry_exit(run->r, HOLDER + process + 1);
	assert_int_equal(registry_count_peer(run->r, process + 1), 0);
	return true;
}

/* The process of holds, whose connection has ended or is told of later. */
static bool do_exit(struct run *run, unsigned process)
{
	if (registry_count_peer(run->r, process + 1) > 0)
		return false;
	memset(run->has[process], 0, sizeof(run->has[process]));
	registry_exit(run->r, HOLDER + process + 1);
	return true;
}

static bool do_unload(struct run *run, unsigned model)
{
	int rc = registry_unload(run->r, models[model], NULL);

	assert_true(rc == 0 || rc == -ENOENT);
	return rc == 0;
}

static bool do_cool(struct run *run, unsigned model)
{
	const struct registry_generation *g = find_state(run->r, model, REGISTRY_READY);

	if (!g)
		return false;
	uint64_t id = g->id;
	bool is_idle = registry_is_idle(g);
	assert_int_equal(registry_cool(run->r, id), is_idle);
	if (is_idle) /* its device memory goes now */
		check_nobody_has(run, id);
	return is_idle;
}

static bool do_heat(struct run *run, unsigned model)
{
	const struct registry_generation *g = find_state(run->r, model, REGISTRY_WARM);

	if (!g)
		return false;
	uint64_t id = g->id;
	int rc = registry_heat(run->r, id);
	assert_int_equal(rc, find_state(run->r, model, REGISTRY_LOADING)->id == id ? 0 : -EBUSY);
	run->is_heated[id] = rc == 0;
	return rc == 0;
}

static bool do_lose(struct run *run, unsigned rank)
{
	const struct registry_generation *g = find_rank(run->r, rank);

	if (!g || g->is_filling || !registry_is_legal(g->state, REGISTRY_LOSE))
		return false;
	registry_lose(run->r, g->id);
	registry_lose(run->r, UINT64_MAX);
	return true;
}

static bool do_pin(struct run *run, unsigned model)
{
	bool is_pinned = false;

	for (uint32_t i = 0; i < registry_count(run->r); i++)
		if (!strcmp(registry_at(run->r, i)->model, models[model]))
			is_pinned |= registry_at(run->r, i)->is_pinned;
	int rc = registry_pin(run->r, models[model], !is_pinned, NULL);
	assert_true(rc == 0 || rc == -ENOENT);
	return rc == 0;
}

/* What is described of one generation and found again: it, its pin, and who had it. */
static void adopt(struct run *run, struct registry *old, const struct registry_generation *g)
{
	uint64_t now = run->now_ns;

	enum registry_state state = g->state == REGISTRY_LOADING ? REGISTRY_WARM : g->state;

	assert_int_equal(registry_adopt(run->r, g->id, g->model, state, NULL, now, NULL), 0);
	for (uint32_t i = 0; i < registry_count_leases(old); i++) {
		const struct registry_lease *l = registry_lease_at(old, i);
		if (l->generation == g->id)
			assert_int_equal(registry_adopt_hold(run->r, g->id,
						 l->peer + (l->is_hold ? 0 : HOLDER), now),
				0);
	}
	if (g->is_pinned && (state == REGISTRY_READY || state == REGISTRY_WARM))
		assert_int_equal(registry_pin(run->r, g->model, true, NULL), 0);
}

/* weightd ends and comes back; connections are gone, processes live. What loaded for the
 * first time or was lost is not found again, and no process of ours goes on with it. */
static bool do_restart(struct run *run, unsigned which)
{
	struct registry *old = run->r;

	(void)which;
	assert_int_equal(registry_new(&run->r), 0);
	registry_set_last_id(run->r, registry_get_last_id(old));
	for (uint32_t i = 0; i < registry_count(old); i++) {
		const struct registry_generation *g = registry_at(old, i);
		if (registry_is_legal(g->state, REGISTRY_RESUME) && g->state != REGISTRY_LOST) {
			/* One that still fills drains for nothing: there is nobody to tell of. */
			if (!g->is_filling) {
				adopt(run, old, g);
				continue;
			}
		}
		run->is_heated[g->id] &= g->state == REGISTRY_LOADING;
		if (g->state == REGISTRY_WARM || run->is_heated[g->id]) {
			run->is_heated[g->id] = false;
			adopt(run, old, g);
			continue;
		}
		run->n_freed++;
		for (unsigned p = 0; p < N_PROCESSES; p++)
			run->has[p][g->id] = false;
	}
	registry_free(old);
	return true;
}

/* A process comes back to what it has. */
static bool do_resume(struct run *run, unsigned which)
{
	unsigned process = which / MAX_GENERATIONS;
	const struct registry_generation *g = find_rank(run->r, which % MAX_GENERATIONS);

	if (!g || !run->has[process][g->id])
		return false;
	uint64_t id = g->id;
	bool may = registry_is_legal(g->state, REGISTRY_RESUME);
	int rc = registry_resume(run->r, id, process + 1, HOLDER + process + 1, run->now_ns, NULL);
	assert_int_equal(rc, may ? 0 : -ENOENT);
	return may;
}

static bool do_end_returns(struct run *run, unsigned which)
{
	(void)which;
	registry_end_returns(run->r);
	return true;
}

static const struct {
	bool (*fn)(struct run *run, unsigned which);
	unsigned n;
} kinds[] = {
	{do_load, N_MODELS * 2},
	{do_fill, 2 * 3},
	{do_acquire, N_PROCESSES *N_MODELS},
	{do_release, N_PROCESSES *MAX_GENERATIONS},
	{do_expel, MAX_GENERATIONS},
	{do_close, N_PROCESSES * 2},
	{do_exit, N_PROCESSES},
	{do_unload, N_MODELS},
	{do_cool, N_MODELS},
	{do_heat, N_MODELS},
	{do_lose, MAX_GENERATIONS},
	{do_pin, N_MODELS},
	{do_restart, 1},
	{do_resume, N_PROCESSES *MAX_GENERATIONS},
	{do_end_returns, 1},
};

static unsigned count_events(void)
{
	unsigned n = 0;

	for (unsigned k = 0; k < ARRAY_SIZE(kinds); k++)
		n += kinds[k].n;
	return n;
}

/* False: there was nothing to do. */
static bool run_step(struct run *run, unsigned event)
{
	unsigned k = 0;

	while (event >= kinds[k].n)
		event -= kinds[k++].n;
	run->now_ns++;
	bool is_done = kinds[k].fn(run, event);
	run_take_freed(run);
	check(run);
	return is_done;
}

static void run_begin(struct run *run)
{
	*run = (struct run){0};
	assert_int_equal(registry_new(&run->r), 0);
}

/* Whatever came before: when everybody is gone and all is unloaded, nothing is left. */
static void run_end(struct run *run)
{
	struct registry_generation *g;

	for (unsigned m = 0; m < N_MODELS; m++)
		do_unload(run, m);
	while ((g = find_filling(run->r, 0)))
		registry_failed(run->r, g->id);
	registry_end_returns(run->r);
	for (unsigned p = 0; p < N_PROCESSES; p++) {
		do_close(run, 2 * p);
		do_exit(run, p);
	}
	run_take_freed(run);
	assert_int_equal(registry_count(run->r), 0);
	assert_int_equal(registry_count_leases(run->r), 0);
	assert_int_equal(run->n_freed, run->n_begun);
	registry_free(run->r);
}

/* ---- every interleaving ---- */

/* What of a state decides what can follow: ids and times by their order, models and processes up
 * to their names. */
struct key {
	uint8_t bytes[MAX_GENERATIONS][6];
};

static uint8_t rank_of_use(struct registry *r, const struct registry_generation *g)
{
	uint8_t rank = 0;

	for (uint32_t i = 0; i < registry_count(r) && g->state == REGISTRY_READY; i++) {
		const struct registry_generation *h = registry_at(r, i);
		rank += h->state == REGISTRY_READY && h->used_ns < g->used_ns;
	}
	return rank;
}

/* swap: bit 0 the models, bit 1 the processes. */
static struct key make_key(const struct run *run, unsigned swap)
{
	struct key key = {0};

	for (uint32_t i = 0; i < registry_count(run->r); i++) {
		const struct registry_generation *g = registry_at(run->r, i);
		uint8_t *b = key.bytes[i];
		b[0] = (uint8_t)(1 + ((unsigned)(g->model[0] - 'a') ^ (swap & 1)));
		b[1] = (uint8_t)g->state;
		b[2] = (uint8_t)(g->is_filling | g->is_pinned << 1 | g->is_returning << 2 |
				 run->is_heated[g->id] << 3);
		b[3] = rank_of_use(run->r, g);
		for (uint32_t k = 0; k < registry_count_leases(run->r); k++) {
			const struct registry_lease *l = registry_lease_at(run->r, k);
			unsigned process = (unsigned)(l->peer % HOLDER - 1) ^ (swap >> 1);
			if (l->generation == g->id)
				b[l->is_hold ? 5 : 4] |= (uint8_t)(1u << process);
		}
	}
	return key;
}

static struct key make_canonical_key(const struct run *run)
{
	struct key best = make_key(run, 0);

	for (unsigned swap = 1; swap < 4; swap++) {
		struct key key = make_key(run, swap);
		if (memcmp(&key, &best, sizeof(key)) < 0)
			best = key;
	}
	return best;
}

struct node {
	struct key key;
	uint8_t event; /* the last one of the way to it */
	uint8_t depth;
	uint32_t parent;
};

struct explorer {
	struct node *nodes; /* [n] in order of depth */
	uint32_t n;
	uint32_t *table; /* [2 * EXPLORE_MAX_STATES] 1 + index */
	uint64_t n_sequences;
};

/* True when the state is new. */
static bool explorer_add(struct explorer *e, const struct key *key, uint32_t parent, uint8_t event)
{
	uint64_t hash = 0xcbf29ce484222325ull;
	const uint8_t *bytes = (const uint8_t *)key;

	for (size_t i = 0; i < sizeof(*key); i++)
		hash = (hash ^ bytes[i]) * 0x100000001b3ull;
	uint32_t at = (uint32_t)(hash >> 32) % (2 * EXPLORE_MAX_STATES);
	for (; e->table[at]; at = (at + 1) % (2 * EXPLORE_MAX_STATES))
		if (!memcmp(&e->nodes[e->table[at] - 1].key, key, sizeof(*key)))
			return false;
	assert_true(e->n < EXPLORE_MAX_STATES);
	e->nodes[e->n] = (struct node){.key = *key,
		.event = event,
		.depth = e->n ? (uint8_t)(e->nodes[parent].depth + 1) : 0,
		.parent = parent};
	e->table[at] = ++e->n;
	return true;
}

/* The state of a node, made anew by its events. */
static void explorer_replay(const struct explorer *e, uint32_t node, struct run *run)
{
	uint8_t way[EXPLORE_DEPTH];
	unsigned n = 0;

	for (uint32_t i = node; i; i = e->nodes[i].parent)
		way[n++] = e->nodes[i].event;
	run_begin(run);
	while (n > 0)
		run_step(run, way[--n]);
}

static void explorer_expand(struct explorer *e, uint32_t node, unsigned n_events)
{
	static struct run run;

	for (unsigned event = 0; event < n_events; event++) {
		explorer_replay(e, node, &run);
		bool is_done = run_step(&run, event);
		struct key key = make_canonical_key(&run);
		e->n_sequences += is_done;
		if (is_done)
			explorer_add(e, &key, node, (uint8_t)event);
		run_end(&run);
	}
}

static void test_every_interleaving(void **state)
{
	struct explorer e = {.nodes = calloc(EXPLORE_MAX_STATES, sizeof(*e.nodes)),
		.table = calloc(2 * EXPLORE_MAX_STATES, sizeof(*e.table))};
	const struct key nothing = {0};
	unsigned n_events = count_events();
	uint32_t at = 0;

	(void)state;
	assert_non_null(e.nodes);
	assert_non_null(e.table);
	assert_true(explorer_add(&e, &nothing, 0, 0));
	for (; at < e.n && e.nodes[at].depth < EXPLORE_DEPTH; at++)
		explorer_expand(&e, at, n_events);
	printf("# %u states, %llu transitions between them, each from its own sequence of at most "
	       "%u of %u events; states %s\n",
		e.n, (unsigned long long)e.n_sequences, e.nodes[e.n - 1].depth, n_events,
		at == e.n ? "are all there are" : "at the last depth were not expanded");
	free(e.nodes);
	free(e.table);
}

static void test_random(void **state)
{
	static struct run run;
	uint64_t seed = 0x9e3779b97f4a7c15ull;

	(void)state;
	for (int i = 0; i < RANDOM_RUNS; i++) {
		run_begin(&run);
		for (int j = 0; j < RANDOM_STEPS; j++) {
			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			run_step(&run, (unsigned)(seed >> 33) % count_events());
		}
		run_end(&run);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_every_interleaving),
		CASE(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
