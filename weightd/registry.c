/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/registry.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/err.h"

struct registry {
	uint64_t last_id;
	uint32_t n_generations;
	uint32_t n_generations_room;
	struct registry_generation *generations; /* ids rise */
	uint32_t n_leases;
	uint32_t n_leases_room;
	struct registry_lease *leases;
};

enum { NO = -1 };

#define ABSENT REGISTRY_ABSENT
#define LOADING REGISTRY_LOADING
#define READY REGISTRY_READY
#define WARM REGISTRY_WARM
#define DRAINING REGISTRY_DRAINING
#define HELD REGISTRY_HELD
#define LOST REGISTRY_LOST

/* clang-format off */
static const int8_t transitions[REGISTRY_N_STATES][REGISTRY_N_EVENTS] = {
	/*            LOAD     LOADED FAIL    RETIRE    HOLD  RELEASE LOSE  COOL  HEAT     RESUME */
	[ABSENT]   = {LOADING, NO,    NO,     NO,       NO,   NO,     NO,   NO,   NO,      NO},
	[LOADING]  = {NO,      READY, ABSENT, DRAINING, NO,   NO,     NO,   WARM, NO,      NO},
	[READY]    = {NO,      NO,    NO,     DRAINING, NO,   NO,     LOST, WARM, NO,      READY},
	[WARM]     = {NO,      NO,    NO,     ABSENT,   NO,   NO,     LOST, NO,   LOADING, NO},
	[DRAINING] = {NO,      NO,    NO,     NO,       HELD, ABSENT, LOST, NO,   NO,      DRAINING},
	[HELD]     = {NO,      NO,    NO,     NO,       NO,   ABSENT, LOST, NO,   NO,      DRAINING},
	[LOST]     = {NO,      NO,    NO,     NO,       NO,   ABSENT, NO,   NO,   NO,      LOST},
};
/* clang-format on */

bool registry_is_legal(enum registry_state state, enum registry_event event)
{
	return transitions[state][event] >= 0;
}

enum registry_state registry_next(enum registry_state state, enum registry_event event)
{
	assert(registry_is_legal(state, event));
	return (enum registry_state)transitions[state][event];
}

const char *registry_state_name(enum registry_state state)
{
	static const char *const names[] = {
		"absent", "loading", "ready", "warm", "draining", "held", "lost"};

	return names[state];
}

int registry_new(struct registry **ret_registry)
{
	struct registry *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	*ret_registry = r;
	return 0;
}

struct registry *registry_free(struct registry *r)
{
	if (r) {
		free(r->generations);
		free(r->leases);
		free(r);
	}
	return NULL;
}

