/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/restart.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/acquire.h"
#include "weightd/admission.h"
#include "weightd/export.h"
#include "weightd/loader.h"
#include "weightd/outcome.h"
#include "weightd/process.h"
#include "weightd/quota.h"
#include "weightd/registry.h"
#include "weightd/restart-internal.h"
#include "weightd/resume.h"
#include "weightd/rpc-reply.h"
#include "weightd/service-internal.h"
#include "weightd/source.h"

static const struct timeval restart_tick = {.tv_usec = 50 * 1000};

struct restart_generation *restart_find_generation(const struct restart *r, uint64_t id)
{
	struct restart_generation *g;

	TAILQ_FOREACH(g, &r->coming, entry)
	if (g->adopt->record.id == id)
		return g;
	return NULL;
}

void restart_free_generation(struct restart *r, struct restart_generation *g)
{
	TAILQ_REMOVE(&r->coming, g, entry);
	adopt_free(g->adopt);
	cleanup_close(&g->claim_fd);
	free(g->claim_path);
	free(g);
}

/* ---- those that held something ---- */

void restart_drop_absent(struct restart *r, uint32_t index)
{
	state_holder_fini(&r->absent[index]);
	r->absent[index] = r->absent[--r->n_absent];
}

void restart_drop_absent_generation(struct restart *r, uint32_t index, uint64_t generation)
{
	struct state_holder *h = &r->absent[index];

	for (uint32_t i = 0; i < h->n_generations; i++)
		if (h->generations[i] == generation) {
			h->generations[i] = h->generations[--h->n_generations];
			break;
		}
	if (h->n_generations == 0)
		restart_drop_absent(r, index);
}

bool restart_has_held(const struct state_holder *h, uint64_t generation)
{
	for (uint32_t i = 0; i < h->n_generations; i++)
		if (h->generations[i] == generation)
			return true;
	return false;
}

/* Of a process that cannot be seen nobody knows: it may live. */
static bool restart_may_live(const struct state_holder *h)
{
	return h->pid == 0 || process_get_start_ticks(h->pid) == h->start_ticks;
}

static void restart_drop_dead(struct restart *r)
{
	for (uint32_t i = r->n_absent; i > 0; i--)
		if (!restart_may_live(&r->absent[i - 1]))
			restart_drop_absent(r, i - 1);
}

bool restart_is_missed(const struct restart *r, uint64_t generation)
{
	for (uint32_t i = 0; i < r->n_absent; i++)
		if (restart_has_held(&r->absent[i], generation))
			return true;
	return false;
}

static bool restart_is_of(const struct state_holder *h, const struct peer *p)
{
	return h->pid == p->pid && h->start_ticks == p->start_ticks && h->uid == p->uid &&
	       h->socket == peer_get_socket(p->id);
}

static bool restart_is_waiting(const struct restart *r, const struct peer *p, uint64_t generation)
{
	const struct restart_wait *w;

	TAILQ_FOREACH(w, &r->waits, entry)
	if (w->generation == generation && w->pid == p->pid && w->start_ticks == p->start_ticks &&
		w->uid == p->uid && peer_get_socket(w->peer) == peer_get_socket(p->id))
		return true;
	return false;
}

bool restart_is_holder(const struct restart *r, const struct peer *p, uint64_t generation)
{
	for (uint32_t i = 0; r && i < r->n_absent; i++)
		if (restart_is_of(&r->absent[i], p) && restart_has_held(&r->absent[i], generation))
			return true;
	return r && restart_is_waiting(r, p, generation);
}

bool restart_is_of_model(const struct restart *r, uint64_t generation, const char *model)
{
	const struct restart_generation *g = restart_find_generation(r, generation);

	return g && !strcmp(g->adopt->record.model, model);
}

bool restart_on_return(struct restart *r, const struct peer *p, uint64_t generation)
{
	for (uint32_t i = 0; r && i < r->n_absent; i++)
		if (restart_is_of(&r->absent[i], p) &&
			restart_has_held(&r->absent[i], generation)) {
			restart_drop_absent_generation(r, i, generation);
			return true;
		}
	return false;
}

