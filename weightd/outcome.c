/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/outcome.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/acquire.h"
#include "weightd/admission.h"
#include "weightd/admit.h"
#include "weightd/export.h"
#include "weightd/idle.h"
#include "weightd/loader.h"
#include "weightd/restart.h"
#include "weightd/service-internal.h"
#include "weightd/source.h"
#include "weightd/verify.h"

/* The requester's answer: Done or the sentence. */
static void outcome_answer(struct service *s, uint64_t id, struct service_generation *data,
	int code, const struct err *err)
{
	struct peer *p = peer_find(s->params->peers, data->peer);
	bool is_own = data->is_own;

	/* Once: the generation may be loaded again, heated. */
	data->is_own = false;
	data->peer = 0;
	if (is_own && s->params->own_fn)
		s->params->own_fn(code, err, s->params->userdata);
	if (!p)
		return;
	p->n_pending--;
	if (code < 0)
		rpc_reply_error(p, data->request, code, err);
	else
		rpc_reply_done(p, data->request, id);
}

/* Everything that the device had is gone with it. */
static void outcome_lose_device(struct service *s, uint32_t slot)
{
	for (uint32_t i = 0; i < registry_count(s->registry);) {
		const struct registry_generation *g = registry_at(s->registry, i);
		const struct service_generation *data = g->data;
		uint32_t n_before = registry_count(s->registry);
		if (data->residencies[slot].export &&
			data->residencies[slot].export->device_bytes > 0)
			service_lose(s, g->id, "its device was lost");
		/* What goes may take others along, before and behind it. */
		i = registry_count(s->registry) == n_before ? i + 1 : 0;
	}
}

/* It is as warm as before, if its file is what it was. */
static void outcome_on_not_heated(struct service *s, uint64_t id, const char *model, int code,
	const struct err *err, bool is_device_lost)
{
	struct service_generation *data = registry_find(s->registry, id)->data;

	data->is_heating = data->is_second_heat = false;
	registry_chilled(s->registry, id);
	/* They learn what became of it before they learn that it is lost. */
	acquire_fail_all(s, model, code, err);
	if (code == -ESTALE)
		service_lose(s, id, err->text);
	if (is_device_lost)
		outcome_lose_device(s, 0);
}

/* A driver that refuses to import costs the device, not what is warm: it is heated on the device
 * that the loader opens next. False: that was tried, or cannot be. */
static bool outcome_heat_again(struct service *s, uint64_t id, const struct loader_result *r)
{
	struct service_generation *data = registry_find(s->registry, id)->data;
	struct err err = ERR_NULL;

	if (r->goal != LOAD_HEAT || r->kind != LOADER_LOST || data->is_second_heat ||
		!registry_is_wanted(s->registry, id))
		return false;
	data->is_second_heat = true;
	outcome_lose_device(s, 0);
	return admission_load(s, id, 0, &err) == 0;
}

static void outcome_on_failed(
	struct service *s, const struct registry_generation *g, const struct loader_result *r)
{
	struct service_generation *data = g->data;
	struct err err = r->err;
	char model[REGISTRY_NAME_MAX + 1];
	int code = r->code;
	uint64_t id = g->id;

	if (outcome_heat_again(s, id, r))
		return;
	g = registry_find(s->registry, id);
	snprintf(model, sizeof(model), "%s", g->model);
	if (g->state != REGISTRY_LOADING) /* an unload gave it up, whatever it came to */
		code = err_set(&err, ECANCELED, "it was unloaded while it loaded");
	err_prefix(&err, "model %s", model);
	/* Who has the memory is for who loads and for the log: others may not see those. */
	struct err explained = err;
	if (code == -ENOMEM) {
		admit_explain(s, id, &explained);
		admission_explain(s, 0, &explained);
	}
	if (!data->is_own || code == -ECANCELED) /* else its one line is that of weightd's end */
		log_warn("%s", explained.text);
	outcome_answer(s, id, data, code, &explained);
	service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_FAILED,
				.model = model,
				.generation = id,
				.text = err.text});
	if (r->goal == LOAD_HEAT) {
		outcome_on_not_heated(s, id, model, code, &err, r->kind == LOADER_LOST);
	} else {
		registry_failed(s->registry, id);
		/* Before somebody gets an older generation that is lost with it. */
		if (r->kind == LOADER_LOST)
			outcome_lose_device(s, 0);
		acquire_wake(s, model, code, &err);
	}
	service_collect(s);
}

/* Nothing lands in slow memory in silence. */
static void outcome_log_placement(const char *model, uint64_t id, const struct export *e)
{
	const uint64_t *n = e->n_placed_bytes;

	if (n[MANIFEST_PLACEMENT_PINNED] || n[MANIFEST_PLACEMENT_STAGED] ||
		n[MANIFEST_PLACEMENT_PAGED])
		log_info("model %s: generation %llu: bytes of tensors: device %llu, pinned %llu, "
			 "staged %llu, paged %llu",
			model, (unsigned long long)id,
			(unsigned long long)n[MANIFEST_PLACEMENT_DEVICE],
			(unsigned long long)n[MANIFEST_PLACEMENT_PINNED],
			(unsigned long long)n[MANIFEST_PLACEMENT_STAGED],
			(unsigned long long)n[MANIFEST_PLACEMENT_PAGED]);
	if (e->n_unmet_bytes)
		log_warn("model %s: generation %llu: %llu bytes found no place that a device "
			 "reads: every worker copies them for itself",
			model, (unsigned long long)id, (unsigned long long)e->n_unmet_bytes);
}

