/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/plan-layout.h"

#include <errno.h>
#include <stdio.h>

#include "proto/manifest.h"
#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/device.h"
#include "vk/slice.h"
#include "workerd/arch.h"
#include "workerd/graph.h"
#include "workerd/ops/best.h"
#include "workerd/ops/attention.h"
#include "workerd/ops/matrix.h"
#include "workerd/plan.h"
#include "workerd/weights.h"

enum {
	N_SLOTS = 2, /* fetch.c's: one is computed with while the other is filled */
	/* Layers are alike, so their values share names and places: what is beyond has none. */
	MAX_SITES = 48,
};

bool plan_layout_get(const struct plan_params *params, uint32_t n_vocab, uint64_t n_constant_bytes,
	struct plan_layout *ret)
{
	uint64_t n_logit_bytes = 4ull * n_vocab * params->n_logit_rows; /* 2^2+22+13: fits */

	/* What every step has is in front, so that a step of few rows is a short beginning. */
	return bytes_align(sizeof(struct plan_io), 16, &ret->want) &&
	       bytes_align(ret->want + 4ull * params->n_logit_rows, 16, &ret->asked) &&
	       bytes_align(ret->asked + 4ull * params->n_logit_rows, 64, &ret->rows) &&
	       bytes_align(ret->rows + sizeof(struct abi_row) * params->n_rows, 64, &ret->spans) &&
	       bytes_align(ret->spans + op_attention_span_bytes(params->n_rows), 256,
		       &ret->n_lane_bytes) &&
	       bytes_align(PLAN_LAYOUT_LANES * ret->n_lane_bytes, 256, &ret->constants) &&
	       bytes_align(ret->constants + n_constant_bytes, 256, &ret->best) &&
	       bytes_align(ret->best + PLAN_LAYOUT_LANES * sizeof(struct abi_best) * ABI_BEST_N *
					       params->n_logit_rows,
		       256, &ret->logits) &&
	       !__builtin_add_overflow(ret->logits, n_logit_bytes, &ret->n_bytes);
}

bool plan_layout_get_scratch(const struct plan_params *params, uint32_t n_vocab,
	uint64_t n_value_bytes, uint64_t n_step_bytes, uint64_t n_constant_bytes,
	struct plan_layout_scratch *ret)
{
	uint64_t n_logit_bytes = 4ull * n_vocab * params->n_logit_rows; /* 2^2+22+13: fits */

	return bytes_align(n_value_bytes, 256, &ret->step) &&
	       bytes_align(ret->step + n_step_bytes, 256, &ret->picked) &&
	       bytes_align(ret->picked + 4ull * params->n_logit_rows, 256, &ret->table) &&
	       bytes_align(ret->table + params->n_table_bytes, 256, &ret->constants) &&
	       bytes_align(ret->constants + n_constant_bytes, 256, &ret->logits) &&
	       bytes_align(ret->logits + PLAN_LAYOUT_LANES * n_logit_bytes, 256, &ret->parts) &&
	       !__builtin_add_overflow(
		       ret->parts, OP_BEST_PARTS_BYTES * params->n_logit_rows, &ret->n_bytes);
}

void plan_layout_get_constants(
	const struct graph *g, uint64_t n_counter_bytes, struct plan_constants *ret)
{
	ret->tables = g->n_rot / 2 * sizeof(uint64_t);
	ret->counters = ret->tables + g->n_table_entries * sizeof(uint64_t);
	ret->n_bytes = ret->counters + n_counter_bytes;
}

void plan_layout_get_attention(const struct graph *g, const struct vk_device *d,
	const struct plan_params *params, struct op_attention_needs *ret_needs)
{
	const struct op_attention_params attention = {
		.n_head = g->n_head,
		.n_head_kv = g->n_head_kv,
		.head_dim = g->head_dim,
		.n_rows = params->n_rows,
		.is_exact = params->kernels == PLAN_KERNELS_EXACT,
		.tune.kind = params->attention,
	};

	op_attention_get_needs(vk_device_get_info(d), &attention, ret_needs);
}

/* The tensors of a layer that are not on the device are copied together, those of none apart. */
static uint64_t plan_layout_count_slots(const struct weights *w)
{
	uint64_t n_most = 0, n_layer_bytes = 0;
	uint32_t layer = WEIGHTS_NO_LAYER;

	for (uint32_t n = 0; n <= w->manifest->hparams->n_layers; n++) {
		layer = n ? n - 1 : WEIGHTS_NO_LAYER;
		n_layer_bytes = 0;
		for (uint32_t i = 0; i < w->manifest->n_tensors; i++) {
			const struct manifest_tensor *t = &w->manifest->tensors[i];
			if (w->allocs[t->alloc].placement == MANIFEST_PLACEMENT_DEVICE ||
				weights_get_layer((const char *)manifest_get_string(
					w->manifest, t->name)) != layer)
				continue;
			n_layer_bytes = layer == WEIGHTS_NO_LAYER ? 0 : n_layer_bytes;
			n_layer_bytes += t->n_bytes + 256;
			n_most = n_layer_bytes > n_most ? n_layer_bytes : n_most;
		}
	}
	return n_most * N_SLOTS;
}