/* Who waited got no lease, or is gone before it did: it has what it had, and may come again. */
static void restart_miss(struct restart *r, const struct restart_wait *w)
{
	struct state_holder *rows = reallocarray(r->absent, r->n_absent + 1, sizeof(*rows));

	if (!rows)
		return;
	r->absent = rows;
	rows[r->n_absent] = (struct state_holder){.pid = w->pid,
		.start_ticks = w->start_ticks,
		.uid = w->uid,
		.socket = peer_get_socket(w->peer),
		.generations = malloc(sizeof(*rows->generations))};
	if (!rows[r->n_absent].generations)
		return;
	rows[r->n_absent].generations[0] = w->generation;
	rows[r->n_absent++].n_generations = 1;
}

/* ---- the end of the way: it is there, or lost ---- */

void restart_answer(struct restart *r, uint64_t id, const struct err *why)
{
	struct restart_wait *w, *next;

	for (w = TAILQ_FIRST(&r->waits); w; w = next) {
		struct peer *p = peer_find(r->service->params->peers, w->peer);
		struct err err = why ? *why : ERR_NULL;
		int rc = why ? -ENOENT : 0;

		next = TAILQ_NEXT(w, entry);
		if (w->generation != id)
			continue;
		if (rc == 0)
			rc = quota_check_lease(r->service->registry, r->service->params->peers,
				r->service->params->holders, r->service->prefixes, p, id,
				acquire_get_bytes, &err);
		if (rc == 0)
			rc = registry_resume(
				r->service->registry, id, p->id, 0, clock_now_ns(), &err);
		(void)restart_on_return(r, p, id);
		p->n_pending--;
		if (rc < 0)
			rpc_reply_error(p, w->request, rc, &err);
		else
			rpc_reply_resumed(p, w->request, id,
				service_get_export(
					r->service, registry_find(r->service->registry, id)->data));
		if (rc == 0)
			resume_tell_replaced(r->service, p, id);
		TAILQ_REMOVE(&r->waits, w, entry);
		if (rc < 0)
			restart_miss(r, w);
		free(w);
	}
}

static void restart_log_adopted(
	const struct registry_generation *g, const struct service_generation *data)
{
	const struct export *e = data->residencies[0].export;

	if (g->state == REGISTRY_WARM)
		log_info("model %s: generation %" PRIu64 " is adopted, warm: it is ready in %s",
			g->model, g->id,
			source_get_memfd(data->source) >= 0 ? "host memory" : "its file");
	else
		log_info("model %s: generation %" PRIu64 " is adopted: %s %s, %u tensors, %" PRIu64
			 " bytes in %u allocations, of which none were read",
			g->model, g->id, e->architecture, e->format, e->n_tensors, e->weights_bytes,
			e->n_allocs);
}

static void restart_finish(struct restart *r, struct restart_generation *g)
{
	const struct state_generation *record = &g->adopt->record;
	struct service_generation *data = g->data;
	char model[REGISTRY_NAME_MAX + 1];
	uint64_t id = record->id;

	strcpy(model, record->model);
	struct err err = ERR_NULL;
	int rc = registry_adopt(r->service->registry, id, model, restart_get_state(r, record), data,
		clock_now_ns(), &err);
	if (rc < 0) {
		restart_lose(r, g, &err);
		return;
	}
	if (record->is_warm)
		data->summary = record->summary;
	else
		outcome_summarize(data);
	g->data = NULL;
	restart_recall_holds(r, id);
	/* A model that is there can be pinned. */
	if (record->is_pinned && registry_pin(r->service->registry, model, true, NULL) < 0)
		log_warn("model %s: its pin did not come back", model);
	restart_log_adopted(registry_find(r->service->registry, id), data);
	if (!record->is_warm)
		service_tell(r->service, &(struct rpc_reply_event){.kind = RPC_REPLY_READY,
						 .model = model,
						 .generation = id,
						 .export = service_get_export(r->service, data)});
	restart_answer(r, id, NULL);
	if (registry_find(r->service->registry, id)->state == REGISTRY_READY)
		outcome_tell_replaced(r->service, registry_find(r->service->registry, id));
	TAILQ_REMOVE(&r->coming, g, entry);
	restart_settle_claim(r, g, true);
	TAILQ_INSERT_TAIL(&r->coming, g, entry);
	restart_free_generation(r, g);
	acquire_wake(r->service, model, 0, NULL);
	restart_save(r);
}

