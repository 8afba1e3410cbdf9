/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/restart-internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/acquire.h"
#include "weightd/service-internal.h"

/* The model's generation that is ready or warm, and with `or_loading` one that is on its way to
 * that; NULL. */
static const struct registry_generation *again_find_current(
	const struct restart *r, const char *model, bool or_loading)
{
	for (uint32_t i = registry_count(r->service->registry); i > 0; i--) {
		const struct registry_generation *g = registry_at(r->service->registry, i - 1);
		if (strcmp(g->model, model) != 0)
			continue;
		if (g->state == REGISTRY_READY || g->state == REGISTRY_WARM ||
			(or_loading && g->state == REGISTRY_LOADING))
			return g;
	}
	return NULL;
}

bool restart_has_current(const struct restart *r, const char *model)
{
	return again_find_current(r, model, false);
}

bool restart_may_serve(const struct restart_generation *g)
{
	const struct state_generation *record = &g->adopt->record;

	return !record->is_loading && (!record->is_draining || record->is_replaced);
}

bool restart_must_follow(const struct restart *r, const struct restart_generation *g)
{
	const struct state_generation *record = &g->adopt->record;
	const struct restart_generation *other;

	if (!record->is_replaced && !record->is_loading)
		return false;
	TAILQ_FOREACH(other, &r->coming, entry)
	{
		const struct state_generation *o = &other->adopt->record;
		if (other == g || o->is_loading || strcmp(o->model, record->model) != 0)
			continue;
		/* A load comes after all that may serve in its place. */
		if (record->is_loading || (!o->is_draining && o->id > record->id))
			return true;
	}
	return false;
}

enum registry_state restart_get_state(
	const struct restart *r, const struct state_generation *record)
{
	if (restart_has_current(r, record->model))
		return REGISTRY_DRAINING;
	if (record->is_warm)
		return REGISTRY_WARM;
	if (!record->is_draining)
		return REGISTRY_READY;
	if (!record->is_replaced)
		return REGISTRY_DRAINING;
	log_warn("model %s: generation %" PRIu64 " serves again: what was to take its place is not "
		 "there",
		record->model, record->id);
	return REGISTRY_READY;
}

bool restart_is_unwanted(const struct state_generation *record)
{
	return (record->is_warm || record->is_loading) && record->is_draining;
}

void restart_drop_unwanted(struct restart *r, struct restart_generation *g)
{
	log_info("model %s: generation %" PRIu64 " was unloaded on its way back",
		g->adopt->record.model, g->adopt->record.id);
	TAILQ_REMOVE(&r->coming, g, entry);
	restart_settle_claim(r, g, false);
	TAILQ_INSERT_TAIL(&r->coming, g, entry);
	restart_free_generation(r, g);
}

/* True: the file's load has begun. */
static bool again_load(struct restart *r, const struct state_generation *record, int file_fd)
{
	struct err err = ERR_NULL;
	int rc = file_fd < 0 ? err_set(&err, ENODATA, "its file did not come back") : 0;

	if (rc == 0)
		rc = service_load_again(
			r->service, record->model, record->path, file_fd, record->is_pinned, &err);
	if (rc < 0)
		log_warn("model %s: the load of generation %" PRIu64
			 " had not ended, and cannot begin again: %s",
			record->model, record->id, err.text);
	else
		log_info("model %s: the load of generation %" PRIu64
			 " had not ended, and begins again",
			record->model, record->id);
	return rc == 0;
}

void restart_load_again(struct restart *r, struct restart_generation *g)
{
	const struct state_generation *record = &g->adopt->record;
	char model[REGISTRY_NAME_MAX + 1];
	struct err err = ERR_NULL;
	int rc = 0;

	strcpy(model, record->model);
	/* What the load had taken away is not to find it on its way. */
	TAILQ_REMOVE(&r->coming, g, entry);
	if (!again_find_current(r, model, true) && !again_load(r, record, g->adopt->file_fd))
		rc = err_set(&err, ENOENT,
			"no model %s: what was to take its place did not survive weightd", model);
	TAILQ_INSERT_TAIL(&r->coming, g, entry);
	restart_free_generation(r, g);
	acquire_wake(r->service, model, rc, rc < 0 ? &err : NULL);
}
