/* SPDX-License-Identifier: Apache-2.0 */
/* The answer to StatusRequest: all that there is, in as many packets as it takes. */
#include "weightd/rpc-reply.h"

#include <string.h>
#include <unistd.h>

#include "proto/util/clock.h"
#include "proto/weightd.pb-c.h"
#include "proto/wire.h"
#include "weightd/account.h"
#include "weightd/admission.h"
#include "weightd/holders.h"
#include "weightd/lease-index.h"
#include "weightd/loader.h"
#include "weightd/peer.h"
#include "weightd/registry.h"
#include "weightd/reply-arena.h"
#include "weightd/restart.h"
#include "weightd/rpc-packet.h"
#include "weightd/rpc-reply-internal.h"
#include "weightd/service.h"
#include "weightd/shown.h"

enum { REPLY_MAX_HOLDERS = 1024 /* that are told of; the generation counts them all */ };

static Wd__WorkerReport *reply_make_report(struct reply_arena *a, const struct peer *p)
{
	Wd__WorkerReport *m = reply_arena_alloc(a, 1, sizeof(*m));

	if (!m)
		return NULL;
	wd__worker_report__init(m);
	m->kv_bytes = p->report.kv_bytes;
	m->scratch_bytes = p->report.scratch_bytes;
	m->io_bytes = p->report.io_bytes;
	m->n_sessions = p->report.n_sessions;
	m->attach_ns = p->report.attach_ns;
	m->socket = (char *)p->report.socket;
	return m;
}

/* With leases of a connection, or what a holder still has; NULL without memory. */
static Wd__Peer *reply_make_leases(struct reply_arena *a, struct registry *r,
	const struct registry_lease *const *leases, uint32_t n, uint64_t now_ns)
{
	Wd__Peer *m = reply_arena_alloc(a, 1, sizeof(*m));
	Wd__Lease *rows = reply_arena_alloc(a, n, sizeof(*rows));
	Wd__Lease **at = reply_arena_alloc(a, n, sizeof(*at));

	if (a->is_failed)
		return NULL;
	wd__peer__init(m);
	m->leases = at;
	for (uint32_t i = 0; i < n; i++) {
		const struct registry_lease *l = leases[i];
		Wd__Lease *lease = at[m->n_leases] = &rows[m->n_leases];
		m->n_leases++;
		wd__lease__init(lease);
		lease->model = registry_find(r, l->generation)->model;
		lease->generation = l->generation;
		lease->age_ns = now_ns - l->since_ns;
	}
	return m;
}

static Wd__Peer *reply_make_peer(struct reply_arena *a, const struct service *s,
	const struct lease_index *index, const struct peer *p, uint64_t now_ns)
{
	const struct registry_lease *const *leases;
	uint32_t n = lease_index_find(index, p->id, &leases);
	Wd__Peer *m = reply_make_leases(a, service_get_registry(s), leases, n, now_ns);

	if (!m)
		return NULL;
	m->pid = p->pid;
	m->uid = p->uid;
	m->gid = p->gid;
	m->role = (Wd__Role)p->role;
	m->reserved_bytes = admission_count_grants(s, p);
	if (p->has_report)
		m->report = reply_make_report(a, p);
	return a->is_failed ? NULL : m;
}

/* A status on its way out in packets: rows are added until one more would not fit. */
struct reply_status {
	struct peer *peer;
	uint64_t request;
	Wd__Status *status;
	size_t n_bytes; /* an upper bound of the packet so far */
};

/* With `more`, and the next packet begins without the head. */
static void reply_status_flush(struct reply_status *r, bool more)
{
	Wd__Reply reply = WD__REPLY__INIT;

	r->status->more = more;
	reply.body_case = WD__REPLY__BODY_STATUS;
	reply.status = r->status;
	rpc_packet_send(r->peer, r->request, &reply, NULL, 0);
	Wd__Model **models = r->status->models;
	Wd__Peer **peers = r->status->peers;
	wd__status__init(r->status);
	r->status->models = models;
	r->status->peers = peers;
	r->n_bytes = RPC_REPLY_ENVELOPE_BYTES;
}

/* Room for a row of n_bytes and its tag and length. */
static void reply_status_reserve(struct reply_status *r, size_t n_bytes)
{
	enum { TAG_BYTES = 8 };

	if (r->n_bytes + n_bytes + TAG_BYTES > WIRE_MAX_BYTES)
		reply_status_flush(r, true);
	r->n_bytes += n_bytes + TAG_BYTES;
}

/* Generations of a model that do not fit go on in the next packet, in a row of the same name. */
static void reply_status_add_model(
	struct reply_status *r, struct reply_arena *a, const Wd__Model *model)
{
	Wd__Model *row = NULL;

