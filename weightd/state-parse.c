/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/state.h"

#include <errno.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/weightd-state.pb-c.h"
#include "weightd/export.h"
#include "weightd/state-hash.h"

enum {
	STATE_UUID_BYTES = 16,
	STATE_MAX_MEMORY_TYPES = 32, /* VK_MAX_MEMORY_TYPES */
};

static int parse_refuse_memory(struct err *ret_err)
{
	return err_set(ret_err, ENOMEM, "out of memory");
}

/* m NULL, as absent submessages are: refused where it must be there. */
static int parse_file(
	const Wdstate__File *m, const char *what, struct err *ret_err, struct state_file *ret_file)
{
	if (!m || m->n_bytes > INT64_MAX || m->mtime_ns >= 1000000000)
		return err_set(ret_err, EINVAL, "%s: expected a file's identity, found %s", what,
			m ? "another value" : "none");
	*ret_file = (struct state_file){.dev = m->dev,
		.inode = m->inode,
		.n_bytes = m->n_bytes,
		.mtime_s = m->mtime_s,
		.mtime_ns = m->mtime_ns};
	return 0;
}

static int parse_text(
	const char *text, const char *what, size_t n_max, struct err *ret_err, char *ret_text)
{
	if (strlen(text) >= n_max)
		return err_set(ret_err, EINVAL, "%s: expected at most %zu bytes, found %zu", what,
			n_max - 1, strlen(text));
	strcpy(ret_text, text);
	return 0;
}

static int parse_bytes(const ProtobufCBinaryData *m, const char *what, uint64_t n_max,
	struct err *ret_err, struct state_bytes *ret_bytes)
{
	if (m->len > n_max)
		return err_set(ret_err, EINVAL, "%s: expected at most %llu bytes, found %zu", what,
			(unsigned long long)n_max, m->len);
	if (state_bytes_set(ret_bytes, m->data, (uint32_t)m->len) < 0)
		return parse_refuse_memory(ret_err);
	return 0;
}

static int parse_alloc(const Wdstate__Allocation *m, const struct state_generation *g,
	struct err *ret_err, struct state_alloc *a)
{
	uint64_t end;

	*a = (struct state_alloc){.handle = m->handle_type,
		.n_bytes = m->n_bytes,
		.buffer_bytes = m->buffer_bytes,
		.memory_type_index = m->memory_type_index,
		.is_dedicated = m->dedicated,
		.placement = m->placement,
		.file_offset = m->file_offset,
		.is_writable = m->writable,
		.dev = m->dev,
		.inode = m->inode,
		.has_opaque = m->has_opaque,
		.opaque_dev = m->opaque_dev,
		.opaque_inode = m->opaque_inode};
	if (a->has_opaque && a->handle != EXPORT_DMA_BUF)
		return err_set(ret_err, EINVAL,
			"expected an opaque descriptor beside a dma-buf alone, found it beside %u",
			a->handle);
	if (a->handle < EXPORT_OPAQUE_FD || a->handle > EXPORT_DMA_BUF ||
		a->placement < MANIFEST_PLACEMENT_DEVICE ||
		a->placement > MANIFEST_PLACEMENT_PAGED ||
		a->memory_type_index >= STATE_MAX_MEMORY_TYPES)
		return err_set(ret_err, EINVAL,
			"expected a known handle, placement and memory type, found %u, %u and %u",
			a->handle, a->placement, a->memory_type_index);
	if (a->buffer_bytes == 0 || a->buffer_bytes > a->n_bytes ||
		__builtin_add_overflow(a->file_offset, a->n_bytes, &end) || end > INT64_MAX)
		return err_set(ret_err, EINVAL,
			"expected a buffer of 1 to %llu bytes, found %llu at %llu",
			(unsigned long long)a->n_bytes, (unsigned long long)a->buffer_bytes,
			(unsigned long long)a->file_offset);
	if (a->handle == EXPORT_MEMFD && (!g->has_memfd || end > g->memfd.n_bytes))
		return err_set(ret_err, EINVAL,
			"expected a window inside the memfd of %llu bytes, found its end at %llu",
			(unsigned long long)g->memfd.n_bytes, (unsigned long long)end);
	/* Its last page may end behind the file. */
	if (a->handle == EXPORT_FILE && a->file_offset >= g->file.n_bytes)
		return err_set(ret_err, EINVAL,
			"expected a window inside the file of %llu bytes, found it at %llu",
			(unsigned long long)g->file.n_bytes, (unsigned long long)a->file_offset);
	return 0;
}

