/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/acquire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "weightd/admission.h"
#include "weightd/admit.h"
#include "weightd/export.h"
#include "weightd/loader.h"
#include "weightd/quota.h"
#include "weightd/restart.h"
#include "weightd/service-internal.h"
#include "weightd/shown.h"

/* A condition of acquire_try: not yet. */
enum { ACQUIRE_WAIT = 1 };

/* "0123...": 32 hex digits and a NUL. */
static const char *acquire_print_uuid(const uint8_t *uuid, char text[33])
{
	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", uuid[i]);
	return text;
}

/* The peer's device is none of ours, as the first of them may explain. */
static int acquire_refuse_device(
	const struct service *s, const struct acquire_params *params, struct err *ret_err)
{
	const struct vk_device_info *info = loader_get_info(s->params->loaders[0]);
	char expected[33], found[33];

	for (uint32_t i = 0; i < s->params->n_loaders; i++) {
		const struct vk_device_info *other = loader_get_info(s->params->loaders[i]);
		if (!memcmp(params->device_uuid, other->uuid, 16))
			return err_set(ret_err, ENODEV,
				"driver of %s: expected %s, found %s: the memory of one driver "
				"means nothing to another",
				other->name, acquire_print_uuid(other->driver_uuid, expected),
				acquire_print_uuid(params->driver_uuid, found));
	}
	return err_set(ret_err, ENODEV, "device: expected %s (%s)%s, found %s",
		acquire_print_uuid(info->uuid, expected), info->name,
		s->params->n_loaders > 1 ? " or another that weightd serves" : "",
		acquire_print_uuid(params->device_uuid, found));
}

static int acquire_find_slot(const struct service *s, const struct acquire_params *params,
	struct err *ret_err, uint32_t *ret_slot)
{
	uint32_t types = params->importer.handle_types;
	bool takes_opaque = types == 0 || (types >> EXPORT_OPAQUE_FD & 1);

	for (uint32_t i = 0; i < s->params->n_loaders && takes_opaque; i++) {
		const struct vk_device_info *info = loader_get_info(s->params->loaders[i]);
		if (memcmp(params->device_uuid, info->uuid, 16) ||
			memcmp(params->driver_uuid, info->driver_uuid, 16))
			continue;
		*ret_slot = i;
		return 0;
	}
	if (!(types >> EXPORT_MEMFD & 1))
		return acquire_refuse_device(s, params, ret_err);
	*ret_slot = service_get_foreign_slot(s);
	return 0;
}

static struct registry_generation *acquire_find_ready(const struct service *s, const char *model)
{
	for (uint32_t i = registry_count(s->registry); i > 0; i--) {
		struct registry_generation *g = registry_at(s->registry, i - 1);
		if (g->state == REGISTRY_READY && !strcmp(g->model, model))
			return g;
	}
	return NULL;
}

/* Not understood and not served: said before a lease is taken. */
static int acquire_check_offers(
	const struct export *e, const struct service_wait *w, struct err *ret_err)
{
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < e->n_allocs; i++) {
		struct export_offer offer;
		if (export_get_offer(e, i, &w->importer, &offer) < 0)
			n_bytes += e->allocs[i].buffer_bytes;
	}
	if (n_bytes == 0)
		return 0;
	return err_set(ret_err, ENOTSUP,
		"model %s: %llu of %llu bytes of its weights have descriptors of a kind that this "
		"client does not import",
		w->model, (unsigned long long)n_bytes, (unsigned long long)e->weights_bytes);
}

static int acquire_make_resident(
	struct service *s, const struct registry_generation *g, uint32_t slot, struct err *ret_err)
{
	struct service_generation *data = g->data;
	bool is_foreign = slot == service_get_foreign_slot(s);
	int rc;

	if (data->residencies[slot].is_loading)
		return 0;
	data->residencies[slot].is_loading = true;
	if (is_foreign)
		rc = loader_load(s->params->loaders[0], g->id, data->source, true, ret_err);
	else
		rc = admission_load(s, g->id, slot, ret_err);
	if (rc < 0)
		data->residencies[slot].is_loading = false;
	return rc;
}

/* 0: the windows that the peer takes as copies alone are there, or cannot be had now. */
static int acquire_copy_windows(struct service *s, const struct registry_generation *g,
	const struct service_wait *w, struct err *ret_err)
{
	struct service_generation *data = g->data;
	struct service_residency *residency = &data->residencies[w->slot];
	const struct export *e = residency->export;
	uint32_t from = export_find_copied(e, &w->importer), n = 0;
	struct loader_window windows[PLACEMENT_MAX_ALLOCS];

	if (from >= e->n_allocs || from >= e->copied_from || w->has_no_copy)
		return 0;
	if (residency->is_copying)
		return ACQUIRE_WAIT;
	for (uint32_t i = from; i < e->n_allocs && i < e->copied_from; i++)
		if (e->allocs[i].main.handle == EXPORT_FILE &&
			e->allocs[i].placement == MANIFEST_PLACEMENT_PINNED)
			windows[n++] = (struct loader_window){.offset = e->allocs[i].file_offset,
				.n_bytes = e->allocs[i].n_bytes};
	int rc = loader_copy(s->params->loaders[w->slot], g->id, data->source, windows, n, ret_err);
	if (rc < 0)
		return rc;
	residency->is_copying = true;
	residency->copy_from = from;
	return ACQUIRE_WAIT;
}

/* For the quota: the size of the model, whichever devices it is resident for. */
uint64_t acquire_get_bytes(const void *generation)
{
	const struct service_generation *data = generation;

	return data->residencies[0].export ? data->residencies[0].export->weights_bytes : 0;
}

