/* SPDX-License-Identifier: Apache-2.0 */
/* A generation that does not come back, and processes that still have its memory. */
#include "weightd/restart.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/acquire.h"
#include "weightd/admission.h"
#include "weightd/corrupt.h"
#include "weightd/export.h"
#include "weightd/restart-internal.h"
#include "weightd/service-internal.h"

static bool lost_is_held(const struct restart *r, uint64_t id)
{
	const struct restart_wait *w;

	TAILQ_FOREACH(w, &r->waits, entry)
	if (w->generation == id)
		return true;
	return restart_is_missed(r, id);
}

static uint64_t lost_count_device_bytes(const struct state_residency *residency)
{
	uint64_t n_bytes = residency->n_lost_bytes;

	for (uint32_t i = 0; i < residency->n_allocs; i++)
		if (residency->allocs[i].handle == EXPORT_OPAQUE_FD ||
			residency->allocs[i].handle == EXPORT_DMA_BUF)
			n_bytes += residency->allocs[i].n_bytes;
	return n_bytes;
}

/* What weightd imported of it goes, what others did does not. */
static void lost_keep_account(struct restart *r, struct restart_generation *g)
{
	const struct state_generation *record = &g->adopt->record;
	struct service_generation *data = g->data;
	uint32_t slot;

	for (uint32_t i = 0; i < record->n_residencies; i++) {
		const struct state_residency *from = &record->residencies[i];
		if (!restart_find_device(r, from, &slot))
			continue;
		data->residencies[slot].remnant =
			(struct service_remnant){.n_device_bytes = lost_count_device_bytes(from),
				.manifest_inode = from->manifest.inode};
		admission_adopt(r->service, record->id, slot, record->model,
			data->residencies[slot].remnant.n_device_bytes);
		/* One memfd is for all devices. */
		uint64_t n_staged = from->n_placed_bytes[MANIFEST_PLACEMENT_STAGED];
		if (g->adopt->memfd < 0 && n_staged > data->n_memfd_bytes)
			data->n_memfd_bytes = n_staged;
	}
}

/* For the moment before it is lost. */
static enum registry_state lost_get_state(
	const struct restart *r, const struct state_generation *record)
{
	return record->is_draining || restart_has_current(r, record->model) ? REGISTRY_DRAINING
									    : REGISTRY_READY;
}

/* False: the registry cannot have it, and nobody will know of it. */
static bool lost_enter(struct restart *r, struct restart_generation *g)
{
	const struct state_generation *record = &g->adopt->record;
	const struct state_residency *first = &record->residencies[0];
	bool is_held = lost_is_held(r, record->id);
	struct err err = ERR_NULL;

	if (record->n_residencies == 0) /* nobody can have it */
		return false;
	int rc = g->data ? 0 : restart_make_data(r, g, &err);

	if (rc == 0 && !g->data->source) /* an import that failed before it began */
		rc = -ENOMEM;
	if (rc == 0)
		rc = registry_adopt(r->service->registry, record->id, record->model,
			lost_get_state(r, record), g->data, clock_now_ns(), &err);
	if (rc < 0) {
		log_warn("model %s: generation %" PRIu64 ": who has it is not accounted: %s",
			record->model, record->id, err.text);
		return false;
	}
	/* What takes its place has the pin too. */
	if (record->is_pinned && registry_pin(r->service->registry, record->model, true, NULL) < 0)
		log_debug("model %s: its pin did not come back", record->model);
	struct service_summary *summary = &g->data->summary;
	memcpy(summary->architecture, first->architecture, sizeof(summary->architecture));
	memcpy(summary->format, first->format, sizeof(summary->format));
	summary->n_parameters = first->n_parameters;
	summary->n_tensors = first->n_tensors;
	restart_recall_holds(r, record->id);
	(void)service_release_exports(r->service, record->id, g->data);
	if (is_held)
		lost_keep_account(r, g);
	g->data = NULL;
	return true;
}

/* "; held by pid 5, 7": those who have not come back yet. */
static void lost_print_absent(const struct restart *r, uint64_t id, struct err *text)
{
	size_t n = strlen(text->text);
	uint32_t n_pids = 0;

	for (uint32_t i = 0; i < r->n_absent && n < sizeof(text->text); i++)
		for (uint32_t k = 0; k < r->absent[i].n_generations && r->absent[i].pid; k++)
			if (r->absent[i].generations[k] == id && n < sizeof(text->text))
				n += (size_t)snprintf(text->text + n, sizeof(text->text) - n,
					"%s%d", n_pids++ ? ", " : "; held by pid ",
					(int)r->absent[i].pid);
}

static void lost_forget(struct restart *r, struct restart_generation *g, const struct err *err)
{
	uint64_t id = g->adopt->record.id;

	restart_answer(r, id, err);
	for (uint32_t i = r->n_absent; i > 0; i--)
		restart_drop_absent_generation(r, i - 1, id);
	if (!g->data)
		return;
	(void)service_release_exports(r->service, id, g->data);
	service_free_generation(g->data);
	g->data = NULL;
}

void restart_lose(struct restart *r, struct restart_generation *g, const struct err *why)
{
	const struct state_generation *record = &g->adopt->record;
	char model[REGISTRY_NAME_MAX + 1];
	uint64_t id = record->id;
	bool is_corrupt = g->is_corrupt, was_lost = record->lost_why;
	uint64_t clean_ns = record->clean_ns;
	struct err err = ERR_NULL, reason = *why, holders = *why;

	strcpy(model, record->model);
	err_set(&err, ENOENT, "model %s: generation %" PRIu64 " did not survive weightd: %s", model,
		id, reason.text);
	if (!was_lost) /* else that is said already */
		log_warn("%s", err.text);
	lost_print_absent(r, id, &holders);
	/* What its source lends goes with that, perhaps. */
	if (g->has_claim && g->claim_fd < 0)
		g->claim_fd = fcntl(g->adopt->file_fd, F_DUPFD_CLOEXEC, 0);
	/* A load that takes its place is not to find it on its way, and nobody its descriptors. */
	TAILQ_REMOVE(&r->coming, g, entry);
	bool is_entered = lost_enter(r, g);
	if (is_entered)
		restart_answer(r, id, NULL);
	else
		lost_forget(r, g, &err);
	bool is_claimed = restart_settle_claim(r, g, false);
	TAILQ_INSERT_TAIL(&r->coming, g, entry);
	restart_free_generation(r, g);
	/* After what follows it has begun: who asks in between waits for that. */
	if (is_entered && is_corrupt)
		corrupt_returned(
			r->service, id, &reason, &holders, clean_ns, !is_claimed && !was_lost);
	else if (is_entered)
		service_lose(r->service, id, reason.text);
	acquire_wake(r->service, model, -ENOENT, &err);
	restart_save(r);
}