static int parse_allocs(const Wdstate__Residency *m, const struct state_generation *g,
	struct err *ret_err, struct state_residency *r)
{
	uint32_t n_least = g->lost_why ? 0 : 1;
	uint32_t n_most = g->lost_why ? 0 : PLACEMENT_MAX_ALLOCS;

	if (m->n_allocations < n_least || m->n_allocations > n_most)
		return err_set(ret_err, EINVAL, "expected %u to %u allocations, found %zu", n_least,
			n_most, m->n_allocations);
	if (m->lost_bytes > (g->lost_why ? INT64_MAX : 0))
		return err_set(ret_err, EINVAL, "lost_bytes: expected none or less, found %llu",
			(unsigned long long)m->lost_bytes);
	r->n_lost_bytes = m->lost_bytes;
	r->allocs = calloc(m->n_allocations + 1, sizeof(*r->allocs));
	if (!r->allocs)
		return parse_refuse_memory(ret_err);
	r->n_allocs = (uint32_t)m->n_allocations;
	for (uint32_t i = 0; i < r->n_allocs; i++) {
		int rc = parse_alloc(m->allocations[i], g, ret_err, &r->allocs[i]);
		if (rc < 0) {
			err_prefix(ret_err, "allocation %u", i);
			return rc;
		}
		/* Memory of a device means nothing to other devices. */
		if (r->is_foreign && r->allocs[i].handle != EXPORT_MEMFD &&
			r->allocs[i].handle != EXPORT_FILE)
			return err_set(ret_err, EINVAL,
				"allocation %u: expected host memory, found handle %u", i,
				r->allocs[i].handle);
	}
	return 0;
}

static int parse_residency(const Wdstate__Residency *m, const struct state_generation *g,
	struct err *ret_err, struct state_residency *r)
{
	size_t n_uuid = m->foreign ? 0 : STATE_UUID_BYTES;

	r->slot = m->slot;
	r->is_foreign = m->foreign;
	r->n_parameters = m->n_parameters;
	r->n_tensors = m->n_tensors;
	r->n_unmet_bytes = m->unmet_bytes;
	if (m->device_uuid.len != n_uuid || m->driver_uuid.len != n_uuid)
		return err_set(ret_err, EINVAL, "uuids: expected %zu bytes, found %zu and %zu",
			n_uuid, m->device_uuid.len, m->driver_uuid.len);
	if (n_uuid) {
		memcpy(r->device_uuid, m->device_uuid.data, n_uuid);
		memcpy(r->driver_uuid, m->driver_uuid.data, n_uuid);
	}
	if (m->n_placed_bytes > PLACEMENT_N || m->n_tensors == 0 ||
		m->n_tensors > STATE_MAX_TENSORS)
		return err_set(ret_err, EINVAL,
			"expected 1 to %d tensors in %d placements, found %u in %zu",
			STATE_MAX_TENSORS, PLACEMENT_N, m->n_tensors, m->n_placed_bytes);
	for (size_t i = 0; i < m->n_placed_bytes; i++)
		r->n_placed_bytes[i] = m->placed_bytes[i];
	int rc = parse_file(m->manifest, "manifest", ret_err, &r->manifest);
	if (rc == 0 && r->manifest.n_bytes > MANIFEST_MAX_BYTES)
		rc = err_set(ret_err, EINVAL, "manifest: expected at most %d bytes, found %llu",
			MANIFEST_MAX_BYTES, (unsigned long long)r->manifest.n_bytes);
	if (rc == 0)
		rc = parse_text(m->architecture, "architecture", sizeof(r->architecture), ret_err,
			r->architecture);
	if (rc == 0)
		rc = parse_text(m->format, "format", sizeof(r->format), ret_err, r->format);
	if (rc == 0)
		rc = parse_bytes(&m->sums, "sums", STATE_MAX_SUMS_BYTES, ret_err, &r->sums);
	return rc < 0 ? rc : parse_allocs(m, g, ret_err, r);
}

/* The generation's data has room for one export a device. */
static bool parse_is_of_same_device(
	const struct state_residency *a, const struct state_residency *b)
{
	if (a->is_foreign || b->is_foreign)
		return a->is_foreign == b->is_foreign;
	return !memcmp(a->device_uuid, b->device_uuid, sizeof(a->device_uuid)) &&
	       !memcmp(a->driver_uuid, b->driver_uuid, sizeof(a->driver_uuid));
}