/* Answers the peer and returns 0; ACQUIRE_WAIT; or -errno with the refusal. */
static int acquire_try(
	struct service *s, struct peer *p, const struct service_wait *w, struct err *ret_err)
{
	struct registry_generation *g = acquire_find_ready(s, w->model);
	const struct export *e = NULL;
	uint64_t id;
	int rc = 0;

	if (restart_is_awaited(s->restart, w->model))
		return ACQUIRE_WAIT;
	bool is_lost = g && service_check_file(s, g->id);
	if (is_lost)
		g = acquire_find_ready(s, w->model);
	if (g) {
		e = ((struct service_generation *)g->data)->residencies[w->slot].export;
		rc = quota_check_lease(s->registry, s->params->peers, s->params->holders,
			s->prefixes, p, g->id, acquire_get_bytes, ret_err);
		if (rc < 0)
			return rc;
		if (!e)
			rc = acquire_make_resident(s, g, w->slot, ret_err);
		else
			rc = acquire_check_offers(e, w, ret_err);
		if (e && rc == 0)
			rc = acquire_copy_windows(s, g, w, ret_err);
		if (rc || !e)
			return rc ? rc : ACQUIRE_WAIT;
	}
	rc = registry_acquire(s->registry, w->model, w->peer, clock_now_ns(), ret_err, &id);
	if (rc == REGISTRY_WAIT) {
		rc = admit_heat(s, w->model, ret_err);
		return rc < 0 ? rc : ACQUIRE_WAIT;
	}
	if (rc == -ENOENT && is_lost) /* nobody had it, and it is gone already */
		return service_say_lost(w->model, ret_err);
	if (rc)
		return shown_refuse(s->registry, p, w->model, rc, ret_err);
	restart_save(s->restart); /* before it is there, who has it must be known */
	rpc_reply_acquired(p, w->request, id, e, &w->importer);
	service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_ATTACHED,
				.model = w->model,
				.generation = id,
				.pid = p->pid});
	return 0;
}

int acquire_begin(
	struct service *s, struct peer *p, const struct acquire_params *params, struct err *ret_err)
{
	struct service_wait *w;
	uint32_t slot = 0;
	int rc = acquire_find_slot(s, params, ret_err, &slot);

	if (rc == 0)
		rc = service_check_pending(p, ret_err);
	if (rc < 0)
		return rc;
	w = calloc(1, sizeof(*w));
	if (!w)
		return err_set(ret_err, ENOMEM, "model %s: out of memory", params->model);
	w->peer = p->id;
	w->request = params->request;
	w->slot = slot;
	w->importer = params->importer;
	snprintf(w->model, sizeof(w->model), "%s", params->model);
	rc = acquire_try(s, p, w, ret_err);
	if (rc != ACQUIRE_WAIT) {
		free(w);
		return rc;
	}
	TAILQ_INSERT_TAIL(&s->waits, w, entry);
	p->n_pending++;
	return 0;
}

static void acquire_end_wait(
	struct service *s, struct service_wait *w, int code, const struct err *err)
{
	struct peer *p = peer_find(s->params->peers, w->peer);

	p->n_pending--;
	if (code < 0)
		rpc_reply_error(p, w->request, code, err);
	TAILQ_REMOVE(&s->waits, w, entry);
	free(w);
}

static struct service_wait *acquire_find_due(struct service *s, const char *model)
{
	struct service_wait *w;

	TAILQ_FOREACH(w, &s->waits, entry)
	if (w->is_due && !strcmp(w->model, model))
		return w;
	return NULL;
}

void acquire_wake(struct service *s, const char *model, int code, const struct err *why)
{
	struct service_wait *w;

	TAILQ_FOREACH(w, &s->waits, entry)
	w->is_due |= !strcmp(w->model, model);
	while ((w = acquire_find_due(s, model))) {
		struct err err = ERR_NULL;

		/* To try may find that the generation is lost, which wakes who waits for it: this
		 * one is not to be found there. */
		w->is_due = false;
		TAILQ_REMOVE(&s->waits, w, entry);
		int rc = acquire_try(s, peer_find(s->params->peers, w->peer), w, &err);
		TAILQ_INSERT_TAIL(&s->waits, w, entry);
		if (rc == ACQUIRE_WAIT)
			continue;
		if (rc == -ENOENT && why) {
			rc = code;
			err = *why;
		}
		acquire_end_wait(s, w, rc, &err);
	}
}

void acquire_fail(
	struct service *s, const char *model, uint32_t slot, int code, const struct err *why)
{
	struct service_wait *w, *next;

	for (w = TAILQ_FIRST(&s->waits); w; w = next) {
		next = TAILQ_NEXT(w, entry);
		if (w->slot == slot && !strcmp(w->model, model))
			acquire_end_wait(s, w, code, why);
	}
}

void acquire_fail_all(struct service *s, const char *model, int code, const struct err *why)
{
	for (uint32_t i = 0; i <= service_get_foreign_slot(s); i++)
		acquire_fail(s, model, i, code, why);
}

void acquire_give_up_copy(struct service *s, const char *model, uint32_t slot)
{
	struct service_wait *w;

	TAILQ_FOREACH(w, &s->waits, entry)
	w->has_no_copy |= w->slot == slot && !strcmp(w->model, model);
}

void acquire_forget(struct service *s, const struct peer *p)
{
	struct service_wait *w, *next;

	for (w = TAILQ_FIRST(&s->waits); w; w = next) {
		next = TAILQ_NEXT(w, entry);
		if (w->peer != p->id)
			continue;
		TAILQ_REMOVE(&s->waits, w, entry);
		free(w);
	}
}
