/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/rpc-reply.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/fdlist.h"
#include "proto/manifest.h"
#include "proto/util/cleanup.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/weightd.pb-c.h"
#include "proto/wire.h"
#include "weightd/access.h"
#include "weightd/check.h"
#include "weightd/export.h"
#include "weightd/loader.h"
#include "weightd/peer.h"
#include "weightd/registry.h"
#include "weightd/reply-arena.h"
#include "weightd/restart.h"
#include "weightd/rpc-packet.h"
#include "weightd/rpc-reply-internal.h"
#include "weightd/service.h"
#include "weightd/source.h"

/* What it holds, for the digests of a message: as they are known now. */
struct reply_contents {
	uint8_t bytes[IDENTITY_BYTES];
	ProtobufCBinaryData identity;
	ProtobufCBinaryData file_identity;
};

static void reply_fill_contents(const struct export *e, struct reply_contents *c)
{
	*c = (struct reply_contents){.identity = {.len = 0}};
	if (e->check && check_get_identity(e->check, c->bytes))
		c->identity = (ProtobufCBinaryData){.len = IDENTITY_BYTES, .data = c->bytes};
	if (e->has_file_identity)
		c->file_identity = (ProtobufCBinaryData){
			.len = IDENTITY_BYTES, .data = (uint8_t *)e->file_identity};
}

/* ---- small ones ---- */

void rpc_reply_error(struct peer *p, uint64_t request, int code, const struct err *err)
{
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Error error = WD__ERROR__INIT;

	error.code = -code;
	error.text = (char *)err->text;
	reply.body_case = WD__REPLY__BODY_ERROR;
	reply.error = &error;
	rpc_packet_send(p, request, &reply, NULL, 0);
}

void rpc_reply_done(struct peer *p, uint64_t request, uint64_t generation)
{
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Done done = WD__DONE__INIT;

	done.generation = generation;
	reply.body_case = WD__REPLY__BODY_DONE;
	reply.done = &done;
	rpc_packet_send(p, request, &reply, NULL, 0);
}

void rpc_reply_reserved(struct peer *p, uint64_t request, uint64_t n_bytes)
{
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Reserved reserved = WD__RESERVED__INIT;

	reserved.n_bytes = n_bytes;
	reply.body_case = WD__REPLY__BODY_RESERVED;
	reply.reserved = &reserved;
	rpc_packet_send(p, request, &reply, NULL, 0);
}

void rpc_reply_resumed(
	struct peer *p, uint64_t request, uint64_t generation, const struct export *e)
{
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Resumed resumed = WD__RESUMED__INIT;
	struct reply_contents contents;

	resumed.generation = generation;
	if (e) {
		reply_fill_contents(e, &contents);
		resumed.identity = contents.identity;
		resumed.file_identity = contents.file_identity;
	}
	reply.body_case = WD__REPLY__BODY_RESUMED;
	reply.resumed = &resumed;
	rpc_packet_send(p, request, &reply, NULL, 0);
}

void rpc_reply_wants_descriptors(struct peer *p, uint64_t request, uint64_t generation)
{
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Resumed resumed = WD__RESUMED__INIT;

	resumed.generation = generation;
	resumed.wants_descriptors = true;
	reply.body_case = WD__REPLY__BODY_RESUMED;
	reply.resumed = &resumed;
	rpc_packet_send(p, request, &reply, NULL, 0);
}

void rpc_reply_event(struct peer *p, const struct rpc_reply_event *event)
{
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Event e = WD__EVENT__INIT;
	struct reply_contents contents;

	e.kind = (Wd__Event__Kind)event->kind;
	e.model = (char *)(event->model ? event->model : "");
	e.generation = event->generation;
	e.loaded_bytes = event->loaded_bytes;
	e.total_bytes = event->total_bytes;
	e.text = (char *)(event->text ? event->text : "");
	e.pid = event->pid;
	e.since_ns = event->since_ns;
	if (event->export) {
		reply_fill_contents(event->export, &contents);
		e.identity = contents.identity;
		e.file_identity = contents.file_identity;
	}
	reply.body_case = WD__REPLY__BODY_EVENT;
	reply.event = &e;
	rpc_packet_send(p, 0, &reply, NULL, 0);
}