int plan_layout_name_scratch(const struct graph *g, uint32_t n_rows,
	const struct plan_layout_scratch *layout, const struct plan_constants *constants,
	struct vk_memory *scratch, struct err *ret_err)
{
	struct vk_slice_name names[MAX_SITES + 7] = {0};
	struct graph_site sites[MAX_SITES];
	const uint64_t n_turn_bytes = constants->tables;
	const uint64_t n_table_bytes = constants->counters - constants->tables;
	const uint64_t n_counter_bytes = constants->n_bytes - constants->counters;
	uint32_t n = graph_get_sites(g, n_rows, sites, MAX_SITES);

	n = n < MAX_SITES ? n : MAX_SITES;
	for (uint32_t i = 0; i < n; i++) {
		snprintf(names[i].name, sizeof(names[i].name), "%s", sites[i].name);
		names[i].offset = sites[i].offset;
		names[i].n_bytes = sites[i].n_bytes;
	}
	if (n_turn_bytes)
		names[n++] = (struct vk_slice_name){
			.name = "rope turns", .offset = layout->constants, .n_bytes = n_turn_bytes};
	if (n_table_bytes)
		names[n++] = (struct vk_slice_name){.name = "expert tables",
			.offset = layout->constants + n_turn_bytes,
			.n_bytes = n_table_bytes};
	if (n_counter_bytes)
		names[n++] = (struct vk_slice_name){.name = "attention counters",
			.offset = layout->constants + constants->counters,
			.n_bytes = n_counter_bytes};
	names[n++] = (struct vk_slice_name){
		.name = "step", .offset = layout->step, .n_bytes = layout->table - layout->step};
	names[n++] = (struct vk_slice_name){.name = "page table",
		.offset = layout->table,
		.n_bytes = layout->constants - layout->table};
	names[n++] = (struct vk_slice_name){.name = "logits",
		.offset = layout->logits,
		.n_bytes = layout->parts - layout->logits};
	names[n++] = (struct vk_slice_name){.name = "best logits",
		.offset = layout->parts,
		.n_bytes = layout->n_bytes - layout->parts};
	return vk_slice_set_names(scratch, names, n, ret_err);
}

int plan_layout_measure(const struct vk_device *d, const struct weights *w,
	const struct plan_params *params, struct err *ret_err, struct plan_layout_bytes *ret_bytes)
{
	_cleanup_(graph_fini)
	struct graph g = {0};
	const struct arch *arch = NULL;
	struct plan_layout_scratch scratch = {0};
	struct op_attention_needs needs;
	struct plan_constants constants;
	struct plan_layout io = {0};
	uint64_t n_value_bytes = 0;
	int r = arch_find(w, ret_err, &arch);

	g.wants_staging = params->kernels != PLAN_KERNELS_EXACT;
	g.n_decoded_bytes = op_matrix_get_decoded_bytes(vk_device_get_info(d));
	if (!r)
		r = arch->build(w, &g, ret_err);
	if (r)
		return r;
	plan_layout_get_attention(&g, d, params, &needs);
	plan_layout_get_constants(&g, needs.n_counter_bytes, &constants);
	graph_reserve_partials(&g, (uint32_t)(needs.n_partial_bytes / 4));
	r = graph_place(&g, params->n_rows, ret_err, &n_value_bytes);
	if (r)
		return r;
	if (!plan_layout_get(params, w->manifest->hparams->n_vocab, constants.n_bytes, &io) ||
		!plan_layout_get_scratch(params, w->manifest->hparams->n_vocab, n_value_bytes,
			io.n_lane_bytes, constants.n_bytes, &scratch))
		return err_set(ret_err, EOVERFLOW, "plan: %u rows overflow", params->n_rows);
	uint64_t n_slot_bytes = plan_layout_count_slots(w);
	if (n_slot_bytes) /* their experts have tables of their own */
		n_slot_bytes += g.n_table_entries * sizeof(uint64_t);
	*ret_bytes = (struct plan_layout_bytes){
		.n_scratch_bytes = scratch.n_bytes + n_slot_bytes + params->n_expert_cache_bytes,
		.n_io_bytes = io.n_bytes,
	};
	return 0;
}
