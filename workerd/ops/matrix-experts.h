/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_MATRIX_EXPERTS_H
#define WORKERD_OPS_MATRIX_EXPERTS_H

/*
 * The same as op_experts_record (workerd/ops/experts.h) for many rows, on the device's matrices:
 * groups of ABI_MATRIX_GROUP_ROWS rows of one expert are a tile's, their x f16 in p->staging, sums
 * are f32 (shaders/matrix-experts.comp). Engine thread, when commands are recorded.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

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

/* Records it, with barriers where one of its own dispatches needs another's output. */
int must_check op_matrix_experts_record(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, struct err *ret_err);

#endif