/* One packet: CHECK_MAX_DIFFERENCES rows of at most some 100 bytes. */
void rpc_reply_verified(
	struct peer *p, uint64_t request, uint64_t generation, const struct check_report *report)
{
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Verified verified = WD__VERIFIED__INIT;
	Wd__Difference rows[CHECK_MAX_DIFFERENCES];
	Wd__Difference *at[CHECK_MAX_DIFFERENCES];

	for (uint32_t i = 0; i < report->n_differences; i++) {
		const struct check_difference *d = &report->differences[i];
		at[i] = &rows[i];
		wd__difference__init(&rows[i]);
		rows[i].tensor = (char *)d->tensor;
		rows[i].allocation = d->alloc;
		rows[i].offset = d->offset;
		rows[i].n_bytes = d->n_bytes;
	}
	verified.generation = generation;
	verified.n_bytes = report->n_bytes;
	verified.elapsed_ns = report->elapsed_ns;
	verified.n_tensors = report->n_tensors;
	verified.n_differences = report->n_differences;
	verified.differences = at;
	reply.body_case = WD__REPLY__BODY_VERIFIED;
	reply.verified = &verified;
	rpc_packet_send(p, request, &reply, NULL, 0);
}

/* ---- Welcome ---- */

static void reply_add_abilities(struct reply_arena *a, const struct vk_probe *probe, Wd__Device *d)
{
	Wd__Ability *rows = reply_arena_alloc(a, VK_PROBE_N, sizeof(*rows));

	d->abilities = reply_arena_alloc(a, VK_PROBE_N, sizeof(*d->abilities));
	if (a->is_failed)
		return;
	for (uint32_t i = 0; i < VK_PROBE_N; i++) {
		wd__ability__init(&rows[i]);
		rows[i].kind = (char *)vk_probe_kind_name((enum vk_probe_kind)i);
		rows[i].ok = probe->kinds[i].is_ok;
		rows[i].reason = (char *)probe->kinds[i].reason;
		d->abilities[d->n_abilities++] = &rows[i];
	}
}

Wd__Device *rpc_reply_make_device(struct reply_arena *a, struct loader *loader)
{
	const struct vk_device_info *info = loader_get_info(loader);
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	uint64_t weights_bytes[VK_DEVICE_MAX_HEAPS];
	Wd__Device *d = reply_arena_alloc(a, 1, sizeof(*d));
	Wd__Heap *rows = reply_arena_alloc(a, info->n_heaps, sizeof(*rows));
	Wd__Heap **at = reply_arena_alloc(a, info->n_heaps, sizeof(*at));

	if (a->is_failed)
		return NULL;
	loader_get_heaps(loader, heaps, weights_bytes);
	wd__device__init(d);
	d->uuid = (ProtobufCBinaryData){.len = 16, .data = (uint8_t *)info->uuid};
	d->driver_uuid = (ProtobufCBinaryData){.len = 16, .data = (uint8_t *)info->driver_uuid};
	d->name = (char *)info->name;
	d->software = info->is_software;
	d->n_heaps = info->n_heaps;
	d->heaps = at;
	for (uint32_t i = 0; i < info->n_heaps; i++) {
		at[i] = &rows[i];
		wd__heap__init(&rows[i]);
		rows[i].n_bytes = heaps[i].n_bytes;
		rows[i].device_local = heaps[i].device_local;
		rows[i].weights_bytes = weights_bytes[i];
		rows[i].budget_bytes = info->has_memory_budget ? heaps[i].budget_bytes : 0;
		rows[i].usage_bytes = heaps[i].usage_bytes;
	}
	if (loader_get_probe(loader))
		reply_add_abilities(a, loader_get_probe(loader), d);
	return d;
}

