/* SPDX-License-Identifier: Apache-2.0 */
/* A model that is on its way back: what people see of it and want of it meanwhile. */
#include "weightd/restart.h"

#include <string.h>

#include "weightd/restart-internal.h"

static bool model_is(const struct restart_generation *g, const char *model)
{
	return !strcmp(g->adopt->record.model, model);
}

bool restart_is_awaited(const struct restart *r, const char *model)
{
	const struct restart_generation *g;

	if (!r)
		return false;
	TAILQ_FOREACH(g, &r->coming, entry)
	if (model_is(g, model) &&
		(!g->adopt->record.is_draining ||
			(g->adopt->record.is_replaced && !restart_has_current(r, model))))
		return true;
	return false;
}

uint64_t restart_unload(struct restart *r, const char *model, uint64_t expel_ns)
{
	struct restart_generation *g;
	uint64_t id = 0;

	if (!restart_is_awaited(r, model))
		return 0;
	TAILQ_FOREACH(g, &r->coming, entry)
	{
		struct state_generation *record = &g->adopt->record;
		if (!model_is(g, model))
			continue;
		if ((!record->is_draining || record->is_replaced) && record->id > id)
			id = record->id;
		record->is_draining = true;
		record->is_replaced = false;
		if (expel_ns)
			record->expel_ns = expel_ns;
	}
	return id;
}

bool restart_pin(struct restart *r, const char *model, bool is_pinned)
{
	struct restart_generation *g;

	if (!restart_is_awaited(r, model))
		return false;
	TAILQ_FOREACH(g, &r->coming, entry)
	if (model_is(g, model))
		g->adopt->record.is_pinned = is_pinned;
	return true;
}

static uint32_t model_count_missed(const struct restart *r, uint64_t id)
{
	const struct restart_wait *w;
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->n_absent; i++)
		for (uint32_t k = 0; k < r->absent[i].n_generations && !r->absent[i].is_hold; k++)
			n += r->absent[i].generations[k] == id;
	TAILQ_FOREACH(w, &r->waits, entry)
	n += w->generation == id;
	return n;
}

uint32_t restart_count(const struct restart *r)
{
	const struct restart_generation *g;
	uint32_t n = 0;

	if (!r)
		return 0;
	TAILQ_FOREACH(g, &r->coming, entry)
	n++;
	return n;
}

void restart_visit(const struct restart *r, restart_fn fn, void *userdata)
{
	const struct restart_generation *g;

	if (!r)
		return;
	TAILQ_FOREACH(g, &r->coming, entry)
	fn(&g->adopt->record, model_count_missed(r, g->adopt->record.id), userdata);
}
