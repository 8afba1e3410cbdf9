/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/record.h"

#include <errno.h>
#include <string.h>

#include "weightd/export.h"
#include "weightd/lease-index.h"
#include "weightd/loader.h"
#include "weightd/peer.h"
#include "weightd/service.h"
#include "weightd/source.h"

struct state_generation *record_add_generation(struct state *state, uint64_t id)
{
	uint32_t at = state->n_generations;
	struct state_generation *rows =
		reallocarray(state->generations, at + 1, sizeof(*state->generations));

	if (!rows)
		return NULL;
	state->generations = rows;
	while (at > 0 && rows[at - 1].id > id)
		at--;
	memmove(rows + at + 1, rows + at, (state->n_generations - at) * sizeof(*rows));
	state->n_generations++;
	rows[at] = (struct state_generation){.id = id};
	return &rows[at];
}

/* What one process had by two sockets are two rows, as they are charged apart. */
static bool record_is_same(const struct state_holder *a, const struct state_holder *b)
{
	return a->pid > 0 && a->pid == b->pid && a->start_ticks == b->start_ticks &&
	       a->socket == b->socket;
}

int record_add_holder(struct state *state, const struct state_holder *who, uint64_t generation)
{
	struct state_holder *h = NULL;

	/* From the last: most often it is that one. */
	for (uint32_t i = state->n_holders; i > 0 && !h; i--)
		if (record_is_same(&state->holders[i - 1], who))
			h = &state->holders[i - 1];
	if (!h) {
		/* More than a reader takes are not recorded: they are not waited for. */
		if (state->n_holders == STATE_MAX_HOLDERS)
			return 0;
		struct state_holder *rows =
			reallocarray(state->holders, state->n_holders + 1, sizeof(*state->holders));
		if (!rows)
			return -ENOMEM;
		state->holders = rows;
		h = &rows[state->n_holders++];
		*h = *who;
		h->n_generations = 0;
		h->generations = NULL;
	}
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

/* ---- one generation ---- */

static void record_alloc(const struct export_alloc *from, struct state_alloc *to)
{
	*to = (struct state_alloc){.handle = from->main.handle,
		.n_bytes = from->n_bytes,
		.buffer_bytes = from->buffer_bytes,
		.memory_type_index = from->memory_type_index,
		.is_dedicated = from->is_dedicated,
		.placement = from->placement,
		.file_offset = from->file_offset,
		.is_writable = from->is_writable,
		.dev = from->main.dev,
		.inode = from->main.inode,
		.has_opaque = from->opaque.fd >= 0,
		.opaque_dev = from->opaque.fd >= 0 ? from->opaque.dev : 0,
		.opaque_inode = from->opaque.fd >= 0 ? from->opaque.inode : 0};
}

static int record_residency(
	const struct service *s, uint32_t slot, const struct export *e, struct state_residency *r)
{
	struct stat st;

	r->slot = slot;
	r->is_foreign = slot == service_get_foreign_slot(s);
	if (!r->is_foreign) {
		const struct vk_device_info *info =
			loader_get_info(service_get_params(s)->loaders[slot]);
		memcpy(r->device_uuid, info->uuid, sizeof(r->device_uuid));
		memcpy(r->driver_uuid, info->driver_uuid, sizeof(r->driver_uuid));
	}
	if (fstat(e->manifest_fd, &st) < 0)
		return -errno;
	r->manifest = state_file_from_stat(&st);
	memcpy(r->architecture, e->architecture, sizeof(r->architecture));
	memcpy(r->format, e->format, sizeof(r->format));
	memcpy(r->n_placed_bytes, e->n_placed_bytes, sizeof(r->n_placed_bytes));
	r->n_parameters = e->n_parameters;
	r->n_tensors = e->n_tensors;
	r->n_unmet_bytes = e->n_unmet_bytes;
	r->allocs = calloc(e->n_allocs, sizeof(*r->allocs));
	if (!r->allocs)
		return -ENOMEM;
	r->n_allocs = e->n_allocs;
	for (uint32_t i = 0; i < e->n_allocs; i++)
		record_alloc(&e->allocs[i], &r->allocs[i]);
	return state_bytes_set(&r->sums, e->sums, e->n_sums_bytes);
}

static int record_source(struct source *source, struct state_generation *g)
{
	int memfd = source_get_memfd(source);
	uint8_t *bits = NULL;
	struct stat st;

	g->file = state_file_from_stat(source_get_identity(source));
	g->is_file_writable = source_is_writable(source);
	int rc = source_copy_staged(source, &bits, &g->n_tensors);
	if (rc < 0)
		return rc;
	g->has_memfd = g->n_tensors > 0 && memfd >= 0;
	if (!g->has_memfd) {
		free(bits);
		g->n_tensors = 0;
		return 0;
	}
	g->staged = (struct state_bytes){.data = bits, .n_bytes = (g->n_tensors + 7) / 8};
	if (fstat(memfd, &st) < 0)
		return -errno;
	g->memfd = state_file_from_stat(&st);
	g->memfd.mtime_s = 0; /* moves with its pages and means nothing */
	g->memfd.mtime_ns = 0;
	return 0;
}

static int record_generation(
	const struct service *s, const struct registry_generation *from, struct state_generation *g)
{
	const struct service_generation *data = from->data;
	uint32_t n = 0;

	strcpy(g->model, from->model);
	g->is_draining = from->state == REGISTRY_DRAINING;
	g->is_pinned = from->is_pinned;
	g->expel_ns = data->expel_ns;
	g->path = strdup(data->path);
	g->residencies = calloc(SERVICE_MAX_DEVICES + 1, sizeof(*g->residencies));
	if (!g->path || !g->residencies)
		return -ENOMEM;
	for (uint32_t i = 0; i <= service_get_foreign_slot(s); i++) {
		const struct export *e = data->residencies[i].export;
		if (!e)
			continue;
		g->n_residencies = n + 1;
		int rc = record_residency(s, i, e, &g->residencies[n++]);
		if (rc < 0)
			return rc;
	}
	return record_source(data->source, g);
}

/* Of a generation that is still being filled, or that nobody may lease, nothing is left. */
static bool record_is_kept(const struct registry_generation *g)
{
	const struct service_generation *data = g->data;

	return (g->state == REGISTRY_READY || g->state == REGISTRY_DRAINING) && !g->is_filling &&
	       data->residencies[0].export;
}

static int record_add_holders(const struct service *s, struct state *state)
{
	struct registry *registry = service_get_registry(s);
	_cleanup_(lease_index_fini)
	struct lease_index index = {0};
	const struct peer *p;
	int rc = lease_index_init(registry, &index);

	TAILQ_FOREACH(p, service_get_params(s)->peers, entry)
	{
		const struct registry_lease *const *leases;
		uint32_t n = rc == 0 ? lease_index_find(&index, p->id, &leases) : 0;
		const struct state_holder who = {.pid = p->pid,
			.start_ticks = p->start_ticks,
			.uid = p->uid,
			.socket = peer_get_socket(p->id)};
		for (uint32_t i = 0; i < n && rc == 0; i++)
			if (record_is_kept(registry_find(registry, leases[i]->generation)))
				rc = record_add_holder(state, &who, leases[i]->generation);
	}
	return rc;
}

int record_add(const struct service *s, struct state *state)
{
	struct registry *registry = service_get_registry(s);

	for (uint32_t i = 0; i < registry_count(registry); i++) {
		const struct registry_generation *from = registry_at(registry, i);
		if (from->id > state->last_id)
			state->last_id = from->id;
		if (!record_is_kept(from))
			continue;
		struct state_generation *g = record_add_generation(state, from->id);
		int rc = g ? record_generation(s, from, g) : -ENOMEM;
		if (rc < 0)
			return rc;
	}
	return record_add_holders(s, state);
}

static uint64_t record_mix(uint64_t hash, uint64_t value)
{
	return (hash ^ value) * UINT64_C(0x100000001b3);
}

uint64_t record_fingerprint(const struct service *s)
{
	struct registry *registry = service_get_registry(s);
	uint64_t hash = record_mix(UINT64_C(0xcbf29ce484222325), registry_count(registry));

	for (uint32_t i = 0; i < registry_count(registry); i++) {
		const struct registry_generation *g = registry_at(registry, i);
		const struct service_generation *data = g->data;
		hash = record_mix(record_mix(hash, g->id),
			(uint64_t)g->state << 2 | (uint64_t)g->is_pinned << 1 | g->is_filling);
		hash = record_mix(hash, data->expel_ns);
		for (uint32_t k = 0; k <= service_get_foreign_slot(s); k++) {
			const struct export *e = data->residencies[k].export;
			hash = record_mix(record_mix(hash, (uintptr_t)e), e ? e->n_sums_bytes : 0);
			/* Bytes that take the place of others do while those are not freed. */
			hash = record_mix(hash, e ? (uintptr_t)e->sums : 0);
		}
	}
	for (uint32_t i = 0; i < registry_count_leases(registry); i++) {
		const struct registry_lease *l = registry_lease_at(registry, i);
		hash = record_mix(record_mix(hash, l->peer << 1 | l->is_hold), l->generation);
	}
	return hash;
}

void record_visit(const struct service *s, record_fn fn, void *userdata)
{
	struct registry *registry = service_get_registry(s);

	for (uint32_t i = 0; i < registry_count(registry); i++) {
		const struct registry_generation *g = registry_at(registry, i);
		const struct service_generation *data = g->data;
		struct stash_name name = {.kind = STASH_FILE, .generation = g->id};
		if (!record_is_kept(g))
			continue;
		fn(&name, source_get_fd(data->source), userdata);
		name.kind = STASH_MEMFD;
		fn(&name, source_get_memfd(data->source), userdata);
		for (uint32_t k = 0; k <= service_get_foreign_slot(s); k++) {
			const struct export *e = data->residencies[k].export;
			if (!e)
				continue;
			name = (struct stash_name){
				.kind = STASH_MANIFEST, .generation = g->id, .slot = k};
			fn(&name, e->manifest_fd, userdata);
			name.kind = STASH_ALLOC;
			for (name.index = 0; name.index < e->n_allocs; name.index++)
				if (export_has_memory(&e->allocs[name.index]))
					fn(&name, e->allocs[name.index].main.fd, userdata);
			name.kind = STASH_OPAQUE;
			for (name.index = 0; name.index < e->n_allocs; name.index++)
				fn(&name, e->allocs[name.index].opaque.fd, userdata);
		}
	}
}
