/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_SKINNY_H
#define WORKERD_OPS_SKINNY_H

/*
 * The same as op_matmul_record (workerd/ops/matmul.h) for 2 to 64 rows, where reading W costs more
 * than multiplying it: on the device's matrices, W straight from memory into their registers
 * (shaders/skinny.comp). x is made f16 in p->staging (shaders/skinny-stage.comp), weights become
 * f16 on their way, sums are f32. Results are within the rounding of both to f16, and the same bits
 * whenever the same rows are computed again; beside more or fewer rows they may be others.
 * Engine thread, when commands are recorded.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct op_matmul_params;
struct op_pool;
struct vk_command;

enum { OP_SKINNY_MAX_ROWS = 64 };

/* How the work is cut. A product has the same bits however its rows of W are cut, not k. */
struct op_skinny_shape {
	uint32_t
		n_fragments; /* matrices of rows of W of a subgroup: 1, 2 or 4; with SWIGLU not 1 */
	uint32_t n_groups;   /* subgroups of a workgroup side by side */
	uint32_t n_shares;   /* subgroups that share k of the same rows */
	uint32_t n_splits;   /* workgroups that share k of the same rows */
};

/*
 * Is there a kernel for all of it on this device, and room in staging? False too where rows must be
 * exact. k is a multiple of 128, of 256 with most formats; matrices and x begin at multiples of 16
 * bytes, and matrices end there.
 */
bool op_skinny_fits(const struct op_pool *pool, const struct op_matmul_params *p);

/* Is it faster so than with the kernels for fewer and for more rows? Then it fits, too. */
bool op_skinny_wants(const struct op_pool *pool, const struct op_matmul_params *p);

/*
 * Spares the next op, which multiplies the y of p and is the only one that reads it, its staging: p
 * leaves y in the form and order that next wants, in the same place. Where both are wanted this way
 * and can, sets what says so in p and next and returns true; then p has to be recorded as next's
 * predecessor, with the same staging.
 */
bool op_skinny_chain(
	const struct op_pool *pool, struct op_matmul_params *p, struct op_matmul_params *next);

/*
 * Records it, with barriers where one of its own dispatches needs another's output: of staging
 * before the first is the caller's to see to. Only what fits. -errno of op_pool_dispatch.
 */
int must_check op_skinny_record(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, struct err *ret_err);

/* What op_skinny_record would choose for the parts [first, first + n_parts). */
struct op_skinny_shape op_skinny_choose(const struct op_pool *pool,
	const struct op_matmul_params *p, uint32_t first, uint32_t n_parts);

/* The same with this shape for all parts, for measuring. -ENOTSUP where the device or staging does
 * not allow it. */
int must_check op_skinny_record_shape(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, const struct op_skinny_shape *shape, struct err *ret_err);

#endif