static void outcome_log_ready(
	struct service *s, const struct registry_generation *g, const struct loader_result *r)
{
	const struct service_generation *data = g->data;
	const struct export *e = data->residencies[0].export;
	const char *how = "io_uring";
	char rate[64] = "";

	if (r->refusal > 0 && !s->has_told_refusal)
		log_info("io_uring is refused (%s): files are read by pread", strerror(r->refusal));
	s->has_told_refusal = s->has_told_refusal || r->refusal > 0;
	if (r->refusal)
		how = "pread";
	/* Pages of the file are left where they are. */
	if (data->loaded_bytes)
		snprintf(rate, sizeof(rate), " (%.2f GB/s by %s)",
			(double)data->loaded_bytes / (double)r->load_ns, how);
	log_info("model %s: generation %llu is ready: %s %s, %u tensors, %llu bytes in %u "
		 "allocations, %llu of them read, %.3f s%s",
		g->model, (unsigned long long)g->id, e->architecture, e->format, e->n_tensors,
		(unsigned long long)e->weights_bytes, e->n_allocs,
		(unsigned long long)data->loaded_bytes, (double)r->load_ns / 1e9, rate);
	outcome_log_placement(g->model, g->id, e);
}

void outcome_summarize(struct service_generation *data)
{
	const struct export *e = data->residencies[0].export;
	struct service_summary *summary = &data->summary;

	snprintf(summary->architecture, sizeof(summary->architecture), "%s", e->architecture);
	snprintf(summary->format, sizeof(summary->format), "%s", e->format);
	summary->n_parameters = e->n_parameters;
	summary->n_tensors = e->n_tensors;
}

void outcome_tell_replaced(struct service *s, const struct registry_generation *g)
{
	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct registry_generation *old = registry_at(s->registry, i);
		if (old->id >= g->id || strcmp(old->model, g->model) != 0)
			continue;
		service_tell_holders(s, old->id,
			&(struct rpc_reply_event){.kind = RPC_REPLY_REPLACED,
				.model = g->model,
				.generation = g->id,
				.export = service_get_export(s, g->data)});
	}
}

static void outcome_on_ready(
	struct service *s, struct registry_generation *g, const struct loader_result *r)
{
	struct service_generation *data = g->data;
	char model[REGISTRY_NAME_MAX + 1];

	snprintf(model, sizeof(model), "%s", g->model);
	data->residencies[0].export = r->export;
	source_end_recovery(data->source);
	data->is_heating = data->is_second_heat = false;
	outcome_summarize(data);
	data->loaded_bytes = r->export->n_placed_bytes[MANIFEST_PLACEMENT_DEVICE] +
			     r->export->n_placed_bytes[MANIFEST_PLACEMENT_STAGED];
	data->load_ns = clock_now_ns() - data->started_ns;
	if (g->state != REGISTRY_LOADING) {
		struct err err = ERR_NULL;
		int code = err_set(
			&err, ECANCELED, "model %s: it was unloaded while it loaded", model);
		outcome_answer(s, g->id, data, code, &err);
		registry_loaded(s->registry, g->id, clock_now_ns());
		service_collect(s);
		return;
	}
	outcome_log_ready(s, g, r);
	registry_loaded(s->registry, g->id, clock_now_ns());
	restart_save(s->restart);
	outcome_answer(s, g->id, data, 0, NULL);
	service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_READY,
				.model = model,
				.generation = g->id,
				.loaded_bytes = data->loaded_bytes,
				.total_bytes = data->loaded_bytes,
				.export = r->export});
	outcome_tell_replaced(s, g);
	acquire_wake(s, model, 0, NULL);
	service_collect(s);
}

static void outcome_on_progress(
	struct service *s, const struct registry_generation *g, const struct loader_result *r)
{
	struct service_generation *data = g->data;

	data->loaded_bytes = r->loaded_bytes;
	service_tell(s, &(struct rpc_reply_event){.kind = RPC_REPLY_PROGRESS,
				.model = g->model,
				.generation = g->id,
				.loaded_bytes = r->loaded_bytes,
				.total_bytes = r->total_bytes});
}

