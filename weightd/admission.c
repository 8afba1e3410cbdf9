/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/admission.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "weightd/account.h"
#include "weightd/acquire.h"
#include "weightd/export.h"
#include "weightd/loader.h"
#include "weightd/outcome.h"
#include "weightd/policy.h"
#include "weightd/service-internal.h"
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

	service_evict(room->service, room->slot, n_bytes);
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

/*
 * The load itself, in n_bytes of the account; is_part: it would like more. may_wait: where weights
 * would have to leave the device it comes back with what is missing (LOADER_SHORT), if others could
 * make that room.
 */
static int admission_start(struct service *s, uint32_t slot, uint64_t generation, uint64_t n_bytes,
	bool is_part, bool may_wait, struct err *ret_err)
{
	const struct registry_generation *g = registry_find(s->registry, generation);
	const struct service_generation *data = g->data;
	struct account_figures f;
	uint64_t room = admission_subtract_slack(n_bytes);

	account_get_figures(s->rooms[slot].account, &f);
	/* A budget for weights says itself what it leaves to others, and is not theirs to give. */
	if (s->params->policy->vram_budget)
		may_wait = false;
	else if (is_part)
		room -= room >> ADMISSION_KV_SHIFT;
	return loader_load_within(s->params->loaders[slot], generation, data->source, room,
		may_wait ? admission_subtract_slack(f.n_budget_bytes) - room : 0, ret_err);
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
		if (code < 0)
			rpc_reply_error(p, q->request, code, err);
		else
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
	if (s->params->policy->device_budget && s->params->policy->device_budget < n_bytes)
		n_bytes = s->params->policy->device_budget;
	return n_bytes;
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
		account_set_budget(s->rooms[slot].account, admission_measure_budget(s, slot),
			service_now_ns());
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

void admission_resume(struct service *s, const struct peer *p, uint64_t holder,
	const struct admission_params *params)
{
	struct account *a = admission_find(s, admission_find_device(s, params->device_uuid));
	struct account_request q = {
		.kind = ACCOUNT_GRANT, .id = p->id, .n_bytes = params->n_bytes, .pid = p->pid};

	for (uint32_t i = 0; i < s->params->n_loaders && holder; i++)
		account_resume(s->rooms[i].account, holder, p->id);
	if (!a || account_get_grant(a, p->id) > 0 || params->n_bytes == 0)
		return;
	admission_name_model(s, p, q.model);
	account_restore(a, &q);
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
		admission_update_budget(s, slot);
		admission_name_model(s, p, q.model);
		rc = account_request(
			s->rooms[slot].account, &q, service_now_ns(), ret_err, &n_bytes);
	}
	if (rc < 0)
		return rc;
	if (rc == ACCOUNT_WAIT)
		p->n_pending++;
	else
		rpc_reply_reserved(p, params->request, n_bytes);
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

void admission_on_short(
	struct service *s, uint64_t generation, uint32_t slot, uint64_t n_wanted_bytes)
{
	struct account *a = admission_find(s, slot);
	struct err failure = ERR_NULL;
	struct account_request q;
	uint64_t n_bytes = 0;

	admission_make_request(s, generation, admission_add_slack(n_wanted_bytes), &q);
	int rc = account_request(a, &q, service_now_ns(), &failure, &n_bytes);
	if (rc == 0)
		rc = admission_start(
			s, slot, generation, n_bytes, n_bytes < q.n_bytes, false, &failure);
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
	account_set_weights(a, generation, e ? export_count_device_bytes(e) : 0, service_now_ns());
	if (!e)
		account_leave(a, generation, service_now_ns());
}

void admission_explain(struct service *s, uint32_t slot, int code, struct err *err)
{
	if (admission_find(s, slot) && (code == -ENOMEM || code == -ENOSPC || code == -E2BIG))
		account_list_holders(admission_find(s, slot), err);
}

void admission_leave(struct service *s, uint64_t generation, uint32_t slot)
{
	if (admission_find(s, slot))
		account_leave(admission_find(s, slot), generation, service_now_ns());
}

void admission_collect(struct service *s)
{
	for (uint32_t i = 0; i < s->params->n_loaders; i++) {
		uint64_t n_bytes = loader_take_freed_bytes(s->params->loaders[i]);
		if (n_bytes)
			account_freed(s->rooms[i].account, n_bytes, service_now_ns());
	}
}

void admission_close(struct service *s, const struct peer *p, uint64_t holder)
{
	for (uint32_t i = 0; i < s->params->n_loaders; i++)
		account_close(s->rooms[i].account, p->id, holder, service_now_ns());
}

void admission_exit(struct service *s, uint64_t holder)
{
	for (uint32_t i = 0; i < s->params->n_loaders; i++)
		account_exit(s->rooms[i].account, holder, service_now_ns());
}

void admission_tick(struct service *s)
{
	for (uint32_t i = 0; i < s->params->n_loaders; i++)
		account_tick(s->rooms[i].account, service_now_ns());
}
