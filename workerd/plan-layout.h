/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PLAN_LAYOUT_H
#define WORKERD_PLAN_LAYOUT_H

/*
 * Where things lie in a plan's io memory, and what a plan takes in all before anything is
 * allocated. Any one thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct graph;
struct op_attention_needs;
struct plan_params;
struct vk_device;
struct vk_memory;
struct weights;

/* Steps that may be under way at once; each has a lane of its own (workerd/lane.h). */
enum { PLAN_LAYOUT_LANES = 2 };

/* What a step's rows are, at the start of a lane. */
struct plan_io {
	uint32_t n_rows;
	uint32_t n_want;
};

/* Offsets into a lane, which the mirror brings to the device, then into io memory. */
struct plan_layout {
	uint64_t want;
	uint64_t asked; /* of the wanted rows, see op_best */
	uint64_t rows;
	uint64_t spans;        /* see op_attention_fill_spans */
	uint64_t n_lane_bytes; /* lane i is at i times this */

	uint64_t constants;
	uint64_t best;   /* [PLAN_LAYOUT_LANES][n_logit_rows][ABI_BEST_N] */
	uint64_t logits; /* of the rows of a step, when somebody asks for them */
	uint64_t n_bytes;
};

/* Of the rows that want logits: offsets into scratch behind the values, whose bytes are n_values.
 */
struct plan_layout_scratch {
	uint64_t step;   /* what the lane of the step has, see workerd/mirror.h */
	uint64_t picked; /* [n_logit_rows] u32, see op_best; outlives its step */
	uint64_t table;  /* of pages */
	uint64_t constants;
	uint64_t logits; /* [PLAN_LAYOUT_LANES][n_logit_rows][n_vocab] */
	uint64_t parts;  /* see workerd/ops/best.h */
	uint64_t n_bytes;
};

/* Offsets into the constants: rope turns at 0, then these. */
struct plan_constants {
	uint64_t tables;   /* of experts */
	uint64_t counters; /* of attention; they are no constants, but 0 at first and kept */
	uint64_t n_bytes;
};

/* n_counter_bytes: see op_attention_get_needs. */
void plan_layout_get_constants(
	const struct graph *g, uint64_t n_counter_bytes, struct plan_constants *ret_constants);

/* What attention of the graph takes besides in steps of up to n_rows rows. */
void plan_layout_get_attention(const struct graph *g, const struct vk_device *d,
	const struct plan_params *params, struct op_attention_needs *ret_needs);

/* n_vocab: of a row of logits. False on overflow. */
bool plan_layout_get(const struct plan_params *params, uint32_t n_vocab, uint64_t n_constant_bytes,
	struct plan_layout *ret_layout);

/* False on overflow. */
bool plan_layout_get_scratch(const struct plan_params *params, uint32_t n_vocab,
	uint64_t n_value_bytes, uint64_t n_step_bytes, uint64_t n_constant_bytes,
	struct plan_layout_scratch *ret_layout);

/*
 * Names what lies in a plan's scratch: the values, placed for n_rows rows, and what is behind them.
 * Engine thread.
 */
int must_check plan_layout_name_scratch(const struct graph *g, uint32_t n_rows,
	const struct plan_layout_scratch *layout, const struct plan_constants *constants,
	struct vk_memory *scratch, struct err *ret_err);

struct plan_layout_bytes {
	uint64_t n_scratch_bytes; /* values, constants, slots of weights that are copied ahead */
	uint64_t n_io_bytes;
};

/*
 * What plan_new would allocate with these parameters, but for some kilobytes; slots are counted as
 * for the largest layer, and kernels of AUTO as the fast ones. d: asked what it is. The errors of
 * plan_new without a device.
 */
int must_check plan_layout_measure(const struct vk_device *d, const struct weights *w,
	const struct plan_params *params, struct err *ret_err, struct plan_layout_bytes *ret_bytes);

#endif