void rpc_reply_welcome(struct peer *p, uint64_t request, struct service *s)
{
	_cleanup_(reply_arena_fini)
	struct reply_arena arena = {0};
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Welcome welcome = WD__WELCOME__INIT;

	welcome.protocol = WIRE_PROTOCOL;
	welcome.build = (char *)WEIGHTD_VERSION;
	welcome.device = rpc_reply_make_device(&arena, service_get_params(s)->loaders[0]);
	if (arena.is_failed) {
		peer_break(p, "%s", "out of memory");
		return;
	}
	reply.body_case = WD__REPLY__BODY_WELCOME;
	reply.welcome = &welcome;
	rpc_packet_send(p, request, &reply, NULL, 0);
}

/* ---- Acquired ---- */

/*
 * importer: Acquire's; NULL for what the allocations are. ret_fds: the descriptor of each row,
 * lent; may be NULL.
 */
static Wd__Allocation **reply_make_allocations(struct reply_arena *a, const struct export *e,
	const struct export_importer *importer, uint32_t device, int *ret_fds)
{
	Wd__Allocation *rows = reply_arena_alloc(a, e->n_allocs, sizeof(*rows));
	Wd__Allocation **at = reply_arena_alloc(a, e->n_allocs, sizeof(*at));
	struct export_importer any;

	if (a->is_failed)
		return NULL;
	export_init_importer(&any, UINT32_MAX);
	for (uint32_t i = 0; i < e->n_allocs; i++) {
		const struct export_alloc *alloc = &e->allocs[i];
		struct export_offer offer = {.fd = alloc->main,
			.placement = alloc->placement,
			.is_writable = alloc->is_writable};
		Wd__Allocation *m = at[i] = &rows[i];
		if (importer && export_get_offer(e, i, importer, &offer) < 0)
			a->is_failed = true;
		wd__allocation__init(m);
		m->index = i;
		m->n_bytes = alloc->n_bytes;
		m->handle_type = (Wd__HandleType)offer.fd.handle;
		m->memory_type_index = alloc->memory_type_index;
		m->dedicated = alloc->is_dedicated;
		m->placement = (Wd__Placement)offer.placement;
		m->buffer_bytes = alloc->buffer_bytes;
		m->inode = offer.fd.inode;
		m->dev = offer.fd.dev;
		m->file_offset = alloc->file_offset;
		m->writable = offer.is_writable;
		m->device = device;
		if (ret_fds)
			ret_fds[i] = offer.fd.fd;
	}
	return a->is_failed ? NULL : at;
}

/* FDLIST_MAX rows of at most some 100 bytes: the descriptors fill a packet long before the bytes.
 */
void rpc_reply_acquired(struct peer *p, uint64_t request, uint64_t generation,
	const struct export *e, const struct export_importer *importer)
{
	_cleanup_(reply_arena_fini)
	struct reply_arena arena = {0};
	int *lent = reply_arena_alloc(&arena, e->n_allocs, sizeof(*lent));
	Wd__Allocation **rows = reply_make_allocations(&arena, e, importer, 0, lent);
	uint32_t at = 0;

	if (!rows) {
		peer_break(p, "%s", "out of memory");
		return;
	}
	for (bool is_first = true; is_first || at < e->n_allocs; is_first = false) {
		Wd__Reply reply = WD__REPLY__INIT;
		Wd__Acquired acquired = WD__ACQUIRED__INIT;
		struct reply_contents contents;
		int fds[FDLIST_MAX];
		uint32_t n_fds = 0;
		uint32_t begin = at;

		if (is_first) {
			fds[n_fds++] = e->manifest_fd;
			reply_fill_contents(e, &contents);
			acquired.identity = contents.identity;
			acquired.file_identity = contents.file_identity;
		}
		while (at < e->n_allocs && n_fds < FDLIST_MAX)
			fds[n_fds++] = lent[at++];
		acquired.generation = generation;
		acquired.has_manifest = is_first;
		acquired.n_allocations = at - begin;
		acquired.allocations = rows + begin;
		acquired.more = at < e->n_allocs;
		reply.body_case = WD__REPLY__BODY_ACQUIRED;
		reply.acquired = &acquired;
		rpc_packet_send(p, request, &reply, fds, n_fds);
	}
}

