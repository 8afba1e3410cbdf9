/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/state.h"

#include <errno.h>

#include "proto/weightd-state.pb-c.h"
#include "weightd/state-hash.h"

/* The messages of one state: rows are taken from here and go together. */
struct pack {
	Wdstate__Generation *generations;
	Wdstate__Generation **generation_rows;
	Wdstate__Summary *summaries;
	Wdstate__File *files; /* two a generation, one a residency */
	Wdstate__Residency *residencies;
	Wdstate__Residency **residency_rows;
	Wdstate__Allocation *allocs;
	Wdstate__Allocation **alloc_rows;
	Wdstate__Holder *holders;
	Wdstate__Holder **holder_rows;
	Wdstate__Grant *grants;
	Wdstate__Grant **grant_rows;
	char **listens;
};

static void pack_fini(struct pack *p)
{
	free(p->generations);
	free(p->generation_rows);
	free(p->summaries);
	free(p->files);
	free(p->residencies);
	free(p->residency_rows);
	free(p->allocs);
	free(p->alloc_rows);
	free(p->holders);
	free(p->holder_rows);
	free(p->grants);
	free(p->grant_rows);
	free(p->listens);
}

static int pack_init(struct pack *p, const struct state *s)
{
	size_t n_residencies = 0, n_allocs = 0, n_grants = 0;

	for (uint32_t i = 0; i < s->n_generations; i++) {
		n_residencies += s->generations[i].n_residencies;
		for (uint32_t k = 0; k < s->generations[i].n_residencies; k++)
			n_allocs += s->generations[i].residencies[k].n_allocs;
	}
	for (uint32_t i = 0; i < s->n_holders; i++)
		n_grants += s->holders[i].n_grants;
	p->generations = calloc(s->n_generations + 1, sizeof(*p->generations));
	p->generation_rows = calloc(s->n_generations + 1, sizeof(*p->generation_rows));
	p->summaries = calloc(s->n_generations + 1, sizeof(*p->summaries));
	p->files = calloc(2 * (size_t)s->n_generations + n_residencies + 1, sizeof(*p->files));
	p->residencies = calloc(n_residencies + 1, sizeof(*p->residencies));
	p->residency_rows = calloc(n_residencies + 1, sizeof(*p->residency_rows));
	p->allocs = calloc(n_allocs + 1, sizeof(*p->allocs));
	p->alloc_rows = calloc(n_allocs + 1, sizeof(*p->alloc_rows));
	p->holders = calloc(s->n_holders + 1, sizeof(*p->holders));
	p->holder_rows = calloc(s->n_holders + 1, sizeof(*p->holder_rows));
	p->grants = calloc(n_grants + 1, sizeof(*p->grants));
	p->grant_rows = calloc(n_grants + 1, sizeof(*p->grant_rows));
	p->listens = calloc(s->n_listens + 1, sizeof(*p->listens));
	return p->generations && p->generation_rows && p->summaries && p->files && p->residencies &&
			       p->residency_rows && p->allocs && p->alloc_rows && p->holders &&
			       p->holder_rows && p->grants && p->grant_rows && p->listens
		       ? 0
		       : -ENOMEM;
}

static Wdstate__File *pack_file(Wdstate__File *m, const struct state_file *f)
{
	wdstate__file__init(m);
	m->dev = f->dev;
	m->inode = f->inode;
	m->n_bytes = f->n_bytes;
	m->mtime_s = f->mtime_s;
	m->mtime_ns = f->mtime_ns;
	return m;
}

static ProtobufCBinaryData pack_bytes(const struct state_bytes *b)
{
	return (ProtobufCBinaryData){.data = b->data, .len = b->n_bytes};
}

static void pack_alloc(Wdstate__Allocation *m, const struct state_alloc *a)
{
	wdstate__allocation__init(m);
	m->handle_type = a->handle;
	m->n_bytes = a->n_bytes;
	m->buffer_bytes = a->buffer_bytes;
	m->memory_type_index = a->memory_type_index;
	m->dedicated = a->is_dedicated;
	m->placement = a->placement;
	m->file_offset = a->file_offset;
	m->writable = a->is_writable;
	m->dev = a->dev;
	m->inode = a->inode;
	m->has_opaque = a->has_opaque;
	m->opaque_dev = a->opaque_dev;
	m->opaque_inode = a->opaque_inode;
}

static void pack_residency(Wdstate__Residency *m, const struct state_residency *r)
{
	wdstate__residency__init(m);
	m->slot = r->slot;
	m->foreign = r->is_foreign;
	if (!r->is_foreign) {
		m->device_uuid =
			(ProtobufCBinaryData){.data = (uint8_t *)r->device_uuid, .len = 16};
		m->driver_uuid =
			(ProtobufCBinaryData){.data = (uint8_t *)r->driver_uuid, .len = 16};
	}
	m->architecture = (char *)r->architecture;
	m->format = (char *)r->format;
	m->n_parameters = r->n_parameters;
	m->n_tensors = r->n_tensors;
	m->unmet_bytes = r->n_unmet_bytes;
	m->n_placed_bytes = PLACEMENT_N;
	m->placed_bytes = (uint64_t *)r->n_placed_bytes;
	m->sums = pack_bytes(&r->sums);
	m->lost_bytes = r->n_lost_bytes;
}

