/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_ROUTER_H
#define WORKERD_OPS_ROUTER_H

/*
 * Few rows times the matrix that chooses their experts, and the bytes of the rows for those, in one
 * dispatch (shaders/router.comp). Engine thread, when commands are recorded.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/weights.h"

struct err;
struct op_pool;
struct vk_command;

enum { OP_ROUTER_MAX_ROWS = 8 };

struct op_router_params {
	struct weights_tensor w; /* [n_expert][k] */
	uint64_t x;              /* device address of [m][k] f32 */
	uint64_t gain;           /* of [k] f32: normalise x; 0: take it as it is */
	uint64_t logits;         /* of [m][n_expert] f32 */
	uint64_t m;              /* of u32: rows of the step */
	uint64_t staging; /* of [n_rows] op_matvec_staging_bytes(k, 1): x for the experts; 0: not */
	uint32_t order;   /* of the bytes there: ABI_QUANT_ORDER_* */
	bool is_exact;    /* rows have the same bits whatever else is in the step, see plan.h */
	float eps;        /* of the norm */
	uint32_t n_rows;  /* the most that m can be */
};

/* Is there a kernel for it? Of matrices of f32, for up to OP_ROUTER_MAX_ROWS rows. */
bool op_router_fits(const struct op_router_params *params);

/* Records what fits; -EINVAL for what does not. Engine thread. */
int must_check op_router_record(struct op_pool *pool, struct vk_command *c,
	const struct op_router_params *params, struct err *ret_err);

#endif