int registry_check_name(const char *name, struct err *ret_err)
{
	static const char allowed[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	size_t n = strlen(name);

	if (n < 1 || n > REGISTRY_NAME_MAX || strspn(name, allowed) != n)
		return err_set(ret_err, EINVAL,
			"model name: expected 1 to %d of [A-Za-z0-9._-], found \"%.80s\"",
			REGISTRY_NAME_MAX, name);
	return 0;
}

/* Room for one more item; the array doubles. */
static int registry_grow(void *items, uint32_t n, uint32_t *room, size_t n_item_bytes)
{
	void **at = items;

	if (n < *room)
		return 0;
	uint32_t n_new = *room ? *room * 2 : 16;
	void *p = reallocarray(*at, n_new, n_item_bytes);
	if (!p)
		return -ENOMEM;
	*at = p;
	*room = n_new;
	return 0;
}

struct registry_generation *registry_find(struct registry *r, uint64_t id)
{
	for (uint32_t i = 0; i < r->n_generations; i++)
		if (r->generations[i].id == id)
			return &r->generations[i];
	return NULL;
}

/* The newest generation of the model in the state, NULL when there is none. */
static struct registry_generation *registry_find_state(
	struct registry *r, const char *name, enum registry_state state)
{
	for (uint32_t i = r->n_generations; i > 0; i--) {
		struct registry_generation *g = &r->generations[i - 1];
		if (g->state == state && !strcmp(g->model, name))
			return g;
	}
	return NULL;
}

/* Ready or warm: what the model's next generation follows. */
static struct registry_generation *registry_find_current(struct registry *r, const char *name)
{
	struct registry_generation *ready = registry_find_state(r, name, READY);

	return ready ? ready : registry_find_state(r, name, WARM);
}

/* A generation that is on its way out goes one step further as soon as it can. */
static void registry_settle(struct registry_generation *g)
{
	bool is_leaving = g->state == DRAINING || g->state == HELD || g->state == LOST;

	if (!is_leaving || g->is_filling || g->is_returning || g->n_leases > 0)
		return;
	if (g->n_holds == 0)
		g->state = registry_next(g->state, REGISTRY_RELEASE);
	else if (g->state == DRAINING)
		g->state = registry_next(g->state, REGISTRY_HOLD);
}

static void registry_retire_generation(struct registry_generation *g)
{
	g->state = registry_next(g->state, REGISTRY_RETIRE);
	registry_settle(g);
}

void registry_retire(struct registry *r, uint64_t id)
{
	struct registry_generation *g = registry_find(r, id);

	assert(g);
	registry_retire_generation(g);
}

/* A row at its place in the order of ids. */
static int registry_add(struct registry *r, const char *name,
	const struct registry_generation *generation, struct err *ret_err)
{
	if (r->n_generations >= REGISTRY_MAX_GENERATIONS)
		return err_set(ret_err, ENOSPC, "model %s: there are %u generations, the most",
			name, r->n_generations);
	int rc = registry_grow(
		&r->generations, r->n_generations, &r->n_generations_room, sizeof(*r->generations));
	if (rc < 0)
		return err_set(ret_err, -rc, "model %s: out of memory", name);
	uint32_t at = r->n_generations++;
	for (; at > 0 && r->generations[at - 1].id > generation->id; at--)
		r->generations[at] = r->generations[at - 1];
	r->generations[at] = *generation;
	snprintf(r->generations[at].model, sizeof(r->generations[at].model), "%s", name);
	if (generation->id > r->last_id)
		r->last_id = generation->id;
	return 0;
}

int registry_load(struct registry *r, const char *name, bool replace, void *data,
	struct err *ret_err, uint64_t *ret_id)
{
	int rc = registry_check_name(name, ret_err);

	if (rc < 0)
		return rc;
	const struct registry_generation *loading = registry_find_state(r, name, LOADING);
	const struct registry_generation *current = registry_find_current(r, name);
	if (loading)
		return err_set(ret_err, EBUSY, "model %s: generation %llu of it is loading", name,
			(unsigned long long)loading->id);
	if (current && !replace)
		return err_set(ret_err, EEXIST,
			"model %s: it is loaded already, as generation %llu; replace was not asked "
			"for",
			name, (unsigned long long)current->id);
	const struct registry_generation g = {
		.id = r->last_id + 1,
		.state = registry_next(ABSENT, REGISTRY_LOAD),
		.is_filling = true,
		.is_pinned = current && current->is_pinned,
		.data = data,
	};
	rc = registry_add(r, name, &g, ret_err);
	if (rc == 0)
		*ret_id = g.id;
	return rc;
}

void registry_loaded(struct registry *r, uint64_t id, uint64_t now_ns)
{
	struct registry_generation *g = registry_find(r, id);

	assert(g && g->is_filling);
	g->is_filling = false;
	g->used_ns = now_ns;
	if (g->state != LOADING) {
		registry_settle(g);
		return;
	}
	struct registry_generation *old = registry_find_current(r, g->model);
	g->state = registry_next(g->state, REGISTRY_LOADED);
	if (old)
		registry_retire_generation(old);
}

void registry_failed(struct registry *r, uint64_t id)
{
	struct registry_generation *g = registry_find(r, id);

	assert(g && g->is_filling);
	g->is_filling = false;
	if (g->state == LOADING)
		g->state = registry_next(g->state, REGISTRY_FAIL);
	else
		registry_settle(g);
}

/* "A, B" of the models that can be had; as many as fit. */
static int registry_refuse_name(struct registry *r, const char *name, struct err *ret_err)
{
	char names[ERR_TEXT_BYTES] = "";
	size_t n = 0;

	for (uint32_t i = 0; i < r->n_generations && n < sizeof(names); i++) {
		const struct registry_generation *g = &r->generations[i];
		if (g->state == READY || g->state == WARM ||
			(g->state == LOADING && !registry_find_current(r, g->model)))
			n += (size_t)snprintf(
				names + n, sizeof(names) - n, "%s%s", n ? ", " : "", g->model);
	}
	if (!n)
		return err_set(ret_err, ENOENT, "no model %.64s: none is loaded", name);
	return err_set(ret_err, ENOENT, "no model %.64s: there %s %s", name,
		strchr(names, ',') ? "are" : "is", names);
}

static struct registry_lease *registry_find_lease(
	const struct registry *r, uint64_t peer, uint64_t generation, bool is_hold)
{
	for (uint32_t i = 0; i < r->n_leases; i++) {
		struct registry_lease *l = &r->leases[i];
		if (l->peer == peer && l->generation == generation && l->is_hold == is_hold)
			return l;
	}
	return NULL;
}

/* A second one is the same. */
static int registry_add_lease(struct registry *r, struct registry_generation *g, uint64_t peer,
	bool is_hold, uint64_t now_ns)
{
	if (registry_find_lease(r, peer, g->id, is_hold))
		return 0;
	if (r->n_leases >= REGISTRY_MAX_LEASES)
		return -ENOSPC;
	int rc = registry_grow(&r->leases, r->n_leases, &r->n_leases_room, sizeof(*r->leases));
	if (rc < 0)
		return rc;
	r->leases[r->n_leases++] = (struct registry_lease){
		.peer = peer, .generation = g->id, .since_ns = now_ns, .is_hold = is_hold};
	if (is_hold)
		g->n_holds++;
	else
		g->n_leases++;
	return 0;
}

static int registry_refuse_lease(const char *name, int rc, struct err *ret_err)
{
	if (rc == -ENOSPC)
		return err_set(ret_err, ENOSPC, "model %s: there are %d leases, the most", name,
			REGISTRY_MAX_LEASES);
	return rc < 0 ? err_set(ret_err, -rc, "model %s: out of memory", name) : 0;
}

int registry_acquire(struct registry *r, const char *name, uint64_t peer, uint64_t now_ns,
	struct err *ret_err, uint64_t *ret_id)
{
	struct registry_generation *g = registry_find_state(r, name, READY);

	if (!g && (registry_find_state(r, name, LOADING) || registry_find_state(r, name, WARM)))
		return REGISTRY_WAIT;
	if (!g && registry_find_state(r, name, LOST))
		return err_set(ret_err, EIO, "model %s was lost: load it again", name);
	if (!g)
		return registry_refuse_name(r, name, ret_err);
	int rc = registry_add_lease(r, g, peer, false, now_ns);
	if (rc < 0)
		return registry_refuse_lease(name, rc, ret_err);
	*ret_id = g->id;
	return 0;
}

int registry_unload(struct registry *r, const char *name, struct err *ret_err)
{
	struct registry_generation *current = registry_find_current(r, name);
	struct registry_generation *loading = registry_find_state(r, name, LOADING);

	if (!current && !loading)
		return registry_refuse_name(r, name, ret_err);
	if (current)
		registry_retire_generation(current);
	if (loading)
		registry_retire_generation(loading);
	return 0;
}

bool registry_is_wanted(const struct registry *r, uint64_t id)
{
	for (uint32_t i = 0; i < r->n_generations; i++)
		if (r->generations[i].id == id)
			return r->generations[i].state == LOADING;
	return false;
}

static void registry_drop_lease(struct registry *r, struct registry_lease *l)
{
	struct registry_generation *g = registry_find(r, l->generation);

	if (l->is_hold)
		g->n_holds--;
	else
		g->n_leases--;
	*l = r->leases[--r->n_leases];
}

/* A lease ends; the hold of the holder takes its place where there is one. */
static void registry_end_lease(
	struct registry *r, struct registry_lease *l, uint64_t holder, uint64_t now_ns)
{
	struct registry_generation *g = registry_find(r, l->generation);

	if (holder && !registry_find_lease(r, holder, g->id, true)) {
		l->peer = holder;
		l->is_hold = true;
		g->n_leases--;
		g->n_holds++;
	} else {
		registry_drop_lease(r, l);
	}
	if (g->n_leases == 0)
		g->used_ns = now_ns;
	registry_settle(g);
}

void registry_close(struct registry *r, uint64_t peer, uint64_t holder, uint64_t now_ns)
{
	/* From the end: the last row takes the place of one that goes. */
	for (uint32_t i = r->n_leases; i > 0; i--) {
		struct registry_lease *l = &r->leases[i - 1];
		if (!l->is_hold && l->peer == peer)
			registry_end_lease(r, l, holder, now_ns);
	}
}

void registry_expel(
	struct registry *r, uint64_t id, uint64_t peer, uint64_t holder, uint64_t now_ns)
{
	struct registry_lease *l = registry_find_lease(r, peer, id, false);

	if (l)
		registry_end_lease(r, l, holder, now_ns);
}

int registry_release(struct registry *r, uint64_t id, uint64_t peer, uint64_t holder,
	uint64_t now_ns, struct err *ret_err)
{
	struct registry_lease *lease = registry_find_lease(r, peer, id, false);
	struct registry_lease *hold = holder ? registry_find_lease(r, holder, id, true) : NULL;

	if (!lease && !hold)
		return err_set(ret_err, ENOENT,
			"generation %llu: this connection has no lease on it",
			(unsigned long long)id);
	if (hold)
		registry_drop_lease(r, hold);
	/* Looked for anew: it may have moved. */
	lease = registry_find_lease(r, peer, id, false);
	if (lease)
		registry_end_lease(r, lease, 0, now_ns);
	else
		registry_settle(registry_find(r, id));
	return 0;
}

void registry_exit(struct registry *r, uint64_t holder)
{
	for (uint32_t i = r->n_leases; i > 0; i--) {
		struct registry_lease *l = &r->leases[i - 1];
		if (!l->is_hold || l->peer != holder)
			continue;
		struct registry_generation *g = registry_find(r, l->generation);
		registry_drop_lease(r, l);
		registry_settle(g);
	}
}

void registry_lose(struct registry *r, uint64_t id)
{
	struct registry_generation *g = registry_find(r, id);

	if (!g || g->is_filling || !registry_is_legal(g->state, REGISTRY_LOSE))
		return;
	g->state = registry_next(g->state, REGISTRY_LOSE);
	registry_settle(g);
}

bool registry_is_idle(const struct registry_generation *g)
{
	return g->state == READY && g->n_leases == 0 && g->n_holds == 0 && !g->is_pinned &&
	       !g->is_returning;
}

/* Used before it; those of one time in order of id. */
static bool registry_is_older(
	const struct registry_generation *a, const struct registry_generation *b)
{
	return a->used_ns < b->used_ns || (a->used_ns == b->used_ns && a->id < b->id);
}

struct registry_generation *registry_find_idle(
	struct registry *r, const struct registry_generation *after)
{
	struct registry_generation *best = NULL;

	for (uint32_t i = 0; i < r->n_generations; i++) {
		struct registry_generation *g = &r->generations[i];
		if (registry_is_idle(g) && (!after || registry_is_older(after, g)) &&
			(!best || registry_is_older(g, best)))
			best = g;
	}
	return best;
}

int registry_pin(struct registry *r, const char *name, bool is_pinned, struct err *ret_err)
{
	if (!registry_find_current(r, name) && !registry_find_state(r, name, LOADING))
		return registry_refuse_name(r, name, ret_err);
	for (uint32_t i = 0; i < r->n_generations; i++)
		if (!strcmp(r->generations[i].model, name))
			r->generations[i].is_pinned = is_pinned;
	return 0;
}

bool registry_cool(struct registry *r, uint64_t id)
{
	struct registry_generation *g = registry_find(r, id);

	if (!g || !registry_is_idle(g))
		return false;
	g->state = registry_next(g->state, REGISTRY_COOL);
	return true;
}

int registry_heat(struct registry *r, uint64_t id)
{
	struct registry_generation *g = registry_find(r, id);

	assert(g);
	if (registry_find_state(r, g->model, LOADING))
		return -EBUSY;
	g->state = registry_next(g->state, REGISTRY_HEAT);
	g->is_filling = true;
	return 0;
}

void registry_chilled(struct registry *r, uint64_t id)
{
	struct registry_generation *g = registry_find(r, id);

	assert(g && g->is_filling);
	g->is_filling = false;
	if (g->state == LOADING)
		g->state = registry_next(g->state, REGISTRY_COOL);
	else
		registry_settle(g);
}

int registry_adopt(struct registry *r, uint64_t id, const char *name, enum registry_state state,
	void *data, uint64_t now_ns, struct err *ret_err)
{
	int rc = registry_check_name(name, ret_err);

	if (rc < 0)
		return rc;
	bool is_second = (state == READY || state == WARM) && registry_find_current(r, name);
	if (id == 0 || registry_find(r, id) || is_second ||
		(state != READY && state != WARM && state != DRAINING && state != HELD))
		return err_set(ret_err, EINVAL,
			"model %s: expected a new generation, ready or warm once, draining or "
			"held, found %llu, %s",
			name, (unsigned long long)id, registry_state_name(state));
	const struct registry_generation g = {
		.id = id,
		.state = state,
		.is_returning = state != WARM, /* which nobody has */
		.used_ns = now_ns,
		.data = data,
	};
	return registry_add(r, name, &g, ret_err);
}

int registry_adopt_hold(struct registry *r, uint64_t id, uint64_t holder, uint64_t now_ns)
{
	struct registry_generation *g = registry_find(r, id);

	return g ? registry_add_lease(r, g, holder, true, now_ns) : -ENOENT;
}

int registry_resume(struct registry *r, uint64_t id, uint64_t peer, uint64_t holder,
	uint64_t now_ns, struct err *ret_err)
{
	struct registry_generation *g = registry_find(r, id);

	if (!g || !registry_is_legal(g->state, REGISTRY_RESUME) || g->is_filling)
		return err_set(ret_err, ENOENT, "generation %llu is not to be had back",
			(unsigned long long)id);
	struct registry_lease *hold = holder ? registry_find_lease(r, holder, id, true) : NULL;
	if (hold && !registry_find_lease(r, peer, id, false)) {
		hold->peer = peer;
		hold->is_hold = false;
		g->n_holds--;
		g->n_leases++;
	} else {
		int rc = registry_add_lease(r, g, peer, false, now_ns);
		if (rc < 0)
			return registry_refuse_lease(g->model, rc, ret_err);
		hold = holder ? registry_find_lease(r, holder, id, true) : NULL;
		if (hold)
			registry_drop_lease(r, hold);
	}
	g->state = registry_next(g->state, REGISTRY_RESUME);
	return 0;
}

void registry_end_returns(struct registry *r)
{
	for (uint32_t i = 0; i < r->n_generations; i++) {
		struct registry_generation *g = &r->generations[i];
		if (!g->is_returning)
			continue;
		g->is_returning = false;
		registry_settle(g);
	}
}

uint64_t registry_get_last_id(const struct registry *r)
{
	return r->last_id;
}

void registry_set_last_id(struct registry *r, uint64_t id)
{
	if (id > r->last_id)
		r->last_id = id;
}

bool registry_take_freed(struct registry *r, struct registry_generation *ret_generation)
{
	for (uint32_t i = 0; i < r->n_generations; i++) {
		struct registry_generation *g = &r->generations[i];
		if (g->state != ABSENT)
			continue;
		*ret_generation = *g;
		r->n_generations--;
		memmove(g, g + 1, (r->n_generations - i) * sizeof(*g));
		return true;
	}
	return false;
}

uint32_t registry_count(const struct registry *r)
{
	return r->n_generations;
}

struct registry_generation *registry_at(struct registry *r, uint32_t index)
{
	return &r->generations[index];
}

uint32_t registry_count_leases(const struct registry *r)
{
	return r->n_leases;
}

const struct registry_lease *registry_lease_at(const struct registry *r, uint32_t index)
{
	return &r->leases[index];
}

bool registry_has_lease(const struct registry *r, uint64_t id, uint64_t peer)
{
	return registry_find_lease(r, peer, id, false) != NULL;
}

uint32_t registry_count_peer(const struct registry *r, uint64_t peer)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->n_leases; i++)
		n += !r->leases[i].is_hold && r->leases[i].peer == peer;
	return n;
}
