/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_MATVEC_EXPERTS_H
#define WORKERD_OPS_MATVEC_EXPERTS_H

/*
 * What op_experts does for few rows, with integer dot products (shaders/matvec-experts.comp).
 * Engine thread, when commands are recorded.
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
	uint32_t n_groups;    /* at most so many workgroups a pair, which loop; 0: no such limit */
	bool is_ahead; /* loads of the next round, or tile, are under way before one is summed */
	bool is_held;  /* SWIGLU: x stays in registers where they are whole */
};

/* Can it be computed this way? Then op_matvec_experts_record does not refuse it. */
bool op_matvec_experts_fits(const struct op_pool *pool, const struct op_experts_params *params);

/*
 * Spares the op that multiplies what MIX adds to the making of its bytes, where that fits and can:
 * sets params->next... and after->is_staged, and returns true. Then after is recorded next.
 */
bool op_matvec_experts_chain(const struct op_pool *pool, struct op_experts_params *params,
	struct op_matmul_params *after);

/*
 * Is it worth it? On a GPU it leaves few workgroups: 7.3 us on an H200 against 5.9, and products
 * that make the bytes for themselves take less than that longer.
 */
bool op_matvec_experts_wants_chain(const struct op_pool *pool);

/* ABI_QUANT_ORDER_* of the bytes of SWIGLU's x in its staging, where it fits. */
uint32_t op_matvec_experts_get_order(const struct op_experts_params *params);

/* As op_experts_record. */
int must_check op_matvec_experts_record(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *params, struct err *ret_err);

struct op_matvec_experts_shape op_matvec_experts_choose(
	const struct op_pool *pool, const struct op_experts_params *params);

/* In a shape of the caller's. -ENOTSUP where the device has too little shared memory. */
int must_check op_matvec_experts_record_shape(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *params, const struct op_matvec_experts_shape *shape,
	struct err *ret_err);

#endif
