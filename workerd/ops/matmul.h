/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_MATMUL_H
#define WORKERD_OPS_MATMUL_H

/*
 * Rows times up to three matrices, with what comes before and after fused in: RMS norm on the way
 * in, residual, gate or SwiGLU on the way out (shaders/matmul.comp). Matrices that no one kernel
 * reads together get a dispatch each.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "shaders/abi.h"
#include "workerd/weights.h"

struct err;
struct op_pool;
struct vk_command;

enum op_matmul_finish {
	OP_MATMUL_STORE = ABI_TILE_FINISH_STORE,   /* y = W x */
	OP_MATMUL_ADD = ABI_TILE_FINISH_ADD,       /* y = r + W x */
	OP_MATMUL_SWIGLU = ABI_TILE_FINISH_SWIGLU, /* y = silu(w[0] x) * (w[1] x) */
};

struct op_matmul_params {
	uint32_t n_parts; /* 1 to ABI_MATMUL_MAX_PARTS; 2 with SWIGLU */
	struct weights_tensor w[ABI_MATMUL_MAX_PARTS]; /* [n][k] each, all of the same k */
	uint64_t x;    /* device address of [m][k] f32, or of what want chooses from */
	uint64_t y;    /* of [m][sum of n] f32, with SWIGLU [m][n of w[0]] */
	uint64_t gain; /* of [k] f32: normalise x; 0: take it as it is */
	uint64_t r;    /* with ADD: of [m][sum of n] f32; may be y */
	uint64_t m;    /* of u32: rows of the step */
	uint64_t want; /* of [m] u32: row i is x[want[i]]; 0: x[i] */
	/* For kernels that read x in another form, theirs until the next op; 0: there is none. */
	uint64_t staging;
	uint64_t n_staging_bytes;
	bool is_staged; /* x is there already: op_matvec_chain */
	/* Where y goes as what the next op reads as its staging, see op_matvec_chain; 0: nowhere.
	 */
	uint64_t next;
	uint64_t next_gain; /* of [width of y] f32: of the next op's norm; 0: it has none */
	uint32_t next_order;
	bool is_skinny; /* what is_staged and next say is op_skinny_chain's */
	bool is_exact;  /* rows have the same bits whatever else is in the step, see plan.h */
	enum op_matmul_finish finish;
	float eps;       /* of the norm */
	uint32_t n_rows; /* the most that m can be */
};

/*
 * Records it, with barriers where one of its own dispatches needs another's output.
 * -ENOTSUP for a block format without kernels, -EINVAL for shapes that do not fit. Engine thread.
 */
int must_check op_matmul_record(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *params, struct err *ret_err);

#endif
