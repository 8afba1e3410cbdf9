/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/admit.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/evict.h"
#include "weightd/export.h"
#include "weightd/holders.h"
#include "weightd/loader.h"
#include "weightd/outcome.h"
#include "weightd/service-internal.h"

/* What could go for a load. */
struct admit_choice {
	uint32_t n;
	struct evict_candidate candidates[REGISTRY_MAX_GENERATIONS]; /* who goes first first */
	uint64_t ids[REGISTRY_MAX_GENERATIONS];
	uint64_t old;       /* what the load replaces, while somebody has it; else 0 */
	uint64_t old_bytes; /* that it would give back */
};

/* Of the first device, where every load goes. */
static uint64_t admit_get_bytes(const struct registry_generation *g)
{
	const struct service_generation *data = g->data;

	return data->residencies[0].export ? data->residencies[0].export->device_bytes : 0;
}

static void admit_add(struct admit_choice *c, const struct registry_generation *g)
{
	c->candidates[c->n] = (struct evict_candidate){.n_bytes = admit_get_bytes(g)};
	c->ids[c->n++] = g->id;
}

/* What a load replaces goes anyway: before others where nobody has it, last where somebody must
 * let go of it first. */
static void admit_list(struct service *s, uint64_t id, struct admit_choice *c)
{
	const struct registry_generation *load = registry_find(s->registry, id);
	const struct registry_generation *g = NULL, *old = NULL;

	c->n = 0;
	c->old = c->old_bytes = 0;
	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		g = registry_at(s->registry, i);
		if (g->id != id && g->state == REGISTRY_READY && !strcmp(g->model, load->model))
			old = g;
	}
	if (old && old->n_leases == 0 && old->n_holds == 0) {
		admit_add(c, old);
	} else if (old) {
		c->old = old->id;
		c->old_bytes = admit_get_bytes(old);
	}
	for (g = NULL; (g = registry_find_idle(s->registry, g));)
		if (g != old && !service_is_awaited(s, g))
			admit_add(c, g);
}

static int admit_ask(struct service *s, uint64_t id, uint64_t may_free_bytes, struct err *ret_err)
{
	const struct service_generation *data = registry_find(s->registry, id)->data;
	const struct loader_request request = {
		.goal = data->is_heating ? LOAD_HEAT : LOAD_NEW,
		.generation = id,
		.source = data->source,
		.may_free_bytes = may_free_bytes,
	};

	return loader_ask(s->params->loaders[0], &request, ret_err);
}

int admit_begin(struct service *s, uint64_t id, struct err *ret_err)
{
	struct admit_choice c;
	uint64_t n_bytes;

	admit_list(s, id, &c);
	n_bytes = c.old_bytes;
	for (uint32_t i = 0; i < c.n; i++)
		n_bytes += c.candidates[i].n_bytes;
	return admit_ask(s, id, n_bytes, ret_err);
}

/* As if the loader had said so. */
static void admit_fail(struct service *s, uint64_t id, int code, const struct err *err)
{
	struct registry_generation *g = registry_find(s->registry, id);
	const struct service_generation *data = g->data;
	const struct loader_result r = {.kind = LOADER_FAILED,
		.goal = data->is_heating ? LOAD_HEAT : LOAD_NEW,
		.generation = id,
		.code = code,
		.err = *err};

	outcome_fail(s, g, &r);
}

static void admit_evict(struct service *s, uint64_t id, const struct admit_choice *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		const struct registry_generation *g = registry_find(s->registry, c->ids[i]);
		if (!c->candidates[i].is_chosen)
			continue;
		log_info("model %s: generation %llu makes room for generation %llu of %s: unused "
			 "for %.1f s, %llu bytes on the device",
			g->model, (unsigned long long)g->id, (unsigned long long)id,
			registry_find(s->registry, id)->model,
			(double)(service_now_ns() - g->used_ns) / 1e9,
			(unsigned long long)c->candidates[i].n_bytes);
		registry_retire(s->registry, g->id);
	}
}

/* It is still to be let go of by somebody. */
static void admit_drain(struct service *s, uint64_t id, uint64_t old)
{
	const struct registry_generation *g = registry_find(s->registry, id);
	const struct registry_generation *before = registry_find(s->registry, old);

	log_info("model %s: generation %llu drains first: there is no room for generation %llu "
		 "beside it",
		g->model, (unsigned long long)old, (unsigned long long)id);
	((struct service_generation *)g->data)->waits_for = old;
	service_tell_holders(s, old,
		&(struct rpc_reply_event){.kind = RPC_REPLY_PRESSURE,
			.model = before->model,
			.generation = old,
			.text = "a generation that follows needs its memory"});
	registry_retire(s->registry, old);
}

void admit_make_room(struct service *s, uint64_t id, const struct loader_result *r)
{
	struct admit_choice c;
	struct err err = ERR_NULL;
	uint64_t n_bytes = r->short_bytes;
	int rc;

	if (!registry_is_wanted(s->registry, id)) {
		rc = err_set(&err, ECANCELED, "the load was given up");
		admit_fail(s, id, rc, &err);
		return;
	}
	admit_list(s, id, &c);
	bool is_enough = evict_choose(c.candidates, c.n, n_bytes);
	bool drains = false;
	if (!is_enough && c.old) {
		n_bytes -= n_bytes < c.old_bytes ? n_bytes : c.old_bytes;
		is_enough = drains = evict_choose(c.candidates, c.n, n_bytes);
	}
	if (is_enough)
		admit_evict(s, id, &c);
	if (drains)
		admit_drain(s, id, c.old);
	if (is_enough)
		service_collect(s);
	if (drains)
		return;
	/* Somebody took a lease meanwhile: what there is has to do. */
	rc = is_enough ? admit_begin(s, id, &err) : admit_ask(s, id, 0, &err);
	if (rc < 0)
		admit_fail(s, id, rc, &err);
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
			rc = admit_begin(s, id, &err);
		else
			rc = err_set(&err, ECANCELED, "the load was given up");
		if (rc < 0)
			admit_fail(s, id, rc, &err);
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
	data->started_ns = service_now_ns();
	data->loaded_bytes = 0;
	int rc = admit_begin(s, id, ret_err);
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
		if (g->id == id || admit_get_bytes(g) == 0)
			continue;
		admit_print(&t, "%s%s generation %llu, %llu bytes, %s",
			is_first ? "; there are " : "; ", g->model, (unsigned long long)g->id,
			(unsigned long long)admit_get_bytes(g),
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