	for (size_t i = 0; i < model->n_generations; i++) {
		size_t n_before = r->status->n_models;
		size_t n_bytes = wd__generation__get_packed_size(model->generations[i]);
		reply_status_reserve(r, n_bytes + strlen(model->name) + 8);
		if (!row || r->status->n_models != n_before) {
			row = reply_arena_alloc(a, 1, sizeof(*row));
			if (!row)
				return;
			wd__model__init(row);
			row->name = model->name;
			row->generations = model->generations + i;
			r->status->models[r->status->n_models++] = row;
		}
		row->n_generations++;
	}
}

static void reply_add_account(struct reply_arena *a, const struct account *account, Wd__Device *d)
{
	struct account_figures f;

	d->account = reply_arena_alloc(a, 1, sizeof(*d->account));
	if (!d->account)
		return;
	account_get_figures(account, &f);
	wd__account__init(d->account);
	d->account->budget_bytes = f.n_budget_bytes;
	d->account->weights_bytes = f.n_weights_bytes;
	d->account->reserved_bytes = f.n_granted_bytes;
	d->account->n_waiting = f.n_waiting;
}

static void reply_add_peer(struct reply_status *r, Wd__Peer *row)
{
	if (!row)
		return;
	reply_status_reserve(r, wd__peer__get_packed_size(row));
	r->status->peers[r->status->n_peers++] = row;
}

/* Processes that hold without a lease, each once, as far as the peer may see them. */
static void reply_add_holders(
	struct reply_status *r, struct reply_arena *a, struct service *s, uint64_t now_ns)
{
	struct registry *registry = service_get_registry(s);
	uint32_t n_all = 0;
	_cleanup_(lease_index_fini)
	struct lease_index index = {0};

	if (lease_index_init_holds(registry, &index) < 0) {
		a->is_failed = true;
		return;
	}
	for (uint32_t i = 0; i < index.n && n_all < REPLY_MAX_HOLDERS; n_all++) {
		uint64_t id = index.leases[i]->peer;
		const struct registry_lease *const *holds;
		uint32_t n = lease_index_find(&index, id, &holds);
		const struct holders_process *who =
			holders_find_process(service_get_params(s)->holders, id);
		i += n;
		if (!who || !shown_holder(r->peer, id))
			continue;
		Wd__Peer *row = reply_make_leases(a, registry, holds, n, now_ns);
		if (!row)
			return;
		row->is_gone = true;
		row->pid = who->pid;
		row->uid = who->uid;
		row->gid = who->gid;
		row->role = (Wd__Role)who->role;
		reply_add_peer(r, row);
	}
}

static void reply_add_devices(struct reply_arena *a, const struct service *s, Wd__Status *status)
{
	const struct service_params *params = service_get_params(s);

	status->devices = reply_arena_alloc(a, params->n_loaders, sizeof(Wd__Device *));
	for (uint32_t i = 0; i < params->n_loaders && !a->is_failed; i++) {
		Wd__Device *d = rpc_reply_make_device(a, params->loaders[i]);
		if (d)
			reply_add_account(a, admission_get_account(s, i), d);
		status->devices[status->n_devices++] = d;
	}
}

void rpc_reply_status(struct peer *p, uint64_t request, struct service *s)
{
	_cleanup_(reply_arena_fini)
	struct reply_arena arena = {0};
	struct registry *registry = service_get_registry(s);
	const struct peer_list *peers = service_get_params(s)->peers;
	Wd__Status status = WD__STATUS__INIT;
	struct reply_status r = {.peer = p, .request = request, .status = &status};
	uint64_t now_ns = clock_now_ns();
	size_t n_models = 0;
	Wd__Model **models = rpc_reply_make_models(&arena, s, p, true, &n_models);
	const struct peer *other;
	_cleanup_(lease_index_fini)
	struct lease_index index = {0};

	arena.is_failed |= lease_index_init(registry, &index) < 0;
	status.pid = getpid();
	status.build = (char *)WEIGHTD_VERSION;
	status.uptime_ns = service_get_uptime_ns(s);
	status.device = rpc_reply_make_device(&arena, service_get_params(s)->loaders[0]);
	reply_add_devices(&arena, s, &status);
	status.models = reply_arena_alloc(&arena,
		registry_count(registry) + restart_count(service_get_params(s)->restart),
		sizeof(Wd__Model *));
	status.peers = reply_arena_alloc(&arena, PEER_MAX + REPLY_MAX_HOLDERS, sizeof(Wd__Peer *));
	r.n_bytes = wd__status__get_packed_size(&status) + RPC_REPLY_ENVELOPE_BYTES;
	for (size_t i = 0; i < n_models && !arena.is_failed; i++)
		reply_status_add_model(&r, &arena, models[i]);
	TAILQ_FOREACH(other, peers, entry)
	if (!arena.is_failed && shown_peer(p, other))
		reply_add_peer(&r, reply_make_peer(&arena, s, &index, other, now_ns));
	if (!arena.is_failed)
		reply_add_holders(&r, &arena, s, now_ns);
	if (arena.is_failed)
		peer_break(p, "%s", "out of memory");
	else
		reply_status_flush(&r, false);
}
