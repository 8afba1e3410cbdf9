/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/record.h"

#include <errno.h>
#include <string.h>

#include "weightd/account.h"
#include "weightd/admission.h"
#include "weightd/export.h"
#include "weightd/loader.h"
#include "weightd/service.h"
#include "weightd/source.h"
#include "weightd/sums.h"

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

static void record_device(const struct service *s, uint32_t slot, struct state_residency *r)
{
	const struct vk_device_info *info;

	r->slot = slot;
	r->is_foreign = slot == service_get_foreign_slot(s);
	if (r->is_foreign)
		return;
	info = loader_get_info(service_get_params(s)->loaders[slot]);
	memcpy(r->device_uuid, info->uuid, sizeof(r->device_uuid));
	memcpy(r->driver_uuid, info->driver_uuid, sizeof(r->driver_uuid));
}

static int record_residency(
	const struct service *s, uint32_t slot, const struct export *e, struct state_residency *r)
{
	struct stat st;

	record_device(s, slot, r);
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
	/* Of one that was heated a loader may just have closed it. */
	if (fstat(memfd, &st) < 0) {
		g->has_memfd = false;
		g->n_tensors = 0;
		return state_bytes_set(&g->staged, NULL, 0);
	}
	g->memfd = state_file_from_stat(&st);
	g->memfd.mtime_s = 0; /* moves with its pages and means nothing */
	g->memfd.mtime_ns = 0;
	return 0;
}

/* Its sums are with the exports else. */
static int record_warm(const struct registry_generation *from, struct state_generation *g)
{
	const struct service_generation *data = from->data;
	_cleanup_(cleanup_free)
	uint8_t *packed = NULL;
	struct sums *sums = NULL;
	uint64_t n_bytes = 0;
	int rc = source_get_sums(data->source, &sums);

	g->is_warm = true;
	g->summary = data->summary;
	if (rc < 0 || !sums)
		return rc;
	rc = sums_pack(sums, &packed, &n_bytes);
	sums_free(sums);
	if (rc < 0)
		return rc;
	return n_bytes > STATE_MAX_SUMS_BYTES
		       ? -EFBIG
		       : state_bytes_set(&g->sums, packed, (uint32_t)n_bytes);
}

static int record_residencies(
	const struct service *s, const struct registry_generation *from, struct state_generation *g)
{
	const struct service_generation *data = from->data;
	int rc = 0;

	for (uint32_t i = 0; i <= service_get_foreign_slot(s) && rc == 0; i++)
		if (data->residencies[i].export)
			rc = record_residency(s, i, data->residencies[i].export,
				&g->residencies[g->n_residencies++]);
	return rc;
}

/* What its processes have of it, for the next weightd's account and words. */
static void record_remnant(const struct service *s, const struct service_generation *data,
	uint32_t slot, struct state_residency *r)
{
	const struct export *e = data->residencies[slot].export;
	struct stat st;

	record_device(s, slot, r);
	memcpy(r->architecture, data->summary.architecture, sizeof(r->architecture));
	memcpy(r->format, data->summary.format, sizeof(r->format));
	r->n_parameters = data->summary.n_parameters;
	r->n_tensors = data->summary.n_tensors;
	r->manifest.inode = data->residencies[slot].remnant.manifest_inode;
	r->n_lost_bytes = data->residencies[slot].remnant.n_device_bytes;
	r->n_placed_bytes[MANIFEST_PLACEMENT_STAGED] =
		data->n_memfd_bytes + source_get_staged_bytes(data->source);
	if (!e)
		return;
	if (fstat(e->manifest_fd, &st) == 0)
		r->manifest.inode = st.st_ino;
	r->n_lost_bytes += export_count_device_bytes(e);
}

static int record_lost(
	const struct service *s, const struct service_generation *data, struct state_generation *g)
{
	g->is_draining = true;
	g->is_corrupt = data->is_corrupt;
	g->clean_ns = data->clean_ns;
	g->lost_why = strdup(data->lost_why && data->lost_why[0] ? data->lost_why : "it was lost");
	g->file = state_file_from_stat(source_get_identity(data->source));
	for (uint32_t i = 0; i <= service_get_foreign_slot(s); i++)
		if (data->residencies[i].export || data->residencies[i].remnant.manifest_inode)
			record_remnant(s, data, i, &g->residencies[g->n_residencies++]);
	return g->lost_why ? 0 : -ENOMEM;
}

/* Without a worker that was on a device there is nobody to tell of. */
static bool record_has_remnant(const struct service_generation *data)
{
	for (uint32_t i = 0; i <= SERVICE_MAX_DEVICES; i++)
		if (data->residencies[i].export || data->residencies[i].remnant.manifest_inode)
			return data->summary.n_tensors > 0;
	return false;
}

