/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/admission.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/account.h"
#include "weightd/access.h"
#include "weightd/acquire.h"
#include "weightd/admit.h"
#include "weightd/export.h"
#include "weightd/holders.h"
#include "weightd/loader.h"
#include "weightd/outcome.h"
#include "weightd/policy.h"
#include "weightd/publish.h"
#include "weightd/quota.h"
#include "weightd/restart.h"
#include "weightd/service-internal.h"
#include "weightd/shown.h"
#include "weightd/source.h"

/* Weights take their file's bytes and what alignment adds; a driver rounds allocations up too. */
enum { ADMISSION_SLACK_BYTES = 1 << 20, ADMISSION_SLACK_SHIFT = 10 };

/* Weights that do not all fit leave so much of the room to the KV caches without which they are of
 * no use: a sixteenth. */
enum { ADMISSION_KV_SHIFT = 4 };

static struct account *admission_find(const struct service *s, uint32_t slot)
{
	return slot < s->params->n_loaders ? s->rooms[slot].account : NULL;
}

const struct account *admission_get_account(const struct service *s, uint32_t slot)
{
	return admission_find(s, slot);
}

uint64_t admission_count_grants(const struct service *s, const struct peer *p)
{
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < s->params->n_loaders; i++)
		if (s->rooms[i].account)
			n_bytes += account_get_grant(s->rooms[i].account, p->id);
	return n_bytes;
}

/* ---- what the account asks for ---- */

static uint32_t admission_press(void *userdata, uint64_t except)
{
	const struct service_room *room = userdata;
	struct peer *p;
	uint32_t n = 0;

	TAILQ_FOREACH(p, room->service->params->peers, entry)
	{
		if (p->id == except || !account_get_grant(room->account, p->id))
			continue;
		rpc_reply_event(p, &(struct rpc_reply_event){.kind = RPC_REPLY_PRESSURE});
		n++;
	}
	return n;
}

static void admission_evict(void *userdata, uint64_t n_bytes)
{
	struct service_room *room = userdata;

	/* A prefix is computed anew in a moment, a model is not. Too little of it helps nobody:
	 * then whoever waits has what there is in the end. */
	uint64_t n_freed = publish_evict(room->service, room->slot, n_bytes);
	if (n_freed < n_bytes)
		(void)admit_evict(room->service, 0, room->slot, n_bytes - n_freed);
}

/* Of a row, to who asked: as far as its socket shows models and processes. */
static bool admission_shows(void *userdata, const struct account_request *q, enum account_kind kind,
	uint64_t id, const char *model)
{
	const struct service_room *room = userdata;
	const struct peer_list *peers = room->service->params->peers;
	const struct peer *p = q->kind == ACCOUNT_GRANT ? peer_find(peers, q->id) : NULL;

	if (!p || !p->access || p->access->is_owner)
		return true;
	if (kind == ACCOUNT_GRANT)
		return shown_holder(p, id);
	if (id < PREFIXES_FIRST_ID)
		return access_shows(p->access, model);
	const struct prefix *x = prefixes_find(room->service->prefixes, id);
	return x && publish_shows(p, x);
}

static uint64_t admission_add_slack(uint64_t n_bytes)
{
	return n_bytes + ADMISSION_SLACK_BYTES + (n_bytes >> ADMISSION_SLACK_SHIFT);
}

/* The most that is n_bytes with its slack. */
static uint64_t admission_subtract_slack(uint64_t n_bytes)
{
	const uint64_t part = 1ull << ADMISSION_SLACK_SHIFT;
	uint64_t n = 0;

	if (n_bytes > ADMISSION_SLACK_BYTES)
		n = (n_bytes - ADMISSION_SLACK_BYTES) / (part + 1) * part;
	while (admission_add_slack(n + 1) <= n_bytes)
		n++;
	return n;
}

