/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_MATRIX_H
#define WORKERD_OPS_MATRIX_H

/*
 * The same as op_matmul_record (workerd/ops/matmul.h) for many rows, on the device's matrices:
 * x is made f16 in p->staging (shaders/stage.comp), weights become f16 on their way
 * (shaders/matrix.comp), sums are f32. Results are within the rounding of both to f16, and the same
 * bits whenever the same rows are computed again; beside more or fewer rows they may be others.
 * Engine thread, when commands are recorded.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/ops/matrix-tile.h"

struct err;
struct op_matmul_params;
struct op_pool;
struct vk_command;
struct vk_device_info;

/*
 * Is there a kernel for all of it on this device, and room in staging? False too where rows must be
 * exact. k is a multiple of 32, matrices and x begin at multiples of 16 bytes.
 */
bool op_matrix_fits(const struct op_pool *pool, const struct op_matmul_params *p);

/*
 * Bytes of staging behind x, which is [n_rows][k] f16, for sums of parts of tiles. With less there
 * the last tiles are not shared among workgroups, and the device is less busy: 160 workgroups with
 * two tiles of 256 by 128 f32.
 */
enum { OP_MATRIX_PARTIAL_BYTES = 160 * 2 * 256 * 128 * 4 };

/*
 * And behind that for W as f16, on devices where some formats are better made that first: of so
 * many bytes at most, which is a matrix of 4096 by 14336. 0: none.
 */
uint64_t op_matrix_get_decoded_bytes(const struct vk_device_info *info);

/*
 * Records it, with barriers where one of its own dispatches needs another's output: of staging
 * before the first is the caller's to see to. Only what fits. -errno of op_pool_dispatch.
 */
int must_check op_matrix_record(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, struct err *ret_err);

/* What op_matrix_record would choose. */
struct op_matrix_tile op_matrix_choose(
	const struct op_pool *pool, const struct op_matmul_params *p);

/* The same with this tile, for measuring. -ENOTSUP where the device or the shape does not allow it.
 */
int must_check op_matrix_record_tile(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, const struct op_matrix_tile *tile, struct err *ret_err);

#endif