static void pack_generation(Wdstate__Generation *m, const struct state_generation *g)
{
	wdstate__generation__init(m);
	m->id = g->id;
	m->model = (char *)g->model;
	m->path = g->path ? g->path : (char *)"";
	m->draining = g->is_draining;
	m->pinned = g->is_pinned;
	m->expel_ns = g->expel_ns;
	m->file_writable = g->is_file_writable;
	m->staged = pack_bytes(&g->staged);
	m->n_tensors = g->n_tensors;
	m->warm = g->is_warm;
	m->loading = g->is_loading;
	m->replaced = g->is_replaced;
	if (g->lost_why)
		m->lost_why = g->lost_why;
	m->corrupt = g->is_corrupt;
	m->clean_ns = g->clean_ns;
	m->sums = pack_bytes(&g->sums);
}

static Wdstate__Summary *pack_summary(Wdstate__Summary *m, const struct service_summary *s)
{
	wdstate__summary__init(m);
	m->architecture = (char *)s->architecture;
	m->format = (char *)s->format;
	m->n_parameters = s->n_parameters;
	m->n_tensors = s->n_tensors;
	return m;
}

static void pack_grant(Wdstate__Grant *m, const struct state_grant *g)
{
	wdstate__grant__init(m);
	m->device_uuid = (ProtobufCBinaryData){.data = (uint8_t *)g->device_uuid, .len = 16};
	m->n_bytes = g->n_bytes;
	m->model = (char *)g->model;
}

static void pack_holders(struct pack *p, const struct state *s)
{
	size_t n_grants = 0;

	for (uint32_t i = 0; i < s->n_holders; i++) {
		const struct state_holder *h = &s->holders[i];
		Wdstate__Holder *m = p->holder_rows[i] = &p->holders[i];
		wdstate__holder__init(m);
		m->pid = h->pid;
		m->start_ticks = h->start_ticks;
		m->uid = h->uid;
		m->socket = h->socket;
		m->n_generations = h->n_generations;
		m->generations = h->generations;
		m->hold = h->is_hold;
		m->n_grants = h->n_grants;
		m->grants = p->grant_rows + n_grants;
		for (uint32_t k = 0; k < h->n_grants; k++, n_grants++) {
			p->grant_rows[n_grants] = &p->grants[n_grants];
			pack_grant(&p->grants[n_grants], &h->grants[k]);
		}
	}
}

static void pack_all(struct pack *p, const struct state *s)
{
	size_t n_files = 0, n_residencies = 0, n_allocs = 0;

	for (uint32_t i = 0; i < s->n_generations; i++) {
		const struct state_generation *g = &s->generations[i];
		Wdstate__Generation *m = p->generation_rows[i] = &p->generations[i];
		pack_generation(m, g);
		m->file = pack_file(&p->files[n_files++], &g->file);
		if (g->has_memfd)
			m->memfd = pack_file(&p->files[n_files++], &g->memfd);
		if (g->is_warm)
			m->summary = pack_summary(&p->summaries[i], &g->summary);
		m->residencies = p->residency_rows + n_residencies;
		m->n_residencies = g->n_residencies;
		for (uint32_t k = 0; k < g->n_residencies; k++) {
			const struct state_residency *r = &g->residencies[k];
			Wdstate__Residency *row = &p->residencies[n_residencies];
			p->residency_rows[n_residencies++] = row;
			pack_residency(row, r);
			row->manifest = pack_file(&p->files[n_files++], &r->manifest);
			row->allocations = p->alloc_rows + n_allocs;
			row->n_allocations = r->n_allocs;
			for (uint32_t a = 0; a < r->n_allocs; a++, n_allocs++) {
				p->alloc_rows[n_allocs] = &p->allocs[n_allocs];
				pack_alloc(&p->allocs[n_allocs], &r->allocs[a]);
			}
		}
	}
	pack_holders(p, s);
	for (uint32_t i = 0; i < s->n_listens; i++)
		p->listens[i] = s->listens[i];
}

int state_pack(
	const struct state *s, const char *boot_id, uint8_t **ret_data, uint64_t *ret_n_bytes)
{
	_cleanup_(pack_fini)
	struct pack p = {0};
	Wdstate__State m = WDSTATE__STATE__INIT;
	int rc = pack_init(&p, s);

	if (rc < 0)
		return rc;
	pack_all(&p, s);
	m.boot_id = (char *)boot_id;
	m.last_id = s->last_id;
	if (s->has_secret)
		m.secret = (ProtobufCBinaryData){
			.data = (uint8_t *)s->secret, .len = STATE_SECRET_BYTES};
	m.n_generations = s->n_generations;
	m.generations = p.generation_rows;
	m.n_holders = s->n_holders;
	m.holders = p.holder_rows;
	m.n_listens = s->n_listens;
	m.listens = p.listens;
	size_t n_bytes = wdstate__state__get_packed_size(&m);
	if (n_bytes > STATE_MAX_BYTES - STATE_HASH_HEAD_BYTES)
		return -EFBIG;
	uint8_t *data = malloc(STATE_HASH_HEAD_BYTES + n_bytes);
	if (!data)
		return -ENOMEM;
	wdstate__state__pack(&m, data + STATE_HASH_HEAD_BYTES);
	state_hash_write_head(data, data + STATE_HASH_HEAD_BYTES, n_bytes);
	*ret_data = data;
	*ret_n_bytes = STATE_HASH_HEAD_BYTES + n_bytes;
	return 0;
}