/* For which devices, and how, is in the service's data. */
static int admission_ask(struct service *s, uint32_t slot, uint64_t generation, uint64_t room_bytes,
	uint64_t may_free_bytes, struct err *ret_err)
{
	const struct registry_generation *g = registry_find(s->registry, generation);
	const struct service_generation *data = g->data;
	const struct loader_request request = {
		.goal = g->is_filling && data->is_heating ? LOAD_HEAT : LOAD_NEW,
		.generation = generation,
		.source = data->source,
		.room_bytes = room_bytes,
		.may_free_bytes = may_free_bytes};

	return loader_ask(s->params->loaders[slot], &request, ret_err);
}

/*
 * The load itself, in n_bytes of the account; is_part: it would like more. may_wait: where weights
 * would have to leave the device it comes back with what is missing (LOADER_SHORT), if others could
 * make that room.
 */
static int admission_start(struct service *s, uint32_t slot, uint64_t generation, uint64_t n_bytes,
	bool is_part, bool may_wait, struct err *ret_err)
{
	struct account_figures f;
	uint64_t room = admission_subtract_slack(n_bytes);
	uint64_t may_free = 0;

	account_get_figures(s->rooms[slot].account, &f);
	/* A budget for weights says itself what it leaves to others, and only weights can give. */
	if (s->params->policy->vram_budget) {
		may_free = admit_count(s, generation, slot);
	} else {
		may_free = admission_subtract_slack(f.n_budget_bytes) - room;
		if (is_part)
			room -= room >> ADMISSION_KV_SHIFT;
	}
	return admission_ask(s, slot, generation, room, may_wait ? may_free : 0, ret_err);
}

static void admission_answer(void *userdata, const struct account_request *q, int code,
	uint64_t n_bytes, const struct err *err)
{
	struct service_room *room = userdata;
	struct service *s = room->service;
	struct err failure = ERR_NULL;

	if (q->kind == ACCOUNT_GRANT) {
		struct peer *p = peer_find(s->params->peers, q->id);
		p->n_pending--;
		p->reserved_bytes = admission_count_grants(s, p);
		if (code < 0) {
			rpc_reply_error(p, q->request, code, err);
			return;
		}
		restart_save(s->restart);
		rpc_reply_reserved(p, q->request, n_bytes);
		return;
	}
	/* A load takes as little as nothing: it is never refused here. */
	int rc = admission_start(
		s, room->slot, q->id, n_bytes, n_bytes < q->n_bytes, false, &failure);
	if (rc < 0)
		outcome_fail(s, room->slot, q->id, rc, &failure);
}

/* ---- */

/* What was there before this weightd is to a driver what strangers take, but the account has it. */
static uint64_t admission_count_inherited(const struct service *s, uint32_t slot)
{
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < registry_count(s->registry); i++) {
		const struct service_generation *data = registry_at(s->registry, i)->data;
		const struct export *e = data->residencies[slot].export;
		n_bytes += e && e->is_inherited ? export_count_device_bytes(e) : 0;
		n_bytes += data->residencies[slot].remnant.n_device_bytes;
	}
	return n_bytes;
}

static uint64_t admission_cap_budget(const struct service *s, uint32_t slot, uint64_t n_bytes)
{
	const struct vk_device_info *info = loader_get_info(s->params->loaders[slot]);
	uint64_t n_most = info->heaps[load_find_largest_heap(info)].n_bytes;
	uint64_t n_reserved = s->params->policy->reserve_bytes;

	n_most = n_most > n_reserved ? n_most - n_reserved : 0;
	if (s->params->policy->device_budget && s->params->policy->device_budget < n_most)
		n_most = s->params->policy->device_budget;
	return n_bytes < n_most ? n_bytes : n_most;
}

