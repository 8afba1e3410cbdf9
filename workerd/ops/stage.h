/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_STAGE_H
#define WORKERD_OPS_STAGE_H

/* Rows of f32 as f16, normalised and gathered on the way (shaders/stage.comp). */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct op_pool;
struct vk_command;

struct op_stage_params {
	uint64_t x;       /* device address of [m n_share][k] f32, at a multiple of 16 */
	uint64_t y;       /* of [m n_share][k] f16, at a multiple of 8 */
	uint64_t gain;    /* of [k] f32, at a multiple of 16: normalise x; 0: take it as it is */
	uint64_t want;    /* of [m n_share] u32: row i is x[want[i]]; 0: x[i] */
	uint64_t m;       /* of u32: rows of the step */
	uint32_t n_share; /* rows of x for each of m */
	uint32_t k;       /* a multiple of 8 */
	float eps;        /* of the norm */
	uint32_t order;   /* of each four numbers of y: ABI_STAGE_* */
	uint32_t n_rows;  /* the most that m can be */
	bool is_blocks;   /* y in blocks of 16 rows, the last whole, at a multiple of 16; k likewise
			   */
};

/* Records it. -errno of op_pool_dispatch. Engine thread. */
int must_check op_stage_record(struct op_pool *pool, struct vk_command *c,
	const struct op_stage_params *params, struct err *ret_err);

#endif