enum record_kind { RECORD_NOT, RECORD_RESIDENT, RECORD_WARM, RECORD_LOADING, RECORD_LOST };

/* Of a generation that is filled for the first time, or that nobody may lease, nothing is left; but
 * where another one has left for it, that it was wanted. */
static enum record_kind record_get_kind(const struct registry_generation *g)
{
	const struct service_generation *data = g->data;

	switch (g->state) {
	case REGISTRY_WARM: return RECORD_WARM;
	case REGISTRY_LOADING:
		if (data->is_heating) /* what it was before, until it is more */
			return RECORD_WARM;
		return data->has_displaced ? RECORD_LOADING : RECORD_NOT;
	case REGISTRY_READY:
	case REGISTRY_DRAINING:
	case REGISTRY_HELD:
		return !g->is_filling && data->residencies[0].export ? RECORD_RESIDENT : RECORD_NOT;
	case REGISTRY_LOST:
		return g->n_leases + g->n_holds > 0 && record_has_remnant(data) ? RECORD_LOST
										: RECORD_NOT;
	default: return RECORD_NOT;
	}
}

bool record_is_kept(const struct registry_generation *g)
{
	return record_get_kind(g) != RECORD_NOT;
}

/* A newer one of the model is there, or on its way. */
static bool record_is_replaced(struct registry *r, const struct registry_generation *old)
{
	for (uint32_t i = 0; i < registry_count(r); i++) {
		const struct registry_generation *g = registry_at(r, i);
		if (g->id > old->id && !strcmp(g->model, old->model) &&
			(g->state == REGISTRY_READY || g->state == REGISTRY_WARM ||
				g->state == REGISTRY_LOADING))
			return true;
	}
	return false;
}

static int record_generation(
	const struct service *s, const struct registry_generation *from, struct state_generation *g)
{
	const struct service_generation *data = from->data;
	enum record_kind kind = record_get_kind(from);
	int rc = 0;

	strcpy(g->model, from->model);
	g->is_draining = from->state == REGISTRY_DRAINING || from->state == REGISTRY_HELD;
	g->is_replaced = g->is_draining && record_is_replaced(service_get_registry(s), from);
	g->is_pinned = from->is_pinned;
	g->expel_ns = data->expel_ns;
	g->path = strdup(data->path);
	g->residencies = calloc(SERVICE_MAX_DEVICES + 1, sizeof(*g->residencies));
	if (!g->path || !g->residencies)
		return -ENOMEM;
	if (kind == RECORD_LOST)
		return record_lost(s, data, g);
	if (kind == RECORD_LOADING) {
		g->is_loading = true;
		g->file = state_file_from_stat(source_get_identity(data->source));
		g->is_file_writable = source_is_writable(data->source);
		return 0;
	}
	rc = kind == RECORD_WARM ? record_warm(from, g) : record_residencies(s, from, g);
	return rc < 0 ? rc : record_source(data->source, g);
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
	return record_add_processes(s, state);
}

static uint64_t record_mix(uint64_t hash, uint64_t value)
{
	return (hash ^ value) * UINT64_C(0x100000001b3);
}

static void record_mix_grant(uint64_t id, uint64_t n_bytes, const char *model, void *userdata)
{
	uint64_t *hash = userdata;

	(void)model;
	*hash = record_mix(record_mix(*hash, id), n_bytes);
}

uint64_t record_fingerprint(const struct service *s)
{
	struct registry *registry = service_get_registry(s);
	uint64_t hash = record_mix(UINT64_C(0xcbf29ce484222325), registry_count(registry));

	for (uint32_t i = 0; i < registry_count(registry); i++) {
		const struct registry_generation *g = registry_at(registry, i);
		const struct service_generation *data = g->data;
		hash = record_mix(record_mix(hash, g->id),
			(uint64_t)g->state << 3 | (uint64_t)data->has_displaced << 2 |
				(uint64_t)g->is_pinned << 1 | g->is_filling);
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
	for (uint32_t i = 0; i < service_get_params(s)->n_loaders; i++)
		account_visit_grants(admission_get_account(s, i), record_mix_grant, &hash);
	return hash;
}

void record_visit(const struct service *s, record_fn fn, void *userdata)
{
	struct registry *registry = service_get_registry(s);

	for (uint32_t i = 0; i < registry_count(registry); i++) {
		const struct registry_generation *g = registry_at(registry, i);
		const struct service_generation *data = g->data;
		struct stash_name name = {.kind = STASH_FILE, .generation = g->id};
		if (!record_is_kept(g) || record_get_kind(g) == RECORD_LOST)
			continue;
		fn(&name, source_get_fd(data->source), userdata);
		if (record_get_kind(g) == RECORD_LOADING)
			continue;
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