static int parse_residencies(
	const Wdstate__Generation *m, struct err *ret_err, struct state_generation *g)
{
	uint32_t n_least = g->is_warm || g->is_loading ? 0 : 1;
	uint32_t n_most = n_least ? SERVICE_MAX_DEVICES + 1 : 0;

	if (m->n_residencies < n_least || m->n_residencies > n_most)
		return err_set(ret_err, EINVAL, "expected %u to %u residencies, found %zu", n_least,
			n_most, m->n_residencies);
	g->residencies = calloc(m->n_residencies + 1, sizeof(*g->residencies));
	if (!g->residencies)
		return parse_refuse_memory(ret_err);
	g->n_residencies = (uint32_t)m->n_residencies;
	for (uint32_t i = 0; i < g->n_residencies; i++) {
		const Wdstate__Residency *row = m->residencies[i];
		int rc = 0;
		if (row->slot > SERVICE_MAX_DEVICES ||
			(i > 0 && row->slot <= m->residencies[i - 1]->slot))
			rc = err_set(ret_err, EINVAL, "slot: expected them to rise, found %u",
				row->slot);
		if (rc == 0)
			rc = parse_residency(row, g, ret_err, &g->residencies[i]);
		for (uint32_t k = 0; k < i && rc == 0; k++)
			if (parse_is_of_same_device(&g->residencies[k], &g->residencies[i]))
				rc = err_set(ret_err, EINVAL,
					"device: expected each once, found that of residency %u",
					k);
		if (rc < 0) {
			err_prefix(ret_err, "residency %u", i);
			return rc;
		}
	}
	return 0;
}

/* What it is that has no residencies; the model's name and the memfd are known. */
static int parse_kind(const Wdstate__Generation *m, struct err *ret_err, struct state_generation *g)
{
	struct service_summary *s = &g->summary;
	int rc = 0;

	g->is_draining = m->draining;
	g->is_replaced = m->replaced;
	g->is_warm = m->warm;
	g->is_loading = m->loading;
	if (g->is_draining + g->is_warm + g->is_loading > 1 ||
		(g->is_replaced && !g->is_draining) || (g->is_loading && m->memfd) ||
		g->is_warm != (m->summary != NULL))
		return err_set(ret_err, EINVAL,
			"expected one of draining, warm and loading, and what belongs to it, found "
			"%d, %d and %d",
			g->is_draining, g->is_warm, g->is_loading);
	if (!m->summary)
		return 0;
	s->n_parameters = m->summary->n_parameters;
	s->n_tensors = m->summary->n_tensors;
	rc = parse_text(m->summary->architecture, "architecture", sizeof(s->architecture), ret_err,
		s->architecture);
	if (rc == 0)
		rc = parse_text(
			m->summary->format, "format", sizeof(s->format), ret_err, s->format);
	return rc < 0 ? rc : parse_bytes(&m->sums, "sums", STATE_MAX_SUMS_BYTES, ret_err, &g->sums);
}

static int parse_lost(const Wdstate__Generation *m, struct err *ret_err, struct state_generation *g)
{
	if (!m->lost_why[0])
		return 0;
	if (!g->is_draining || g->is_replaced || m->memfd ||
		strlen(m->lost_why) > STATE_MAX_WHY_BYTES)
		return err_set(ret_err, EINVAL,
			"lost_why: expected at most %d bytes, of what drains for nothing and has "
			"no "
			"memfd",
			STATE_MAX_WHY_BYTES);
	g->is_corrupt = m->corrupt;
	g->clean_ns = m->clean_ns;
	g->lost_why = strdup(m->lost_why);
	return g->lost_why ? 0 : parse_refuse_memory(ret_err);
}