/* One packet: PLACEMENT_MAX_ALLOCS rows fit. The peer has no lease that keeps the manifest. */
void rpc_reply_described(
	struct peer *p, uint64_t request, uint64_t generation, const struct export *e)
{
	_cleanup_(reply_arena_fini)
	struct reply_arena arena = {0};
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Acquired acquired = WD__ACQUIRED__INIT;
	uint32_t n_bytes;
	_cleanup_(cleanup_free)
	uint8_t *data = NULL;
	struct reply_contents contents;
	int fd = fcntl(e->manifest_fd, F_DUPFD_CLOEXEC, 0);

	reply_fill_contents(e, &contents);
	acquired.identity = contents.identity;
	acquired.file_identity = contents.file_identity;
	acquired.generation = generation;
	acquired.has_manifest = true;
	acquired.n_allocations = e->n_allocs;
	acquired.allocations = reply_make_allocations(&arena, e, NULL, 0, NULL);
	reply.body_case = WD__REPLY__BODY_ACQUIRED;
	reply.acquired = &acquired;
	if (acquired.allocations && fd >= 0)
		data = rpc_packet_pack(p, request, &reply, 1, &n_bytes);
	else
		peer_break(p, "%s", "out of memory or descriptors");
	if (data)
		peer_send_owned(p, data, n_bytes, &fd, 1);
	else
		cleanup_close(&fd);
}

/* ---- Models ---- */

static Wd__GenerationState reply_get_state(enum registry_state state)
{
	switch (state) {
	case REGISTRY_LOADING: return WD__GENERATION_STATE__GENERATION_STATE_LOADING;
	case REGISTRY_READY: return WD__GENERATION_STATE__GENERATION_STATE_READY;
	case REGISTRY_DRAINING: return WD__GENERATION_STATE__GENERATION_STATE_DRAINING;
	case REGISTRY_HELD: return WD__GENERATION_STATE__GENERATION_STATE_HELD;
	case REGISTRY_WARM: return WD__GENERATION_STATE__GENERATION_STATE_WARM;
	case REGISTRY_LOST: return WD__GENERATION_STATE__GENERATION_STATE_LOST;
	default: return WD__GENERATION_STATE__GENERATION_STATE_UNSPECIFIED;
	}
}

/* What the generation takes, once, whatever it is resident for. */
static uint64_t reply_count_weights(const struct service_generation *data, uint32_t n_slots)
{
	uint64_t n_bytes = source_get_staged_bytes(data->source) + data->n_memfd_bytes;
	uint64_t n_file = 0;

	for (uint32_t i = 0; i < n_slots; i++) {
		const struct export *e = data->residencies[i].export;
		uint64_t n = 0;
		n_bytes += data->residencies[i].remnant.n_device_bytes;
		if (!e)
			continue;
		n_bytes += e->device_bytes;
		for (uint32_t k = 0; k < e->n_allocs; k++)
			if (e->allocs[k].placement == MANIFEST_PLACEMENT_PINNED)
				n += e->allocs[k].n_bytes;
		if (n > n_file)
			n_file = n;
	}
	return n_bytes + n_file;
}

/* Bit 1 + index of a device, bit 0 for those that are not weightd's: the last slot. */
static uint32_t reply_get_residency(const struct service_generation *data, uint32_t n_slots)
{
	uint32_t bits = 0;

	for (uint32_t i = 0; i < n_slots; i++)
		if (data->residencies[i].export)
			bits |= 1u << (i + 1 < n_slots ? i + 1 : 0);
	return bits;
}

