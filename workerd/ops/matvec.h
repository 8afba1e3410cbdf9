/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_MATVEC_H
#define WORKERD_OPS_MATVEC_H

/*
 * What op_matmul does for few rows, with integer dot products: x is rounded to signed bytes with a
 * scale for each 32 numbers (shaders/quantize.comp, shaders/matvec.comp). Engine thread, when
 * commands are recorded.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct abi_quantize;
struct err;
struct op_matmul_params;
struct op_pool;
struct vk_command;

enum { OP_MATVEC_MAX_COLUMNS = 8, OP_MATVEC_MAX_HOLD = 4, OP_MATVEC_MAX_SPLIT = 32 };

/* Who makes the bytes of x. */
enum op_matvec_source {
	OP_MATVEC_OWN,    /* each workgroup for itself, in shared memory */
	OP_MATVEC_STAGE,  /* a dispatch before, in staging; with a barrier between */
	OP_MATVEC_STAGED, /* somebody did; they are in staging */
};

/* How the work is cut. The bits of a result do not depend on it, but for source with a norm. */
struct op_matvec_shape {
	uint32_t n_rows;      /* of W, of a subgroup: 1, 2, 4 or 8; with SWIGLU not 1 */
	uint32_t n_columns;   /* rows of x, of a subgroup: 1, 2, 4 or 8 */
	uint32_t n_unroll;    /* units of 64 numbers of a lane in one round of loads: 1 to 4 */
	uint32_t n_subgroups; /* of a workgroup; with a next op so that its outputs divide 32 */
	uint32_t n_groups; /* at most so many workgroups, which loop; 0: as many as there is work */
	bool is_ahead;     /* loads of the next round are under way before one is summed */
	enum op_matvec_source source;
	/*
	 * x stays in registers: so many units of a lane, no more than it takes and at most
	 * OP_MATVEC_MAX_HOLD; of one column, n_unroll 1. 0: it is read for each tile.
	 */
	uint32_t n_hold;
	/*
	 * With it: subgroups that share k, a divisor of n_subgroups, as many as hold all of it,
	 * each some. 0 or 1: a subgroup holds it.
	 */
	uint32_t n_split;
};

/* Of staging, for so many rows of k; k a multiple of 64. */
uint64_t op_matvec_staging_bytes(uint64_t k, uint32_t n_rows);

/*
 * Spares the next op, which multiplies the y of p, the making of its bytes: p makes them on the way
 * out. Where both fit and can, sets p->next... and next->is_staged and returns true; then p has to
 * be recorded as next's predecessor, and may have y = 0 where nobody reads that but next. Their
 * stagings are different ones.
 */
bool op_matvec_chain(
	const struct op_pool *pool, struct op_matmul_params *p, struct op_matmul_params *next);

/*
 * The same where y is made by an op that is no product, of rows of that width: true where next
 * reads bytes that its predecessor is to leave in next->staging, in ret_order, without a norm's
 * gain.
 */
bool op_matvec_take_staged(const struct op_pool *pool, struct op_matmul_params *next,
	uint32_t width, uint32_t *ret_order);

/*
 * Is it worth it to chain p to next? Not where that one is big enough to make its bytes itself
 * while it waits for W, nor where p's workgroups would have to be so big that it costs more than a
 * dispatch (SWIGLU on an H200: 38 us against 27 + 4).
 */
bool op_matvec_wants_chain(const struct op_pool *pool, const struct op_matmul_params *p,
	const struct op_matmul_params *next);

/* Can it be computed this way? Then op_matvec_record does not refuse it. */
bool op_matvec_fits(const struct op_pool *pool, const struct op_matmul_params *params);

/*
 * As op_matmul_record; parts of different formats get a dispatch each. Only for what fits.
 */
int must_check op_matvec_record(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *params, struct err *ret_err);

/*
 * Makes the bytes of n_rows rows, in this ABI_QUANT_ORDER_*; with a barrier behind it. Errors of
 * op_pool_dispatch.
 */
int must_check op_matvec_record_quantize(struct op_pool *pool, struct vk_command *c,
	const struct abi_quantize *push, uint32_t n_rows, uint32_t order, struct err *ret_err);

/* What op_matvec_record would choose. */
struct op_matvec_shape op_matvec_choose(
	const struct op_pool *pool, const struct op_matmul_params *params);

/*
 * The same in a shape of the caller's. -ENOTSUP where the device has too small workgroups or too
 * little shared memory for it.
 */
int must_check op_matvec_record_shape(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *params, const struct op_matvec_shape *shape,
	struct err *ret_err);

#endif