/* A load for one more device. */
static void outcome_on_resident(struct service *s, const struct registry_generation *g,
	uint32_t slot, const struct loader_result *r)
{
	struct service_residency *residency =
		&((struct service_generation *)g->data)->residencies[slot];
	char model[REGISTRY_NAME_MAX + 1];
	struct err err = r->err;

	snprintf(model, sizeof(model), "%s", g->model);
	residency->is_loading = false;
	if (r->kind == LOADER_READY) {
		residency->export = r->export;
		outcome_log_placement(model, g->id, r->export);
		acquire_wake(s, model, 0, NULL);
		return;
	}
	err_prefix(&err, "model %s", model);
	/* For the log: whoever waits for it may not see those who hold. */
	struct err explained = err;
	if (r->code == -ENOMEM)
		admission_explain(s, slot, &explained);
	if (r->code != -ECANCELED)
		log_warn("%s", explained.text);
	/* Those who wait may wait for what came after a generation that nobody gets any more. */
	if (g->state == REGISTRY_READY)
		acquire_fail(s, model, slot, r->code, &err);
	if (r->kind == LOADER_LOST)
		outcome_lose_device(s, slot);
}

/* Does anybody still want what is short of room? */
static bool outcome_is_wanted(
	const struct service *s, const struct registry_generation *g, uint32_t slot)
{
	if (!g)
		return false;
	if (g->is_filling)
		return registry_is_wanted(s->registry, g->id);
	return ((const struct service_generation *)g->data)->residencies[slot].is_loading;
}

/* Windows of the file were copied for who does not take them from there; it takes memory. */
static void outcome_on_copied(struct service *s, const struct registry_generation *g, uint32_t slot,
	const struct loader_result *r)
{
	struct service_residency *residency =
		&((struct service_generation *)g->data)->residencies[slot];
	char model[REGISTRY_NAME_MAX + 1];

	snprintf(model, sizeof(model), "%s", g->model);
	residency->is_copying = false;
	if (r->code == 0) {
		residency->export->copied_from = residency->copy_from;
		log_info("model %s: generation %llu: %llu bytes of pinned weights were copied to "
			 "host memory for a worker that does not import the file's pages, %.3f s",
			model, (unsigned long long)g->id, (unsigned long long)r->loaded_bytes,
			(double)r->load_ns / 1e9);
	} else if (g->state == REGISTRY_READY) {
		acquire_give_up_copy(s, model, slot);
		log_warn("model %s: generation %llu: a worker does not import the file's pages and "
			 "will copy them itself: %s",
			model, (unsigned long long)g->id, r->err.text);
	}
	acquire_wake(s, model, 0, NULL);
}

static void outcome_take(struct service *s, uint32_t i, const struct loader_result *r)
{
	struct registry_generation *g = registry_find(s->registry, r->generation);
	uint32_t slot = r->is_foreign ? service_get_foreign_slot(s) : i;

	if (!g && restart_take_result(s->restart, i, r))
		return;
	if (r->goal == LOAD_COOL) {
		if (g && ((struct service_generation *)g->data)->is_cooling)
			idle_finish(s, g, r);
		return;
	}
	if (r->kind == LOADER_COPIED) {
		if (g && ((struct service_generation *)g->data)->residencies[slot].export)
			outcome_on_copied(s, g, slot, r);
		return;
	}
	if (r->kind == LOADER_CHECKED) {
		verify_take(s, slot, r);
		if (r->is_device_lost)
			outcome_lose_device(s, i);
		return;
	}
	if (r->kind == LOADER_SHORT) {
		struct err err = ERR_NULL;
		if (outcome_is_wanted(s, g, slot))
			admission_on_short(s, r->generation, slot, r);
		else
			outcome_fail(s, i, r->generation,
				err_set(&err, ECANCELED, "the load was given up"), &err);
		return;
	}
	if (r->kind != LOADER_PROGRESS)
		admission_settle(s, r->generation, slot, r->export);
	g = registry_find(s->registry, r->generation); /* it may have moved */
	if (g && !g->is_filling && r->kind != LOADER_PROGRESS &&
		((struct service_generation *)g->data)->residencies[slot].is_loading) {
		outcome_on_resident(s, g, slot, r);
		return;
	}
	/* A progress may come behind the end that it was on the way to. */
	if (!g || !g->is_filling) {
		if (r->export) {
			loader_release(s->params->loaders[i], r->export);
			admission_leave(s, r->generation, slot);
		}
		return;
	}
	switch (r->kind) {
	case LOADER_PROGRESS: outcome_on_progress(s, g, r); break;
	case LOADER_READY: outcome_on_ready(s, g, r); break;
	case LOADER_FAILED:
	case LOADER_LOST: outcome_on_failed(s, g, r); break;
	case LOADER_SHORT: /* above */
	case LOADER_COOL:
	case LOADER_COPIED: break; /* not of what is being filled */
	case LOADER_CHECKED: break;
	}
}

void outcome_fail(
	struct service *s, uint32_t slot, uint64_t generation, int code, const struct err *err)
{
	const struct registry_generation *g = registry_find(s->registry, generation);
	const struct service_generation *data = g ? g->data : NULL;
	const struct loader_result r = {.kind = LOADER_FAILED,
		.goal = data && data->is_heating ? LOAD_HEAT : LOAD_NEW,
		.generation = generation,
		.code = code,
		.err = *err};

	outcome_take(s, slot, &r);
}

void outcome_dispatch(struct service *s)
{
	struct loader_result r;

	admission_collect(s);

	for (uint32_t i = 0; i < s->params->n_loaders; i++)
		while (loader_take_result(s->params->loaders[i], &r))
			outcome_take(s, i, &r);
}