static int parse_generation(
	const Wdstate__Generation *m, struct err *ret_err, struct state_generation *g)
{
	uint64_t n_staged_bytes = ((uint64_t)m->n_tensors + 7) / 8;
	int rc = registry_check_name(m->model, ret_err);

	if (rc < 0)
		return rc;
	strcpy(g->model, m->model);
	g->id = m->id;
	g->is_pinned = m->pinned;
	g->expel_ns = m->expel_ns;
	g->is_file_writable = m->file_writable;
	g->has_memfd = m->memfd;
	g->n_tensors = m->n_tensors;
	if (strlen(m->path) > SERVICE_MAX_PATH_BYTES)
		return err_set(
			ret_err, EINVAL, "path: expected at most %d bytes", SERVICE_MAX_PATH_BYTES);
	if (m->n_tensors > STATE_MAX_TENSORS ||
		m->staged.len != (m->memfd ? (size_t)n_staged_bytes : 0))
		return err_set(ret_err, EINVAL,
			"staged: expected a bit for each of %u tensors, found %zu bytes",
			m->n_tensors, m->staged.len);
	rc = parse_kind(m, ret_err, g);
	if (rc == 0)
		rc = parse_lost(m, ret_err, g);
	if (rc < 0)
		return rc;
	g->path = strdup(m->path);
	if (!g->path)
		return parse_refuse_memory(ret_err);
	rc = parse_file(m->file, "file", ret_err, &g->file);
	if (rc == 0 && m->memfd)
		rc = parse_file(m->memfd, "memfd", ret_err, &g->memfd);
	if (rc == 0)
		rc = parse_bytes(&m->staged, "staged", n_staged_bytes, ret_err, &g->staged);
	return rc < 0 ? rc : parse_residencies(m, ret_err, g);
}

static int parse_generations(const Wdstate__State *m, struct err *ret_err, struct state *s)
{
	uint64_t last_id = 0;

	if (m->last_id > INT64_MAX)
		return err_set(ret_err, EINVAL, "last_id: expected less, found %llu",
			(unsigned long long)m->last_id);
	if (m->n_generations > REGISTRY_MAX_GENERATIONS)
		return err_set(ret_err, EINVAL, "expected at most %d generations, found %zu",
			REGISTRY_MAX_GENERATIONS, m->n_generations);
	s->generations = calloc(m->n_generations + 1, sizeof(*s->generations));
	if (!s->generations)
		return parse_refuse_memory(ret_err);
	s->n_generations = (uint32_t)m->n_generations;
	for (uint32_t i = 0; i < s->n_generations; i++) {
		const Wdstate__Generation *g = m->generations[i];
		int rc = 0;
		if (g->id <= last_id || g->id > m->last_id)
			rc = err_set(ret_err, EINVAL, "id: expected %llu to %llu, found %llu",
				(unsigned long long)last_id + 1, (unsigned long long)m->last_id,
				(unsigned long long)g->id);
		if (rc == 0)
			rc = parse_generation(g, ret_err, &s->generations[i]);
		if (rc < 0) {
			err_prefix(ret_err, "generation %u", i);
			return rc;
		}
		last_id = g->id;
	}
	s->last_id = m->last_id;
	return 0;
}

