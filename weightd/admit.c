/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/admit.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/admission.h"
#include "weightd/evict.h"
#include "weightd/export.h"
#include "weightd/holders.h"
#include "weightd/loader.h"
#include "weightd/outcome.h"
#include "weightd/service-internal.h"

/* What could go for others. */
struct admit_choice {
	uint32_t n;
	struct evict_candidate candidates[REGISTRY_MAX_GENERATIONS]; /* who goes first first */
	uint64_t ids[REGISTRY_MAX_GENERATIONS];
};

static uint64_t admit_get_bytes(const struct registry_generation *g, uint32_t slot)
{
	const struct service_generation *data = g->data;
	const struct export *e = data->residencies[slot].export;

	return e ? export_count_device_bytes(e) : 0;
}

/* Does a load replace it? */
static bool admit_is_replaced(struct service *s, const struct registry_generation *g)
{
	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct registry_generation *load = registry_at(s->registry, i);
		if (load->id != g->id && load->state == REGISTRY_LOADING &&
			!strcmp(load->model, g->model))
			return true;
	}
	return false;
}

/* An Acquire waits for it on another device. */
static bool admit_is_awaited(const struct service *s, const struct registry_generation *g)
{
	const struct service_generation *data = g->data;
	const struct service_wait *w;

	for (uint32_t i = 0; i <= service_get_foreign_slot(s); i++)
		if (data->residencies[i].is_loading || data->residencies[i].is_copying)
			return true;
	TAILQ_FOREACH(w, &s->waits, entry)
	if (!strcmp(w->model, g->model))
		return true;
	return false;
}

static void admit_list(struct service *s, uint32_t slot, struct admit_choice *c)
{
	const struct registry_generation *g;

	c->n = 0;
	/* What a load replaces goes anyway. */
	for (int is_replaced = 1; is_replaced >= 0; is_replaced--)
		for (g = NULL; (g = registry_find_idle(s->registry, g));) {
			if (admit_is_replaced(s, g) != is_replaced ||
				(!is_replaced && admit_is_awaited(s, g)))
				continue;
			c->candidates[c->n] =
				(struct evict_candidate){.n_bytes = admit_get_bytes(g, slot)};
			c->ids[c->n++] = g->id;
		}
}

/* What the load replaces while somebody has it; NULL. */
static const struct registry_generation *admit_find_old(struct service *s, uint64_t id)
{
	const struct registry_generation *load = registry_find(s->registry, id);
	const struct registry_generation *old = NULL;

	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct registry_generation *g = registry_at(s->registry, i);
		if (g->id != id && g->state == REGISTRY_READY && !strcmp(g->model, load->model))
			old = g;
	}
	return old && old->n_leases + old->n_holds > 0 ? old : NULL;
}

uint64_t admit_count(struct service *s, uint64_t id, uint32_t slot)
{
	const struct registry_generation *old = admit_find_old(s, id);
	uint64_t n_bytes = old ? admit_get_bytes(old, slot) : 0;
	struct admit_choice c;

	admit_list(s, slot, &c);
	for (uint32_t i = 0; i < c.n; i++)
		n_bytes += c.candidates[i].n_bytes;
	return n_bytes;
}

static void admit_retire(struct service *s, uint64_t id, const struct admit_choice *c)
{
	const struct registry_generation *load = registry_find(s->registry, id);
	char whom[REGISTRY_NAME_MAX + 32] = "workers";

	if (load)
		snprintf(whom, sizeof(whom), "generation %llu of %s", (unsigned long long)id,
			load->model);
	for (uint32_t i = 0; i < c->n; i++) {
		const struct registry_generation *g = registry_find(s->registry, c->ids[i]);
		if (!c->candidates[i].is_chosen)
			continue;
		log_info("model %s: generation %llu makes room for %s: unused for %.1f s, %llu "
			 "bytes on the device",
			g->model, (unsigned long long)g->id, whom,
			(double)(clock_now_ns() - g->used_ns) / 1e9,
			(unsigned long long)c->candidates[i].n_bytes);
		if (load && !strcmp(load->model, g->model))
			((struct service_generation *)load->data)->has_displaced = true;
		registry_retire(s->registry, g->id);
	}
}

bool admit_evict(struct service *s, uint64_t id, uint32_t slot, uint64_t n_bytes)
{
	struct admit_choice c;

	admit_list(s, slot, &c);
	if (!evict_choose(c.candidates, c.n, n_bytes))
		return false;
	admit_retire(s, id, &c);
	service_collect(s);
	return true;
}

/* Its workers park when they are idle. */
static void admit_press(struct service *s, const struct registry_generation *g)
{
	service_tell_holders(s, g->id,
		&(struct rpc_reply_event){.kind = RPC_REPLY_PRESSURE,
			.model = g->model,
			.generation = g->id,
			.text = "a generation that follows needs its memory"});
}