/* ---- importing ---- */

/* Which of our devices has what this residency was for; the others' slot for others' devices. */
bool restart_find_device(
	const struct restart *r, const struct state_residency *residency, uint32_t *ret_slot)
{
	const struct service_params *params = r->service->params;

	if (residency->is_foreign)
		*ret_slot = service_get_foreign_slot(r->service);
	for (uint32_t i = 0; i < params->n_loaders && !residency->is_foreign; i++) {
		const struct vk_device_info *info = loader_get_info(params->loaders[i]);
		if (memcmp(residency->device_uuid, info->uuid, sizeof(info->uuid)) ||
			memcmp(residency->driver_uuid, info->driver_uuid,
				sizeof(info->driver_uuid)))
			continue;
		*ret_slot = i;
		return true;
	}
	return residency->is_foreign;
}

int restart_make_data(struct restart *r, struct restart_generation *g, struct err *ret_err)
{
	const struct state_generation *record = &g->adopt->record;
	struct service_generation *data = calloc(1, sizeof(*data));

	if (!data)
		return err_set(ret_err, ENOMEM, "out of memory");
	g->data = data;
	data->is_adopted = true;
	data->file_bytes = record->file.n_bytes;
	data->expel_ns = record->expel_ns;
	data->started_ns = clock_now_ns();
	data->path = strdup(record->path);
	if (!data->path)
		return err_set(ret_err, ENOMEM, "out of memory");
	return adopt_make_source(g->adopt, r->service->params->account, ret_err, &data->source);
}

static int restart_import_one(
	struct restart *r, struct restart_generation *g, uint32_t i, struct err *ret_err)
{
	const struct state_residency *residency = &g->adopt->record.residencies[i];
	struct export *e = NULL;
	uint32_t slot;

	if (!adopt_is_whole(g->adopt, i) || !restart_find_device(r, residency, &slot))
		return 0;
	int rc = adopt_make_export(g->adopt, i, g->data->source, ret_err, &e);
	if (rc < 0)
		return rc;
	rc = loader_adopt(r->service->params->loaders[residency->is_foreign ? 0 : slot],
		g->adopt->record.id, e, residency->is_foreign, ret_err);
	if (rc < 0) {
		adopt_forget(g->adopt, i);
		export_free(e);
		return rc;
	}
	g->n_importing++;
	/* In names it is another one from here on. */
	if (slot != residency->slot)
		stash_drop_generation(r->stash, g->adopt->record.id);
	return 0;
}

/* Of a generation no loader gets more than two jobs, and half of all stay free for loads: those of
 * the command line among them, which end weightd when they are refused. */
static bool restart_has_room(const struct restart *r)
{
	const struct service_params *params = r->service->params;

	for (uint32_t i = 0; i < params->n_loaders; i++)
		if (loader_count_jobs(params->loaders[i]) >= LOADER_MAX_JOBS / 2)
			return false;
	return true;
}

/* All that is whole; what is not is loaded again when somebody asks for it. */
static void restart_import(struct restart *r, struct restart_generation *g)
{
	struct err err = ERR_NULL;
	int rc = restart_make_data(r, g, &err);

	if (rc == 0 && g->adopt->record.is_warm) {
		restart_finish(r, g);
		return;
	}
	for (uint32_t i = 0; i < g->adopt->record.n_residencies && rc == 0; i++)
		rc = restart_import_one(r, g, i, &err);
	if (g->n_importing > 0) /* the results tell how it ends */
		return;
	if (rc == 0)
		err_set(&err, ENODEV, "none of its memory is of a device that is served here");
	restart_lose(r, g, &err);
}