static uint64_t admission_measure_budget(const struct service *s, uint32_t slot)
{
	struct loader *l = s->params->loaders[slot];
	const struct vk_device_info *info = loader_get_info(l);
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	uint64_t weights_bytes[VK_DEVICE_MAX_HEAPS];
	uint32_t heap = load_find_largest_heap(info);
	uint64_t n_bytes, n_reserved = s->params->policy->reserve_bytes;

	loader_get_heaps(l, heaps, weights_bytes);
	n_bytes = info->has_memory_budget ? heaps[heap].budget_bytes : heaps[heap].n_bytes;
	n_bytes = n_bytes > n_reserved ? n_bytes - n_reserved : 0;
	return admission_cap_budget(s, slot, n_bytes + admission_count_inherited(s, slot));
}

/* Memory from before this weightd comes to be known: the budget was measured without it. */
static void admission_raise_budget(struct service *s, uint32_t slot, uint64_t n_bytes)
{
	struct account_figures f;

	account_get_figures(s->rooms[slot].account, &f);
	account_set_budget(s->rooms[slot].account,
		admission_cap_budget(s, slot, f.n_budget_bytes + n_bytes), clock_now_ns());
}

int admission_init(struct service *s)
{
	for (uint32_t i = 0; i < s->params->n_loaders; i++) {
		struct service_room *room = &s->rooms[i];
		*room = (struct service_room){.service = s, .slot = i};
		const struct account_params params = {
			.device = loader_get_info(s->params->loaders[i])->name,
			.n_budget_bytes = admission_measure_budget(s, i),
			.wait_ns = ACCOUNT_WAIT_NS,
			.userdata = room,
			.shows = admission_shows,
			.press = admission_press,
			.evict = admission_evict,
			.answer = admission_answer};
		int rc = account_new(&params, &room->account);
		if (rc < 0)
			return rc;
	}
	return 0;
}

void admission_fini(struct service *s)
{
	for (uint32_t i = 0; i < ARRAY_SIZE(s->rooms); i++)
		s->rooms[i].account = account_free(s->rooms[i].account);
}

/* What the driver says holds as long as no worker has memory of its own there. */
static void admission_update_budget(struct service *s, uint32_t slot)
{
	struct account_figures f;

	account_get_figures(s->rooms[slot].account, &f);
	if (f.n_granted_bytes == 0 && f.n_waiting == 0)
		account_set_budget(
			s->rooms[slot].account, admission_measure_budget(s, slot), clock_now_ns());
}

/* The model that the peer leases, for people. */
static void admission_name_model(
	const struct service *s, const struct peer *p, char model[ACCOUNT_MAX_MODEL_BYTES])
{
	for (uint32_t i = 0; i < registry_count_leases(s->registry); i++) {
		const struct registry_lease *l = registry_lease_at(s->registry, i);
		if (l->is_hold || l->peer != p->id)
			continue;
		snprintf(model, ACCOUNT_MAX_MODEL_BYTES, "%s",
			registry_find(s->registry, l->generation)->model);
		return;
	}
	snprintf(model, ACCOUNT_MAX_MODEL_BYTES, "none");
}

/* The slot of the device; the foreign one for others. */
static uint32_t admission_find_device(const struct service *s, const uint8_t *uuid)
{
	uint32_t slot = 0;

	while (slot < s->params->n_loaders &&
		memcmp(uuid, loader_get_info(s->params->loaders[slot])->uuid, 16))
		slot++;
	return slot;
}

/* What the peer may have on the device by its socket, in all n_bytes. */
static int admission_check_quota(const struct service *s, const struct peer *p,
	const struct account *a, uint64_t n_bytes, struct err *ret_err)
{
	uint64_t n_others = admission_count_grants(s, p) - account_get_grant(a, p->id);

	return quota_check_reserve(s->registry, s->params->peers, s->params->holders, s->prefixes,
		p, n_others + n_bytes, acquire_get_bytes, ret_err);
}