static int parse_grants(const Wdstate__Holder *m, struct err *ret_err, struct state_holder *h)
{
	h->grants = calloc(m->n_grants + 1, sizeof(*h->grants));
	if (!h->grants)
		return parse_refuse_memory(ret_err);
	h->n_grants = (uint32_t)m->n_grants;
	for (uint32_t i = 0; i < h->n_grants; i++) {
		const Wdstate__Grant *row = m->grants[i];
		struct state_grant *g = &h->grants[i];
		if (row->device_uuid.len != STATE_UUID_BYTES || row->n_bytes == 0 ||
			row->n_bytes > INT64_MAX)
			return err_set(ret_err, EINVAL,
				"grant %u: expected bytes of a device, found %llu and a uuid of "
				"%zu bytes",
				i, (unsigned long long)row->n_bytes, row->device_uuid.len);
		memcpy(g->device_uuid, row->device_uuid.data, STATE_UUID_BYTES);
		g->n_bytes = row->n_bytes;
		int rc = parse_text(row->model, "model", sizeof(g->model), ret_err, g->model);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int parse_holder(const Wdstate__Holder *m, struct err *ret_err, struct state_holder *h)
{
	if (m->pid < 0 || m->n_generations + m->n_grants == 0 ||
		m->n_generations > REGISTRY_MAX_GENERATIONS || m->n_grants > SERVICE_MAX_DEVICES)
		return err_set(ret_err, EINVAL,
			"expected a process with at most %d generations and %d grants, and one of "
			"them, found pid %d with %zu and %zu",
			REGISTRY_MAX_GENERATIONS, SERVICE_MAX_DEVICES, (int)m->pid,
			m->n_generations, m->n_grants);
	h->pid = m->pid;
	h->start_ticks = m->start_ticks;
	h->uid = m->uid;
	h->socket = m->socket;
	h->is_hold = m->hold;
	h->generations = calloc(m->n_generations + 1, sizeof(*h->generations));
	if (!h->generations)
		return parse_refuse_memory(ret_err);
	h->n_generations = (uint32_t)m->n_generations;
	if (m->n_generations > 0)
		memcpy(h->generations, m->generations, m->n_generations * sizeof(*h->generations));
	return parse_grants(m, ret_err, h);
}

static int parse_holders(const Wdstate__State *m, struct err *ret_err, struct state *s)
{
	if (m->n_holders > STATE_MAX_HOLDERS)
		return err_set(ret_err, EINVAL, "expected at most %d holders, found %zu",
			STATE_MAX_HOLDERS, m->n_holders);
	s->holders = calloc(m->n_holders + 1, sizeof(*s->holders));
	if (!s->holders)
		return parse_refuse_memory(ret_err);
	s->n_holders = (uint32_t)m->n_holders;
	for (uint32_t i = 0; i < s->n_holders; i++) {
		const Wdstate__Holder *row = m->holders[i];
		struct state_holder *h = &s->holders[i];
		int rc = parse_holder(row, ret_err, h);
		if (rc < 0) {
			err_prefix(ret_err, "holder %u", i);
			return rc;
		}
	}
	return 0;
}

static int parse_listens(const Wdstate__State *m, struct err *ret_err, struct state *s)
{
	int rc = 0;

	if (m->n_listens > STATE_MAX_LISTENS)
		return err_set(ret_err, EINVAL, "expected at most %d listens, found %zu",
			STATE_MAX_LISTENS, m->n_listens);
	s->listens = calloc(m->n_listens + 1, sizeof(*s->listens));
	if (!s->listens)
		return parse_refuse_memory(ret_err);
	s->n_listens = (uint32_t)m->n_listens;
	for (uint32_t i = 0; i < s->n_listens && rc == 0; i++)
		rc = parse_text(
			m->listens[i], "listens", sizeof(s->listens[i]), ret_err, s->listens[i]);
	return rc;
}

static int parse_secret(const Wdstate__State *m, struct err *ret_err, struct state *s)
{
	if (m->secret.len != 0 && m->secret.len != STATE_SECRET_BYTES)
		return err_set(ret_err, EINVAL, "secret: expected %d bytes, found %zu",
			STATE_SECRET_BYTES, m->secret.len);
	s->has_secret = m->secret.len > 0;
	if (s->has_secret)
		memcpy(s->secret, m->secret.data, STATE_SECRET_BYTES);
	return 0;
}

static void parse_free_message(Wdstate__State **m)
{
	if (*m)
		wdstate__state__free_unpacked(*m, NULL);
}

int state_parse(const void *data, uint64_t n_bytes, const char *boot_id, struct err *ret_err,
	struct state *ret_state)
{
	const uint8_t *body = (const uint8_t *)data + STATE_HASH_HEAD_BYTES;
	_cleanup_(parse_free_message)
	Wdstate__State *m = NULL;
	_cleanup_(state_fini)
	struct state s = {0};
	uint64_t hash;

	if (n_bytes < STATE_HASH_HEAD_BYTES || n_bytes > STATE_MAX_BYTES ||
		memcmp(data, state_hash_magic, STATE_HASH_MAGIC_BYTES))
		return err_set(ret_err, EBADMSG,
			"expected a state file of this version, found %llu other bytes",
			(unsigned long long)n_bytes);
	memcpy(&hash, (const uint8_t *)data + STATE_HASH_MAGIC_BYTES, sizeof(hash));
	if (hash != fnv_hash(body, n_bytes - STATE_HASH_HEAD_BYTES))
		return err_set(ret_err, EBADMSG, "it is damaged: its hash does not fit");
	m = wdstate__state__unpack(NULL, n_bytes - STATE_HASH_HEAD_BYTES, body);
	if (!m)
		return err_set(ret_err, EBADMSG, "%llu bytes that are no state",
			(unsigned long long)n_bytes);
	if (boot_id && strcmp(m->boot_id, boot_id))
		return err_set(ret_err, ESTALE, "it is of another boot of this machine");
	int rc = parse_secret(m, ret_err, &s);
	if (rc == 0)
		rc = parse_generations(m, ret_err, &s);
	if (rc == 0)
		rc = parse_holders(m, ret_err, &s);
	if (rc == 0)
		rc = parse_listens(m, ret_err, &s);
	if (rc < 0)
		return rc;
	*ret_state = s;
	s = (struct state){0};
	return 0;
}