/* Those of the first device, and of others as far as a packet holds them. */
static void reply_add_allocations(struct reply_arena *a, const struct service_generation *data,
	uint32_t n_slots, Wd__Generation *m)
{
	Wd__Allocation **rows = reply_arena_alloc(a, PLACEMENT_MAX_ALLOCS, sizeof(*rows));

	m->allocations = rows;
	for (uint32_t i = 0; i < n_slots && rows; i++) {
		const struct export *e = data->residencies[i].export;
		if (!e || e->n_allocs > PLACEMENT_MAX_ALLOCS - m->n_allocations)
			continue;
		Wd__Allocation **more =
			reply_make_allocations(a, e, NULL, i + 1 < n_slots ? i + 1 : 0, NULL);
		for (uint32_t k = 0; k < e->n_allocs && more; k++)
			rows[m->n_allocations++] = more[k];
	}
}

static void reply_add_identity(struct reply_arena *a, const struct check *check, Wd__Generation *m)
{
	uint8_t *identity = reply_arena_alloc(a, 1, IDENTITY_BYTES);
	uint64_t clean_ns = check_get_clean_ns(check);

	if (identity && check_get_identity(check, identity))
		m->identity = (ProtobufCBinaryData){.len = IDENTITY_BYTES, .data = identity};
	/* 0 would say never. */
	m->verified_ns = clean_ns ? clock_now_ns() - clean_ns + 1 : 0;
}

static void reply_make_generation(struct reply_arena *a, const struct registry_generation *g,
	uint32_t n_slots, bool with_allocations, Wd__Generation *m)
{
	const struct service_generation *data = g->data;
	const struct export *e = data->residencies[0].export;

	wd__generation__init(m);
	m->id = g->id;
	m->state = reply_get_state(g->state);
	m->origin = (char *)(data->is_adopted ? "adopted" : "loaded");
	m->path = data->path;
	m->file_bytes = data->file_bytes;
	m->loaded_bytes = data->loaded_bytes;
	m->load_ns = data->load_ns;
	m->n_leases = g->n_leases;
	m->n_holds = g->n_holds;
	m->pinned = g->is_pinned;
	if ((g->state == REGISTRY_READY || g->state == REGISTRY_WARM) && g->n_leases == 0)
		m->idle_ns = clock_now_ns() - g->used_ns;
	m->architecture = (char *)data->summary.architecture;
	m->format = (char *)data->summary.format;
	m->n_parameters = data->summary.n_parameters;
	m->n_tensors = data->summary.n_tensors;
	m->weights_bytes = reply_count_weights(data, n_slots);
	if (!e)
		return;
	m->manifest_bytes = e->manifest_bytes;
	m->unmet_bytes = e->n_unmet_bytes;
	m->paged_bytes = e->n_placed_bytes[MANIFEST_PLACEMENT_PAGED];
	m->residency = reply_get_residency(data, n_slots);
	if (e->check)
		reply_add_identity(a, e->check, m);
	if (with_allocations)
		reply_add_allocations(a, data, n_slots, m);
}

/* One row a name, in order of its first generation; generations newest last. */
struct reply_models {
	struct reply_arena *arena;
	const struct peer *peer;
	Wd__Model **at;
	size_t n;
	size_t n_room; /* generations of all */
};

static void reply_models_add(struct reply_models *m, const char *model, Wd__Generation *generation)
{
	size_t k = 0;

	while (k < m->n && strcmp(m->at[k]->name, model))
		k++;
	if (k == m->n) {
		Wd__Model *row = reply_arena_alloc(m->arena, 1, sizeof(*row));
		Wd__Generation **rows =
			reply_arena_alloc(m->arena, m->n_room, sizeof(Wd__Generation *));
		if (m->arena->is_failed)
			return;
		wd__model__init(row);
		row->name = (char *)model;
		row->generations = rows;
		m->at[m->n++] = row;
	}
	size_t at = m->at[k]->n_generations++;
	for (; at > 0 && m->at[k]->generations[at - 1]->id > generation->id; at--)
		m->at[k]->generations[at] = m->at[k]->generations[at - 1];
	m->at[k]->generations[at] = generation;
}

