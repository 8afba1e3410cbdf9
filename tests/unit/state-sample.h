/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_STATE_SAMPLE_H
#define TESTS_UNIT_STATE_SAMPLE_H

/* A state with one of everything: generations of each kind, two devices and others', holders. */
#include <stdlib.h>
#include <string.h>

#include "proto/manifest.h"
#include "weightd/export.h"
#include "weightd/state.h"

static inline void *state_sample_alloc(size_t n_bytes)
{
	void *p = calloc(1, n_bytes);

	if (!p)
		abort();
	return p;
}

static inline void state_sample_bytes(struct state_bytes *b, const char *text)
{
	if (state_bytes_set(b, text, (uint32_t)strlen(text)) < 0)
		abort();
}

static inline void state_sample_residency(struct state_residency *r, uint32_t slot, bool is_foreign)
{
	r->slot = slot;
	r->is_foreign = is_foreign;
	if (!is_foreign) {
		memset(r->device_uuid, 'd', sizeof(r->device_uuid));
		memset(r->driver_uuid, 'v', sizeof(r->driver_uuid));
	}
	r->manifest = (struct state_file){.dev = 1, .inode = 40 + slot, .n_bytes = 5000};
	strcpy(r->architecture, "qwen3");
	strcpy(r->format, "q8_0");
	r->n_parameters = 1000;
	r->n_tensors = 9;
	r->n_unmet_bytes = 3;
	r->n_placed_bytes[MANIFEST_PLACEMENT_STAGED] = 8192;
	r->n_allocs = is_foreign ? 1 : 2;
	r->allocs = state_sample_alloc(r->n_allocs * sizeof(*r->allocs));
	r->allocs[0] = (struct state_alloc){.handle = EXPORT_MEMFD,
		.n_bytes = 8192,
		.buffer_bytes = 8000,
		.placement = MANIFEST_PLACEMENT_STAGED,
		.file_offset = 4096,
		.is_writable = true,
		.dev = 1,
		.inode = 30};
	if (!is_foreign)
		r->allocs[1] = (struct state_alloc){.handle = EXPORT_OPAQUE_FD,
			.n_bytes = 5000,
			.buffer_bytes = 4096,
			.memory_type_index = 7,
			.is_dedicated = true,
			.placement = MANIFEST_PLACEMENT_DEVICE,
			.dev = 6,
			.inode = 600};
	if (slot == 0 && r->n_allocs > 1) {
		r->allocs[1].handle = EXPORT_DMA_BUF;
		r->allocs[1].has_opaque = true;
		r->allocs[1].opaque_dev = 9;
		r->allocs[1].opaque_inode = 900;
	}
	state_sample_bytes(&r->sums, "sums");
}

static inline void state_sample_generation(struct state_generation *g, uint64_t id)
{
	g->id = id;
	strcpy(g->model, "atlas");
	g->path = strdup("/models/atlas.gguf");
	g->file = (struct state_file){
		.dev = 8, .inode = 80, .n_bytes = 100000, .mtime_s = -5, .mtime_ns = 999999999};
	g->has_memfd = true;
	g->memfd = (struct state_file){.dev = 1, .inode = 30, .n_bytes = 4096 + 8192};
	g->n_tensors = 9;
	state_sample_bytes(&g->staged, "\x05\x01");
	g->n_residencies = 2;
	g->residencies = state_sample_alloc(2 * sizeof(*g->residencies));
	state_sample_residency(&g->residencies[0], 0, false);
	state_sample_residency(&g->residencies[1], 2, true);
}

/* Without memory on devices. */
static inline void state_sample_bare(struct state_generation *g, uint64_t id, bool is_warm)
{
	g->id = id;
	strcpy(g->model, is_warm ? "cool" : "late");
	g->path = strdup("/models/atlas.gguf");
	g->file = (struct state_file){.dev = 8, .inode = 81, .n_bytes = 70000};
	g->is_warm = is_warm;
	g->is_loading = !is_warm;
	if (!is_warm)
		return;
	g->has_memfd = true;
	g->memfd = (struct state_file){.dev = 1, .inode = 31, .n_bytes = 8192};
	g->n_tensors = 3;
	state_sample_bytes(&g->staged, "\x07");
	state_sample_bytes(&g->sums, "sums of it");
	strcpy(g->summary.architecture, "qwen3");
	strcpy(g->summary.format, "q8_0");
	g->summary.n_parameters = 2000;
	g->summary.n_tensors = 3;
}

static inline void state_sample_grant(struct state_holder *h)
{
	h->n_grants = 1;
	h->grants = state_sample_alloc(sizeof(*h->grants));
	memset(h->grants[0].device_uuid, 'd', sizeof(h->grants[0].device_uuid));
	h->grants[0].n_bytes = 5 << 20;
	strcpy(h->grants[0].model, "atlas");
}

static inline void state_sample(struct state *s)
{
	*s = (struct state){.last_id = 14, .n_generations = 4, .n_holders = 3, .n_listens = 3};
	s->listens = state_sample_alloc(3 * sizeof(*s->listens));
	strcpy(s->listens[0], "/run/blue.sock");
	strcpy(s->listens[2], "/run/red.sock");
	s->generations = state_sample_alloc(4 * sizeof(*s->generations));
	state_sample_generation(&s->generations[0], 4);
	state_sample_generation(&s->generations[1], 12);
	s->generations[0].expel_ns = 987654321012345;
	state_sample_bare(&s->generations[2], 13, true);
	state_sample_bare(&s->generations[3], 14, false);
	s->generations[0].is_draining = s->generations[0].is_replaced = true;
	s->generations[1].is_file_writable = true;
	s->holders = state_sample_alloc(3 * sizeof(*s->holders));
	s->holders[0] = (struct state_holder){
		.pid = 77, .start_ticks = 123456, .uid = 1000, .n_generations = 2};
	s->holders[0].generations = state_sample_alloc(2 * sizeof(uint64_t));
	s->holders[0].generations[0] = 4;
	s->holders[0].generations[1] = 12;
	s->holders[1] = (struct state_holder){.uid = 5, .socket = 3, .n_generations = 1};
	s->holders[1].generations = state_sample_alloc(sizeof(uint64_t));
	s->holders[1].generations[0] = 12;
	s->holders[2] = (struct state_holder){.pid = 78, .start_ticks = 5, .is_hold = true};
	state_sample_grant(&s->holders[2]);
}

#endif