void admission_recall(struct service *s, uint64_t holder, int32_t pid, const uint8_t *device_uuid,
	uint64_t n_bytes, const char *model)
{
	uint32_t slot = admission_find_device(s, device_uuid);
	struct account_request q = {.kind = ACCOUNT_GRANT, .id = holder, .pid = pid};

	if (!admission_find(s, slot))
		return;
	q.n_bytes = admission_cap_budget(s, slot, n_bytes);
	snprintf(q.model, sizeof(q.model), "%s", model);
	account_recall(admission_find(s, slot), &q);
	admission_raise_budget(s, slot, q.n_bytes);
}

/* More than the peer has on the device by now, or less. */
static int admission_correct(struct service *s, struct peer *p, uint32_t slot,
	struct account_request *q, struct err *ret_err)
{
	struct account *a = admission_find(s, slot);
	uint64_t n_before = account_get_grant(a, p->id);
	uint64_t n_bytes;

	/* More than there is nobody has ever been granted. */
	q->n_bytes = admission_cap_budget(s, slot, q->n_bytes);
	if (q->n_bytes <= n_before)
		return account_request(a, q, clock_now_ns(), ret_err, &n_bytes);
	int rc = admission_check_quota(s, p, a, q->n_bytes, ret_err);
	if (rc < 0)
		return rc;
	account_restore(a, q);
	admission_raise_budget(s, slot, q->n_bytes - n_before);
	return 0;
}

int admission_resume(struct service *s, struct peer *p, uint64_t holder, bool is_known,
	const struct admission_params *params, struct err *ret_err)
{
	uint32_t slot = admission_find_device(s, params->device_uuid);
	struct account *a = admission_find(s, slot);
	struct account_request q = {
		.kind = ACCOUNT_GRANT, .id = p->id, .n_bytes = params->n_bytes, .pid = p->pid};
	bool is_recalled = false;

	for (uint32_t i = 0; i < s->params->n_loaders && holder; i++)
		if (account_resume(s->rooms[i].account, holder, p->id))
			is_recalled |= i == slot;
	p->reserved_bytes = admission_count_grants(s, p);
	if (!a || !is_known)
		return 0;
	/* Weightd's own word of this life is better than the process's. */
	uint64_t n_known = account_get_grant(a, p->id);
	if (!is_recalled && (n_known > 0 || params->n_bytes == 0))
		return 0;
	snprintf(q.model, sizeof(q.model), "%s", params->model);
	int rc = admission_correct(s, p, slot, &q, ret_err);
	p->reserved_bytes = admission_count_grants(s, p);
	return rc < 0 ? rc : 0;
}

void admission_adopt(
	struct service *s, uint64_t generation, uint32_t slot, const char *model, uint64_t n_bytes)
{
	struct account_request q = {.kind = ACCOUNT_WEIGHTS, .id = generation, .n_bytes = n_bytes};

	if (!admission_find(s, slot))
		return;
	snprintf(q.model, sizeof(q.model), "%s", model);
	account_restore(admission_find(s, slot), &q);
	admission_raise_budget(s, slot, q.n_bytes);
}

int admission_reserve(struct service *s, struct peer *p, const struct admission_params *params,
	struct err *ret_err)
{
	struct account_request q = {.kind = ACCOUNT_GRANT,
		.id = p->id,
		.request = params->request,
		.n_bytes = params->n_bytes,
		.n_least_bytes = params->n_least_bytes,
		.is_modest = params->is_modest,
		.pid = p->pid};
	uint64_t n_bytes = params->n_bytes;
	uint32_t slot = admission_find_device(s, params->device_uuid);
	int rc = service_check_pending(p, ret_err);