/* Enough to serve the first device. all: every residency there was. */
static bool restart_is_whole(const struct restart *r, const struct restart_generation *g, bool all)
{
	bool has_first = false, has_all = true;
	uint32_t slot;

	/* Without what was in host memory, its file has to do. */
	if (g->adopt->record.is_warm)
		return g->adopt->file_fd >= 0;
	for (uint32_t i = 0; i < g->adopt->record.n_residencies; i++) {
		if (!restart_find_device(r, &g->adopt->record.residencies[i], &slot))
			continue;
		bool is_whole = adopt_is_whole(g->adopt, i);
		has_first |= is_whole && slot == 0;
		has_all &= is_whole;
	}
	return has_first && (has_all || !all);
}

/* The export for our device of that slot goes. */
static void restart_forget_export(
	const struct restart *r, struct restart_generation *g, uint32_t slot)
{
	uint32_t found;

	for (uint32_t i = 0; i < g->adopt->record.n_residencies; i++)
		if (restart_find_device(r, &g->adopt->record.residencies[i], &found) &&
			found == slot)
			adopt_forget(g->adopt, i);
}

/* ---- waiting ---- */

/* Memory that is still with processes which did not come back is accounted as theirs. */
static void restart_hold_absent(struct restart *r)
{
	r->are_absent_held = true;
	restart_recall_leases(r);
	registry_end_returns(r->service->registry);
	service_collect(r->service);
}

/* True while somebody is waited for. */
static bool restart_step(struct restart *r)
{
	bool is_late = clock_now_ns() >= r->deadline_ns;
	struct restart_generation *g, *next;

	restart_drop_dead(r);
	for (g = TAILQ_FIRST(&r->coming); g; g = next) {
		bool is_missed = !is_late && restart_is_missed(r, g->adopt->record.id);

		next = TAILQ_NEXT(g, entry);
		if (g->n_importing > 0)
			continue;
		bool must_follow = restart_must_follow(r, g);
		if (g->adopt->record.lost_why) {
			struct err err = ERR_NULL;
			err_set(&err, EIO, "%s", g->adopt->record.lost_why);
			g->is_corrupt = g->adopt->record.is_corrupt;
			restart_lose(r, g, &err);
		} else if (restart_is_unwanted(&g->adopt->record)) {
			restart_drop_unwanted(r, g);
		} else if (g->adopt->record.is_loading) {
			if (!must_follow)
				restart_load_again(r, g);
		} else if (restart_is_whole(r, g, is_missed)) {
			g->is_due = must_follow || !restart_has_room(r);
			if (!g->is_due) /* else on the next tick */
				restart_import(r, g);
		} else if (!is_missed) {
			struct err err = ERR_NULL;
			err_set(&err, ENODATA, "not all of its descriptors came back");
			restart_lose(r, g, &err);
		}
	}
	if (TAILQ_EMPTY(&r->coming) && (is_late || r->n_absent == 0) && !r->are_absent_held)
		restart_hold_absent(r);
	return !r->are_absent_held;
}

bool restart_take_result(struct restart *r, uint32_t loader, const struct loader_result *result)
{
	struct restart_generation *g = r ? restart_find_generation(r, result->generation) : NULL;
	uint32_t slot;

	if (!g || g->n_importing == 0)
		return false;
	slot = result->is_foreign ? service_get_foreign_slot(r->service) : loader;
	if (result->kind == LOADER_READY) {
		g->data->residencies[slot].export = result->export;
		admission_adopt(r->service, result->generation, slot, g->adopt->record.model,
			export_count_device_bytes(result->export));
	} else {
		log_warn("model %s: generation %" PRIu64 ": %s", g->adopt->record.model,
			g->adopt->record.id, result->err.text);
		/* Bytes that are wrong are its end, wherever they are. */
		if (!g->is_corrupt)
			g->failure = result->err;
		g->is_corrupt |= result->code == -EBADMSG;
		restart_forget_export(r, g, slot);
		export_free(result->export);
	}
	if (--g->n_importing > 0)
		return true;
	if (!g->failure.text[0])
		err_set(&g->failure, ENODATA, "its memory for the first device is missing");
	if (g->data->residencies[0].export && !g->is_corrupt)
		restart_finish(r, g);
	else
		restart_lose(r, g, &g->failure);
	/* Others may have waited for what becomes of it. */
	(void)restart_step(r);
	return true;
}

