/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/record.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "weightd/account.h"
#include "weightd/admission.h"
#include "weightd/holders.h"
#include "weightd/lease-index.h"
#include "weightd/loader.h"
#include "weightd/peer.h"
#include "weightd/service.h"

/* What one process had by two sockets are two rows, as they are charged apart; so are
 * what it leased and what it held. */
static bool record_is_same(const struct state_holder *a, const struct state_holder *b)
{
	return a->pid > 0 && a->pid == b->pid && a->start_ticks == b->start_ticks &&
	       a->socket == b->socket && a->is_hold == b->is_hold;
}

/* The row of who; NULL and 0: there are as many as a reader takes, and more are not waited for. */
static int record_find_row(
	struct state *state, const struct state_holder *who, struct state_holder **ret_row)
{
	/* What a process holds is told in one go, and there may be thousands that hold: only the
	 * last row can be that one. */
	uint32_t first = who->is_hold && state->n_holders > 0 ? state->n_holders - 1 : 0;

	*ret_row = NULL;
	/* From the last: most often it is that one. */
	for (uint32_t i = state->n_holders; i > first; i--)
		if (record_is_same(&state->holders[i - 1], who)) {
			*ret_row = &state->holders[i - 1];
			return 0;
		}
	if (state->n_holders == STATE_MAX_HOLDERS)
		return 0;
	struct state_holder *rows =
		reallocarray(state->holders, state->n_holders + 1, sizeof(*state->holders));
	if (!rows)
		return -ENOMEM;
	state->holders = rows;
	rows[state->n_holders] = (struct state_holder){.pid = who->pid,
		.start_ticks = who->start_ticks,
		.uid = who->uid,
		.socket = who->socket,
		.is_hold = who->is_hold};
	*ret_row = &rows[state->n_holders++];
	return 0;
}

int record_add_holder(struct state *state, const struct state_holder *who, uint64_t generation)
{
	struct state_holder *h = NULL;
	int rc = record_find_row(state, who, &h);

	if (rc < 0 || !h)
		return rc;
	for (uint32_t i = 0; i < h->n_generations; i++)
		if (h->generations[i] == generation)
			return 0;
	uint64_t *ids = reallocarray(h->generations, h->n_generations + 1, sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	h->generations = ids;
	ids[h->n_generations++] = generation;
	return 0;
}

int record_add_grant(
	struct state *state, const struct state_holder *who, const struct state_grant *grant)
{
	struct state_holder *h = NULL;
	int rc = record_find_row(state, who, &h);

	if (rc < 0 || !h)
		return rc;
	/* Of two connections of a process. */
	for (uint32_t i = 0; i < h->n_grants; i++)
		if (!memcmp(h->grants[i].device_uuid, grant->device_uuid,
			    sizeof(grant->device_uuid))) {
			h->grants[i].n_bytes += grant->n_bytes;
			return 0;
		}
	if (h->n_grants == SERVICE_MAX_DEVICES)
		return 0;
	struct state_grant *rows = reallocarray(h->grants, h->n_grants + 1, sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	h->grants = rows;
	rows[h->n_grants++] = *grant;
	return 0;
}

/* ---- all there are ---- */

/* A grant, and whose. */
struct record_grant {
	uint64_t id;
	struct state_grant grant;
};

struct record_processes {
	const struct service *service;
	struct state *state;
	struct lease_index leases;
	struct lease_index holds;
	uint32_t n_grants;
	struct record_grant *grants; /* ids rise */
	const uint8_t *device_uuid;  /* of those that are collected */
	int code;
};

static void record_fini_processes(struct record_processes *r)
{
	lease_index_fini(&r->leases);
	lease_index_fini(&r->holds);
	free(r->grants);
}

static void record_collect_grant(uint64_t id, uint64_t n_bytes, const char *model, void *userdata)
{
	struct record_processes *r = userdata;
	struct record_grant *rows = NULL;

	if (r->code == 0)
		rows = reallocarray(r->grants, r->n_grants + 1, sizeof(*rows));
	if (!rows) {
		r->code = -ENOMEM;
		return;
	}
	r->grants = rows;
	struct record_grant *to = &rows[r->n_grants++];
	*to = (struct record_grant){.id = id, .grant.n_bytes = n_bytes};
	memcpy(to->grant.device_uuid, r->device_uuid, sizeof(to->grant.device_uuid));
	snprintf(to->grant.model, sizeof(to->grant.model), "%s", model);
}

static int record_compare_grants(const void *a, const void *b)
{
	const struct record_grant *x = a, *y = b;

	return (x->id > y->id) - (x->id < y->id);
}

static int record_init_processes(
	const struct service *s, struct state *state, struct record_processes *r)
{
	const struct service_params *params = service_get_params(s);

	*r = (struct record_processes){.service = s, .state = state};
	r->code = lease_index_init(service_get_registry(s), &r->leases);
	if (r->code == 0)
		r->code = lease_index_init_holds(service_get_registry(s), &r->holds);
	for (uint32_t i = 0; i < params->n_loaders && r->code == 0; i++) {
		r->device_uuid = loader_get_info(params->loaders[i])->uuid;
		account_visit_grants(admission_get_account(s, i), record_collect_grant, r);
	}
	if (r->n_grants > 0)
		qsort(r->grants, r->n_grants, sizeof(*r->grants), record_compare_grants);
	return r->code;
}

static void record_add_leases(struct record_processes *r, const struct lease_index *index,
	uint64_t id, const struct state_holder *who)
{
	struct registry *registry = service_get_registry(r->service);
	const struct registry_lease *const *leases;
	uint32_t n = lease_index_find(index, id, &leases);

	for (uint32_t i = 0; i < n && r->code == 0; i++)
		if (record_is_kept(registry_find(registry, leases[i]->generation)))
			r->code = record_add_holder(r->state, who, leases[i]->generation);
}

static void record_add_grants(
	struct record_processes *r, uint64_t id, const struct state_holder *who)
{
	uint32_t low = 0, high = r->n_grants;

	/* Whose end nothing would tell of. */
	if (who->pid == 0)
		return;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (r->grants[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < r->n_grants && r->grants[low].id == id && r->code == 0; low++)
		r->code = record_add_grant(r->state, who, &r->grants[low].grant);
}

static void record_add_hold(uint64_t id, const struct holders_process *process, void *userdata)
{
	struct record_processes *r = userdata;
	const struct state_holder who = {.pid = process->pid,
		.start_ticks = process->start_ticks,
		.uid = process->uid,
		.socket = peer_get_socket(id),
		.is_hold = true};

	record_add_leases(r, &r->holds, id, &who);
	record_add_grants(r, id, &who);
}

int record_add_processes(const struct service *s, struct state *state)
{
	_cleanup_(record_fini_processes)
	struct record_processes r = {0};
	const struct peer *p;
	int rc = record_init_processes(s, state, &r);

	if (rc < 0)
		return rc;
	TAILQ_FOREACH(p, service_get_params(s)->peers, entry)
	{
		const struct state_holder who = {.pid = p->pid,
			.start_ticks = p->start_ticks,
			.uid = p->uid,
			.socket = peer_get_socket(p->id)};
		record_add_leases(&r, &r.leases, p->id, &who);
		record_add_grants(&r, p->id, &who);
	}
	holders_visit(service_get_params(s)->holders, record_add_hold, &r);
	return r.code;
}