	if (rc < 0)
		return rc;
	if (slot < s->params->n_loaders) {
		uint64_t holder = holders_find(s->params->holders, p);
		/* It goes on without what it leased, as the connection before was refused it or had
		 * nothing to ask for, and says here what it has in all. */
		if (holder && account_is_recalled(s->rooms[slot].account, holder))
			(void)account_resume(s->rooms[slot].account, holder, p->id);
		admission_update_budget(s, slot);
		admission_name_model(s, p, q.model);
		rc = admission_check_quota(s, p, s->rooms[slot].account, q.n_bytes, ret_err);
	}
	if (rc == 0 && slot < s->params->n_loaders)
		rc = account_request(s->rooms[slot].account, &q, clock_now_ns(), ret_err, &n_bytes);
	if (rc < 0)
		return rc;
	p->reserved_bytes = admission_count_grants(s, p);
	if (rc == ACCOUNT_WAIT) {
		p->n_pending++;
		/* Others of its socket are not to be promised the same in the meantime. */
		if (q.n_bytes > account_get_grant(s->rooms[slot].account, p->id))
			p->reserved_bytes +=
				q.n_bytes - account_get_grant(s->rooms[slot].account, p->id);
	} else {
		restart_save(s->restart); /* before it allocates, what it may have must be known */
		rpc_reply_reserved(p, params->request, n_bytes);
	}
	return 0;
}

static void admission_make_request(const struct service *s, uint64_t generation, uint64_t n_bytes,
	struct account_request *ret_request)
{
	*ret_request = (struct account_request){
		.kind = ACCOUNT_WEIGHTS, .id = generation, .n_bytes = n_bytes};
	snprintf(ret_request->model, sizeof(ret_request->model), "%s",
		registry_find(s->registry, generation)->model);
}

int admission_load(struct service *s, uint64_t generation, uint32_t slot, struct err *ret_err)
{
	const struct registry_generation *g = registry_find(s->registry, generation);
	const struct service_generation *data = g->data;
	struct account_request q;

	admission_update_budget(s, slot);
	admission_make_request(s, generation, admission_add_slack(data->file_bytes), &q);
	uint64_t n_bytes = account_take(s->rooms[slot].account, &q);
	int rc = admission_start(s, slot, generation, n_bytes, n_bytes < q.n_bytes, true, ret_err);
	if (rc < 0)
		admission_settle(s, generation, slot, NULL);
	return rc;
}

/* In as much more as the account gives, now or later. */
static int admission_load_again(struct service *s, uint64_t generation, uint32_t slot,
	uint64_t n_wanted_bytes, bool may_wait, struct err *ret_err)
{
	struct account_request q;
	uint64_t n_bytes = 0;

	admission_make_request(s, generation, admission_add_slack(n_wanted_bytes), &q);
	int rc = account_request(s->rooms[slot].account, &q, clock_now_ns(), ret_err, &n_bytes);
	if (rc == 0)
		rc = admission_start(
			s, slot, generation, n_bytes, n_bytes < q.n_bytes, may_wait, ret_err);
	return rc < 0 ? rc : 0;
}

void admission_on_short(
	struct service *s, uint64_t generation, uint32_t slot, const struct loader_result *r)
{
	bool is_filling = registry_find(s->registry, generation)->is_filling;
	uint64_t n_freed = publish_evict(s, slot, r->short_bytes);
	bool has_room = n_freed >= r->short_bytes ||
			admit_evict(s, generation, slot, r->short_bytes - n_freed);
	struct err failure = ERR_NULL;
	int rc;

	if (!has_room && is_filling && admit_drain(s, generation, r->short_bytes)) {
		admission_settle(s, generation, slot, NULL);
		return;
	}
	if (!has_room && s->params->policy->vram_budget) /* what there is has to do */
		rc = admission_ask(s, slot, generation, r->room_bytes, 0, &failure);
	else
		rc = admission_load_again(s, generation, slot, r->room_bytes + r->short_bytes,
			has_room && s->params->policy->vram_budget, &failure);
	if (rc < 0)
		outcome_fail(s, slot, generation, rc, &failure);
}