bool admit_drain(struct service *s, uint64_t id, uint64_t n_bytes)
{
	const struct registry_generation *g = registry_find(s->registry, id);
	const struct registry_generation *old = admit_find_old(s, id);
	struct admit_choice c;

	if (!old)
		return false;
	uint64_t old_bytes = admit_get_bytes(old, 0);
	admit_list(s, 0, &c);
	if (!evict_choose(c.candidates, c.n, n_bytes < old_bytes ? 0 : n_bytes - old_bytes))
		return false;
	admit_retire(s, id, &c);
	log_info("model %s: generation %llu drains first: there is no room for generation %llu "
		 "beside it",
		g->model, (unsigned long long)old->id, (unsigned long long)id);
	((struct service_generation *)g->data)->waits_for = old->id;
	((struct service_generation *)g->data)->has_displaced = true;
	admit_press(s, old);
	registry_retire(s->registry, old->id);
	service_collect(s);
	return true;
}

void admit_tick(struct service *s)
{
	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct service_generation *data = registry_at(s->registry, i)->data;
		const struct registry_generation *g =
			data->waits_for ? registry_find(s->registry, data->waits_for) : NULL;
		if (g)
			admit_press(s, g);
	}
}

/* One that has ended its waiting; 0: none. */
static uint64_t admit_find_waiting(struct service *s)
{
	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct registry_generation *g = registry_at(s->registry, i);
		const struct service_generation *data = g->data;
		if (data->waits_for && (!registry_is_wanted(s->registry, g->id) ||
					       !registry_find(s->registry, data->waits_for)))
			return g->id;
	}
	return 0;
}

void admit_resume(struct service *s)
{
	uint64_t id;

	while ((id = admit_find_waiting(s))) {
		const struct registry_generation *g = registry_find(s->registry, id);
		struct err err = ERR_NULL;
		int rc;

		((struct service_generation *)g->data)->waits_for = 0;
		if (registry_is_wanted(s->registry, id))
			rc = admission_load(s, id, 0, &err);
		else
			rc = err_set(&err, ECANCELED, "the load was given up");
		if (rc < 0)
			outcome_fail(s, 0, id, rc, &err);
	}
}

int admit_heat(struct service *s, const char *model, struct err *ret_err)
{
	struct registry_generation *g = NULL;

	for (uint32_t i = 0; i < registry_count(s->registry); i++)
		if (registry_at(s->registry, i)->state == REGISTRY_WARM &&
			!strcmp(registry_at(s->registry, i)->model, model))
			g = registry_at(s->registry, i);
	if (!g || registry_heat(s->registry, g->id) < 0)
		return 0;
	uint64_t id = g->id;
	struct service_generation *data = g->data;
	data->is_heating = true;
	data->started_ns = clock_now_ns();
	data->loaded_bytes = 0;
	int rc = admission_load(s, id, 0, ret_err);
	if (rc < 0) {
		data->is_heating = false;
		registry_chilled(s->registry, id);
	}
	return rc;
}

/* ---- who has the memory ---- */

struct admit_text {
	char *text; /* [n_room] */
	size_t n, n_room;
};

static void __attribute__((format(printf, 2, 3)))
admit_print(struct admit_text *t, const char *format, ...)
{
	va_list args;

	if (t->n >= t->n_room)
		return;
	va_start(args, format);
	int n = vsnprintf(t->text + t->n, t->n_room - t->n, format, args);
	va_end(args);
	t->n += n > 0 ? (size_t)n : 0;
}

static int32_t admit_get_pid(const struct service *s, const struct registry_lease *l)
{
	const struct peer *p = l->is_hold ? NULL : peer_find(s->params->peers, l->peer);
	const struct holders_process *h = NULL;

	if (l->is_hold)
		h = holders_find_process(s->params->holders, l->peer);
	return p ? p->pid : h ? h->pid : 0;
}

void admit_explain(struct service *s, uint64_t id, struct err *err)
{
	struct admit_text t = {
		.text = err->text, .n = strlen(err->text), .n_room = sizeof(err->text)};
	bool is_first = true;

	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct registry_generation *g = registry_at(s->registry, i);
		const char *by = " by pid ";
		if (g->id == id || admit_get_bytes(g, 0) == 0)
			continue;
		admit_print(&t, "%s%s generation %llu, %llu bytes, %s",
			is_first ? "; there are " : "; ", g->model, (unsigned long long)g->id,
			(unsigned long long)admit_get_bytes(g, 0),
			g->is_pinned          ? "pinned"
			: registry_is_idle(g) ? "idle"
					      : "held");
		is_first = false;
		for (uint32_t k = 0; k < registry_count_leases(s->registry); k++) {
			const struct registry_lease *l = registry_lease_at(s->registry, k);
			if (l->generation != g->id)
				continue;
			admit_print(&t, "%s%d", by, (int)admit_get_pid(s, l));
			by = ", ";
		}
	}
}
