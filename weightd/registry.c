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

/* -1: illegal. */
static const int8_t transitions[REGISTRY_N_STATES][REGISTRY_N_EVENTS] = {
	/*                    LOAD, LOADED, FAIL, RETIRE, HOLD, RELEASE, LOSE */
	[REGISTRY_ABSENT] = {REGISTRY_LOADING, -1, -1, -1, -1, -1, -1},
	[REGISTRY_LOADING] = {-1, REGISTRY_READY, REGISTRY_ABSENT, REGISTRY_DRAINING, -1, -1, -1},
	[REGISTRY_READY] = {-1, -1, -1, REGISTRY_DRAINING, -1, -1, REGISTRY_LOST},
	[REGISTRY_DRAINING] = {-1, -1, -1, -1, REGISTRY_HELD, REGISTRY_ABSENT, REGISTRY_LOST},
	[REGISTRY_HELD] = {-1, -1, -1, -1, -1, REGISTRY_ABSENT, REGISTRY_LOST},
	[REGISTRY_LOST] = {-1, -1, -1, -1, -1, REGISTRY_ABSENT, -1},
};

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
		"absent", "loading", "ready", "draining", "held", "lost"};

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

/* A generation that is on its way out goes one step further as soon as it can. */
static void registry_settle(struct registry_generation *g)
{
	bool is_leaving = g->state == REGISTRY_DRAINING || g->state == REGISTRY_HELD ||
			  g->state == REGISTRY_LOST;

	if (!is_leaving || g->is_filling || g->n_leases > 0)
		return;
	if (g->n_holds == 0)
		g->state = registry_next(g->state, REGISTRY_RELEASE);
	else if (g->state == REGISTRY_DRAINING)
		g->state = registry_next(g->state, REGISTRY_HOLD);
}

static void registry_retire(struct registry_generation *g)
{
	g->state = registry_next(g->state, REGISTRY_RETIRE);
	registry_settle(g);
}

int registry_load(struct registry *r, const char *name, bool replace, void *data,
	struct err *ret_err, uint64_t *ret_id)
{
	int rc = registry_check_name(name, ret_err);

	if (rc < 0)
		return rc;
	const struct registry_generation *loading = registry_find_state(r, name, REGISTRY_LOADING);
	const struct registry_generation *ready = registry_find_state(r, name, REGISTRY_READY);
	if (loading)
		return err_set(ret_err, EBUSY, "model %s: generation %llu of it is loading", name,
			(unsigned long long)loading->id);
	if (ready && !replace)
		return err_set(ret_err, EEXIST,
			"model %s: it is loaded already, as generation %llu; replace was not asked "
			"for",
			name, (unsigned long long)ready->id);
	if (r->n_generations >= REGISTRY_MAX_GENERATIONS)
		return err_set(ret_err, ENOSPC, "model %s: there are %u generations, the most",
			name, r->n_generations);
	rc = registry_grow(
		&r->generations, r->n_generations, &r->n_generations_room, sizeof(*r->generations));
	if (rc < 0)
		return err_set(ret_err, -rc, "model %s: out of memory", name);

	struct registry_generation *g = &r->generations[r->n_generations++];
	*g = (struct registry_generation){
		.id = ++r->last_id,
		.state = registry_next(REGISTRY_ABSENT, REGISTRY_LOAD),
		.is_filling = true,
		.data = data,
	};
	snprintf(g->model, sizeof(g->model), "%s", name);
	*ret_id = g->id;
	return 0;
}

void registry_loaded(struct registry *r, uint64_t id)
{
	struct registry_generation *g = registry_find(r, id);

	assert(g && g->is_filling);
	g->is_filling = false;
	if (g->state != REGISTRY_LOADING) {
		registry_settle(g);
		return;
	}
	struct registry_generation *old = registry_find_state(r, g->model, REGISTRY_READY);
	g->state = registry_next(g->state, REGISTRY_LOADED);
	if (old)
		registry_retire(old);
}

void registry_failed(struct registry *r, uint64_t id)
{
	struct registry_generation *g = registry_find(r, id);

	assert(g && g->is_filling);
	g->is_filling = false;
	if (g->state == REGISTRY_LOADING)
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
		if (g->state == REGISTRY_READY ||
			(g->state == REGISTRY_LOADING &&
				!registry_find_state(r, g->model, REGISTRY_READY)))
			n += (size_t)snprintf(
				names + n, sizeof(names) - n, "%s%s", n ? ", " : "", g->model);
	}
	if (!n)
		return err_set(ret_err, ENOENT, "no model %.64s: none is loaded", name);
	return err_set(ret_err, ENOENT, "no model %.64s: there %s %s", name,
		strchr(names, ',') ? "are" : "is", names);
}