static void restart_on_tick(evutil_socket_t fd, short what, void *userdata)
{
	struct restart *r = userdata;

	(void)fd;
	(void)what;
	if (!restart_step(r))
		event_del(r->tick);
	restart_save(r);
}

int restart_attach(struct restart *r, struct event_base *base, struct service *s)
{
	r->base = base;
	r->service = s;
	registry_set_last_id(s->registry, r->last_id);
	restart_recall_grants(r);
	r->tick = event_new(base, -1, EV_PERSIST, restart_on_tick, r);
	return r->tick ? 0 : -ENOMEM;
}

void restart_begin(struct restart *r)
{
	r->has_begun = true;
	r->deadline_ns = clock_now_ns() + RESTART_WAIT_MS * UINT64_C(1000000);
	if (restart_step(r) && event_add(r->tick, &restart_tick) < 0)
		log_error("out of memory: nobody is waited for");
	restart_save(r);
}

/* ---- for Resume ---- */

enum restart_where restart_find(const struct restart *r, uint64_t generation)
{
	const struct restart_generation *g = r ? restart_find_generation(r, generation) : NULL;

	if (!g)
		return RESTART_NOWHERE;
	return g->n_importing > 0 || g->is_due ? RESTART_COMING : RESTART_LACKING;
}

bool restart_find_slot(const struct restart *r, uint64_t generation, const uint8_t *device_uuid,
	const uint8_t *driver_uuid, uint32_t *ret_slot)
{
	const struct restart_generation *g = restart_find_generation(r, generation);
	const struct state_residency *foreign = NULL;

	for (uint32_t i = 0; g && i < g->adopt->record.n_residencies; i++) {
		const struct state_residency *residency = &g->adopt->record.residencies[i];
		if (residency->is_foreign)
			foreign = residency;
		if (residency->is_foreign || memcmp(residency->device_uuid, device_uuid, 16) ||
			memcmp(residency->driver_uuid, driver_uuid, 16))
			continue;
		*ret_slot = residency->slot;
		return true;
	}
	if (foreign)
		*ret_slot = foreign->slot;
	return foreign;
}

int restart_give(struct restart *r, const struct stash_name *name, int fd, struct err *ret_err)
{
	return adopt_give(restart_find_generation(r, name->generation)->adopt, name, fd, ret_err);
}

int restart_await(struct restart *r, struct peer *p, uint64_t request, uint64_t generation)
{
	struct restart_wait *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	*w = (struct restart_wait){.peer = p->id,
		.pid = p->pid,
		.start_ticks = p->start_ticks,
		.uid = p->uid,
		.request = request,
		.generation = generation};
	TAILQ_INSERT_TAIL(&r->waits, w, entry);
	p->n_pending++;
	(void)restart_on_return(r, p, generation);
	/* May answer, and end what is waited for. */
	(void)restart_step(r);
	return 0;
}

void restart_forget_peer(struct restart *r, const struct peer *p)
{
	struct restart_wait *w, *next;

	for (w = r ? TAILQ_FIRST(&r->waits) : NULL; w; w = next) {
		next = TAILQ_NEXT(w, entry);
		if (w->peer != p->id)
			continue;
		TAILQ_REMOVE(&r->waits, w, entry);
		restart_miss(r, w);
		free(w);
	}
}
