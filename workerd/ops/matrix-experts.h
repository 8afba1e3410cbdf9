/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_MATRIX_EXPERTS_H
#define WORKERD_OPS_MATRIX_EXPERTS_H

/*
 * The same as op_experts_record (workerd/ops/experts.h) for many rows, on the device's matrices:
 * groups of p->wide_rows rows of one expert are a tile's, their x f16 in p->staging, sums are f32
 * (shaders/matrix-experts.comp). Engine thread, when commands are recorded.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/ops/matrix-tile.h"

struct err;
struct op_experts_params;
struct op_pool;
struct vk_command;

/*
 * Are there kernels for all of it on this device, room in staging, wide groups and rows enough?
 * False too where rows must be exact or matrices are on the other side of a bus. k is a multiple of
 * 32; matrices of each expert and x begin at multiples of 16 bytes.
 */
bool op_matrix_experts_fits(const struct op_pool *pool, const struct op_experts_params *p);

/*
 * Spares the second the making of f16: where both fit and can, the first leaves them in its y, and
 * true is returned. Then both have to be recorded this way, one after the other.
 */
bool op_matrix_experts_chain(const struct op_pool *pool, struct op_experts_params *first,
	struct op_experts_params *second);

/* Records it, with barriers where one of its own dispatches needs another's output. */
int must_check op_matrix_experts_record(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, struct err *ret_err);

/* What op_matrix_experts_record would choose. */
struct op_matrix_tile op_matrix_experts_choose(
	const struct op_pool *pool, const struct op_experts_params *p);

/* The same with this tile of wide_rows rows of x, for measuring. -ENOTSUP where there is none. */
int must_check op_matrix_experts_record_tile(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, const struct op_matrix_tile *tile, struct err *ret_err);

#endif