static struct registry_lease *registry_find_lease(
	struct registry *r, uint64_t peer, uint64_t generation, bool is_hold)
{
	for (uint32_t i = 0; i < r->n_leases; i++) {
		struct registry_lease *l = &r->leases[i];
		if (l->peer == peer && l->generation == generation && l->is_hold == is_hold)
			return l;
	}
	return NULL;
}

int registry_acquire(struct registry *r, const char *name, uint64_t peer, uint64_t now_ns,
	struct err *ret_err, uint64_t *ret_id)
{
	struct registry_generation *g = registry_find_state(r, name, REGISTRY_READY);

	if (!g && registry_find_state(r, name, REGISTRY_LOADING))
		return REGISTRY_WAIT;
	if (!g && registry_find_state(r, name, REGISTRY_LOST))
		return err_set(ret_err, EIO, "model %s was lost: load it again", name);
	if (!g)
		return registry_refuse_name(r, name, ret_err);
	*ret_id = g->id;
	if (registry_find_lease(r, peer, g->id, false))
		return 0;
	if (r->n_leases >= REGISTRY_MAX_LEASES)
		return err_set(ret_err, ENOSPC, "model %s: there are %u leases, the most", name,
			r->n_leases);
	int rc = registry_grow(&r->leases, r->n_leases, &r->n_leases_room, sizeof(*r->leases));
	if (rc < 0)
		return err_set(ret_err, -rc, "model %s: out of memory", name);
	r->leases[r->n_leases++] =
		(struct registry_lease){.peer = peer, .generation = g->id, .since_ns = now_ns};
	g->n_leases++;
	return 0;
}

int registry_unload(struct registry *r, const char *name, struct err *ret_err)
{
	struct registry_generation *ready = registry_find_state(r, name, REGISTRY_READY);
	struct registry_generation *loading = registry_find_state(r, name, REGISTRY_LOADING);

	if (!ready && !loading)
		return registry_refuse_name(r, name, ret_err);
	if (ready)
		registry_retire(ready);
	if (loading)
		registry_retire(loading);
	return 0;
}

bool registry_is_wanted(const struct registry *r, uint64_t id)
{
	for (uint32_t i = 0; i < r->n_generations; i++)
		if (r->generations[i].id == id)
			return r->generations[i].state == REGISTRY_LOADING;
	return false;
}

static void registry_drop_lease(struct registry *r, uint32_t index)
{
	r->leases[index] = r->leases[--r->n_leases];
}

void registry_close(struct registry *r, uint64_t peer, uint64_t holder)
{
	uint32_t i = 0;

	while (i < r->n_leases) {
		struct registry_lease *l = &r->leases[i];
		if (l->is_hold || l->peer != peer) {
			i++;
			continue;
		}
		struct registry_generation *g = registry_find(r, l->generation);
		g->n_leases--;
		if (holder && !registry_find_lease(r, holder, g->id, true)) {
			l->peer = holder;
			l->is_hold = true;
			g->n_holds++;
			i++;
		} else {
			registry_drop_lease(r, i);
		}
		registry_settle(g);
	}
}

int registry_release(struct registry *r, uint64_t id, uint64_t peer, uint64_t holder,
	uint64_t now_ns, struct err *ret_err)
{
	struct registry_lease *lease = registry_find_lease(r, peer, id, false);
	struct registry_generation *g = registry_find(r, id);
	bool has_any = lease;

	(void)now_ns;
	if (lease) {
		g->n_leases--;
		registry_drop_lease(r, (uint32_t)(lease - r->leases));
	}
	lease = holder ? registry_find_lease(r, holder, id, true) : NULL;
	has_any |= lease != NULL;
	if (lease) {
		g->n_holds--;
		registry_drop_lease(r, (uint32_t)(lease - r->leases));
	}
	if (!has_any)
		return err_set(ret_err, ENOENT, "generation %llu: there is no lease on it",
			(unsigned long long)id);
	registry_settle(g);
	return 0;
}

void registry_exit(struct registry *r, uint64_t holder)
{
	uint32_t i = 0;

	while (i < r->n_leases) {
		const struct registry_lease *l = &r->leases[i];
		if (!l->is_hold || l->peer != holder) {
			i++;
			continue;
		}
		struct registry_generation *g = registry_find(r, l->generation);
		g->n_holds--;
		registry_drop_lease(r, i);
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

bool registry_take_freed(struct registry *r, struct registry_generation *ret_generation)
{
	for (uint32_t i = 0; i < r->n_generations; i++) {
		struct registry_generation *g = &r->generations[i];
		if (g->state != REGISTRY_ABSENT)
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

uint32_t registry_count_peer(const struct registry *r, uint64_t peer)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->n_leases; i++)
		n += !r->leases[i].is_hold && r->leases[i].peer == peer;
	return n;
}
