/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_MATVEC_EXPERTS_H
#define WORKERD_OPS_MATVEC_EXPERTS_H

/*
 * What op_experts does for few rows, with integer dot products (shaders/matvec-experts.comp): two
 * ops, the first of which leaves its outputs to the second as bytes only. Engine thread, when
 * commands are recorded.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct op_experts_params;
struct op_matmul_params;
struct op_pool;
struct vk_command;

enum { OP_MATVEC_EXPERTS_MAX_ROWS = 8 };

/* How the work is cut, as struct op_matvec_shape. */
struct op_matvec_experts_shape {
	uint32_t n_rows;      /* of W: 1, 2, 4 or 8; with SWIGLU not 1 */
	uint32_t n_unroll;    /* 1 to 4 */
	uint32_t n_subgroups; /* where the output is staged so that it divides 32 */
	bool is_ahead; /* loads of the next round, or tile, are under way before one is summed */
	bool is_held;  /* SWIGLU: x stays in registers where they are whole */
};

/*
 * Can both be computed this way? Then sets first->next... and second->is_staged; both have stagings
 * of their own, second's of rows for all pairs. And after, when not NULL, the op that multiplies
 * what second adds to, is staged by second where that fits: after->is_staged says so.
 */
bool op_matvec_experts_chain(const struct op_pool *pool, struct op_experts_params *first,
	struct op_experts_params *second, struct op_matmul_params *after);

/* ABI_QUANT_ORDER_* of the bytes in the op's staging, after op_matvec_experts_chain. */
uint32_t op_matvec_experts_get_order(const struct op_experts_params *params);

/* One of the two, after op_matvec_experts_chain. As op_experts_record. */
int must_check op_matvec_experts_record(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *params, struct err *ret_err);

struct op_matvec_experts_shape op_matvec_experts_choose(
	const struct op_pool *pool, const struct op_experts_params *params);

/* In a shape of the caller's. -ENOTSUP where the device has too little shared memory. */
int must_check op_matvec_experts_record_shape(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *params, const struct op_matvec_experts_shape *shape,
	struct err *ret_err);

#endif
