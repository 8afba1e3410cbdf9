/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_EXPERTS_H
#define WORKERD_OPS_EXPERTS_H

/*
 * Rows times the matrices of the experts that they take, in one of two shapes of work.
 *
 * Few rows: a tile is one row and one expert. The first such op of a layer chooses the experts from
 * the logits on its way, the last one adds up the experts of a row.
 * Many rows: op_route and op_group have sorted the rows by expert, so that an expert's matrices are
 * loaded for up to ABI_GROUP_ROWS rows at a time; a dispatch of its own adds up.
 * A row's result is the same bits in both (shaders/experts.comp, shaders/mix.comp).
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "shaders/abi.h"
#include "workerd/weights.h"

struct err;
struct op_pool;
struct vk_command;

enum { OP_EXPERTS_MAX_PARTS = 2 };

enum op_experts_finish {
	OP_EXPERTS_SWIGLU, /* y[pair] = silu(w[0] x[row]) * (w[1] x[row]) */
	OP_EXPERTS_MIX,    /* y[row] += sum over its pairs of weight * (w[0] x[pair]) */
};

struct op_experts_params {
	enum op_experts_finish finish;                 /* two matrices with SWIGLU, one with MIX */
	struct weights_tensor w[OP_EXPERTS_MAX_PARTS]; /* [n_expert][n][k] each */
	uint64_t tables[OP_EXPERTS_MAX_PARTS]; /* of [n_expert] u64: where an expert's [n][k] lies,
						  aligned as the tensor's first */
	bool is_plain;   /* they lie as w says, one behind the other: the tables need not be read */
	uint64_t x;      /* SWIGLU: of [m][k] f32; MIX: [m * n_used][k] */
	uint64_t y;      /* SWIGLU: of [m * n_used][n] f32; MIX: [m][n] */
	uint64_t z;      /* MIX: of [m * n_used][n] f32, for many rows */
	uint64_t gain;   /* of [k] f32: normalise x; 0: take it as it is */
	uint64_t logits; /* of [m][n_expert] f32 */
	uint64_t choice; /* of [m][n_used] struct abi_choice */
	uint64_t pairs;  /* of [m * n_used] u32, for many rows */
	uint64_t groups; /* see op_group_count_slots, for many rows */
	uint64_t wide;   /* see op_group_count_wide; 0: there are none */
	uint32_t wide_rows;  /* of a group of those, see op_group_choose_wide */
	bool is_half;        /* x of MIX, y of SWIGLU are f16, see op_matrix_experts_chain */
	uint32_t half_order; /* of those: ABI_STAGE_* */
	uint64_t staging;    /* for x in another form, theirs until the next op; 0: there is none */
	uint64_t n_staging_bytes;
	bool is_exact; /* rows have the same bits whatever else is in the step, see plan.h */
	uint64_t m;    /* of u32: rows of the step */
	uint32_t n_used;
	bool is_routed; /* choice has been made, for few rows too */
	bool is_staged; /* SWIGLU: a router has left x as bytes in staging; x is there anyway */
	/* MIX: see op_matvec_experts_chain, and struct op_matmul_params. */
	uint64_t next;
	uint64_t next_gain;
	uint32_t next_order;
	bool is_far;     /* most of w is on the other side of a bus: the same bits, other loads */
	float eps;       /* of the norm */
	uint32_t n_rows; /* the most that m can be */
};

/* Are up to n_rows rows many, to be routed and grouped before their experts? */
bool op_experts_is_grouped(uint32_t n_rows, uint32_t n_expert, uint32_t n_used);

/*
 * Records it, with barriers where one of its own dispatches needs another's output. With SWIGLU and
 * few rows choice is written, unless it has been made; else it is read.
 * -ENOTSUP for a block format without kernels, -EINVAL for shapes that do not fit. Engine thread.
 */
int must_check op_experts_record(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *params, struct err *ret_err);

/*
 * The last step of MIX for many rows, of who has computed z: a barrier, and the sums of each row's
 * experts (shaders/mix.comp).
 */
int must_check op_experts_record_sums(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *params, struct err *ret_err);

#endif