bool admission_cancel(struct service *s, uint64_t generation)
{
	struct err err = ERR_NULL;

	for (uint32_t i = 0; i < s->params->n_loaders; i++) {
		if (!account_is_waiting(s->rooms[i].account, ACCOUNT_WEIGHTS, generation))
			continue;
		int rc = err_set(&err, ECANCELED, "the load was given up");
		outcome_fail(s, i, generation, rc, &err);
		return true;
	}
	return false;
}

void admission_settle(struct service *s, uint64_t generation, uint32_t slot, const struct export *e)
{
	struct account *a = admission_find(s, slot);

	if (!a)
		return;
	account_set_weights(a, generation, e ? export_count_device_bytes(e) : 0, clock_now_ns());
	if (!e)
		(void)account_leave(a, generation, clock_now_ns());
}

void admission_explain(struct service *s, uint32_t slot, struct err *err)
{
	if (admission_find(s, slot))
		account_list_grants(admission_find(s, slot), err);
}

void admission_leave(struct service *s, uint64_t generation, uint32_t slot)
{
	if (admission_find(s, slot))
		(void)account_leave(admission_find(s, slot), generation, clock_now_ns());
}

uint64_t admission_drop_remnant(
	struct service *s, uint64_t generation, uint32_t slot, struct service_remnant *remnant)
{
	uint64_t n_bytes = remnant->n_device_bytes;

	*remnant = (struct service_remnant){.n_device_bytes = 0};
	if (!n_bytes || !admission_find(s, slot))
		return n_bytes;
	/* No loader frees it: it went with the last process. */
	admission_leave(s, generation, slot);
	account_freed(admission_find(s, slot), n_bytes, clock_now_ns());
	return n_bytes;
}

void admission_charge(struct service *s, struct peer *p, uint64_t prefix, uint32_t slot,
	const char *model, uint64_t n_bytes)
{
	struct account_request q = {.kind = ACCOUNT_WEIGHTS, .id = prefix, .n_bytes = n_bytes};
	struct account *a = admission_find(s, slot);
	struct err ignored = ERR_NULL;
	uint64_t n_left;

	if (!a)
		return;
	snprintf(q.model, sizeof(q.model), "%s", model);
	account_restore(a, &q);
	q = (struct account_request){.kind = ACCOUNT_GRANT, .id = p->id, .pid = p->pid};
	q.n_bytes = q.n_least_bytes = account_get_grant(a, p->id) - n_bytes;
	admission_name_model(s, p, q.model);
	/* Refused where the peer waits for more: what it gets then it has said by itself. */
	(void)!account_request(a, &q, clock_now_ns(), &ignored, &n_left);
	p->reserved_bytes = admission_count_grants(s, p);
}

void admission_discharge(struct service *s, uint64_t prefix, uint32_t slot)
{
	struct account *a = admission_find(s, slot);

	/* Only what was charged: others' bytes may be on their way out as well. */
	if (a)
		account_freed(a, account_leave(a, prefix, clock_now_ns()), clock_now_ns());
}

void admission_collect(struct service *s)
{
	for (uint32_t i = 0; i < s->params->n_loaders; i++) {
		uint64_t n_bytes = loader_take_freed_bytes(s->params->loaders[i]);
		if (n_bytes)
			account_freed(s->rooms[i].account, n_bytes, clock_now_ns());
	}
}

void admission_close(struct service *s, const struct peer *p, uint64_t holder)
{
	for (uint32_t i = 0; i < s->params->n_loaders; i++)
		account_close(s->rooms[i].account, p->id, holder, clock_now_ns());
}

void admission_exit(struct service *s, uint64_t holder)
{
	for (uint32_t i = 0; i < s->params->n_loaders; i++)
		account_exit(s->rooms[i].account, holder, clock_now_ns());
}

void admission_tick(struct service *s)
{
	for (uint32_t i = 0; i < s->params->n_loaders; i++)
		account_tick(s->rooms[i].account, clock_now_ns());
}