/* A restart_fn; its leases are those that have not been had back yet. */
static void reply_add_returning(const struct state_generation *g, uint32_t n_missed, void *userdata)
{
	struct reply_models *models = userdata;
	static const struct state_residency none;
	const struct state_residency *r = g->n_residencies > 0 ? &g->residencies[0] : &none;

	if (!access_shows(models->peer->access, g->model))
		return;
	Wd__Generation *m = reply_arena_alloc(models->arena, 1, sizeof(*m));
	if (!m)
		return;
	wd__generation__init(m);
	m->id = g->id;
	m->state = g->is_draining ? WD__GENERATION_STATE__GENERATION_STATE_DRAINING
				  : WD__GENERATION_STATE__GENERATION_STATE_RETURNING;
	m->origin = (char *)"adopted";
	m->path = g->path;
	m->file_bytes = g->file.n_bytes;
	m->manifest_bytes = r->manifest.n_bytes;
	m->architecture = (char *)r->architecture;
	m->format = (char *)r->format;
	m->n_parameters = r->n_parameters;
	m->n_tensors = r->n_tensors;
	m->n_leases = n_missed;
	m->pinned = g->is_pinned;
	for (uint32_t i = 0; i < r->n_allocs; i++)
		if (r->allocs[i].placement != MANIFEST_PLACEMENT_PAGED)
			m->weights_bytes += r->allocs[i].n_bytes;
	reply_models_add(models, g->model, m);
}

Wd__Model **rpc_reply_make_models(struct reply_arena *a, const struct service *s,
	const struct peer *p, bool with_allocations, size_t *ret_n)
{
	struct registry *r = service_get_registry(s);
	const struct restart *restart = service_get_params(s)->restart;
	uint32_t n_slots = service_get_foreign_slot(s) + 1;
	uint32_t n = registry_count(r);
	struct reply_models m = {.arena = a, .peer = p, .n_room = n + restart_count(restart)};
	Wd__Generation *generations = reply_arena_alloc(a, n, sizeof(*generations));

	m.at = reply_arena_alloc(a, m.n_room, sizeof(*m.at));
	for (uint32_t i = 0; i < n && !a->is_failed; i++) {
		const struct registry_generation *g = registry_at(r, i);
		if (!access_shows(p->access, g->model))
			continue;
		reply_make_generation(a, g, n_slots, with_allocations, &generations[i]);
		reply_models_add(&m, g->model, &generations[i]);
	}
	if (!a->is_failed)
		restart_visit(restart, reply_add_returning, &m);
	*ret_n = m.n;
	return a->is_failed ? NULL : m.at;
}

void rpc_reply_models(struct peer *p, uint64_t request, struct service *s)
{
	_cleanup_(reply_arena_fini)
	struct reply_arena arena = {0};
	Wd__Reply reply = WD__REPLY__INIT;
	Wd__Models models = WD__MODELS__INIT;

	models.models = rpc_reply_make_models(&arena, s, p, false, &models.n_models);
	if (!models.models) {
		peer_break(p, "%s", "out of memory");
		return;
	}
	/* One packet: long paths, which are for people only, are left to Status. */
	if (wd__models__get_packed_size(&models) > WIRE_MAX_BYTES - RPC_REPLY_ENVELOPE_BYTES)
		for (size_t i = 0; i < models.n_models; i++)
			for (size_t k = 0; k < models.models[i]->n_generations; k++)
				models.models[i]->generations[k]->path = (char *)"";
	reply.body_case = WD__REPLY__BODY_MODELS;
	reply.models = &models;
	rpc_packet_send(p, request, &reply, NULL, 0);
}
