/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_BEST_H
#define WORKERD_OPS_BEST_H

/* The ABI_BEST_N best logits of each row, or the best alone, best first (shaders/best.comp). */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct op_pool;
struct vk_command;

struct op_best_params {
	uint64_t logits; /* device address of [m][n] f32 */
	uint64_t parts;  /* of [m] times OP_BEST_PARTS_BYTES, free to be written */
	uint64_t y;      /* of [m][ABI_BEST_N] struct abi_best */
	uint64_t picked; /* of [m] u32: the index of each row's best, 0 without; 0: nobody asks */
	uint64_t asked;  /* of [m] u32: 1 where the best of a row is enough; 0: nowhere */
	uint64_t m;      /* of u32: rows of the step */
	uint32_t n;
	uint32_t n_rows; /* the most that m can be */
};

/* At most. */
#define OP_BEST_PARTS_BYTES (8ull * ABI_BEST_PARTS * ABI_BEST_N)

/* Of a row of n logits, which are looked at apart: at most ABI_BEST_PARTS. */
uint32_t op_best_count_parts(uint32_t n);

/* Two dispatches with a barrier between. Errors of op_pool_dispatch. Engine thread. */
int must_check op_best_record(struct op_pool *pool, struct vk_command *c,
	const struct op_best_params *params, struct err *ret_err);

#endif
