/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_MATRIX_TILE_H
#define WORKERD_OPS_MATRIX_TILE_H

/*
 * How a matrix product is cut (shaders/matrix.glsl), and what of it a device and a shape allow.
 * Engine thread, when commands are recorded.
 */
#include <stdbool.h>
#include <stdint.h>

#include "workerd/ops/pool.h"

struct weights_tensor;

enum { OP_MATRIX_TILE_NO_STREAMS = UINT16_MAX };

struct op_matrix_tile {
	uint16_t bn, bm;    /* rows of W and of x of a workgroup */
	uint16_t bk;        /* of k a step: 32 or 64 */
	uint16_t sn, sm;    /* rows of W and of x of a subgroup */
	uint16_t n;         /* of the device's matrices that it has, along n; 0: the first listed */
	uint16_t n_buffers; /* of a step in shared memory: 1 or 2 */
	uint16_t n_streams; /* workgroups that share the last tiles (shaders/matrix-share.glsl); 0:
			       as many as the device has room for, if it says */
	bool is_direct;     /* subgroups load x from global memory; staging has whole tiles of x */
	bool is_decoded;    /* W becomes f16 in staging first, where there is room */
	bool is_ragged;     /* rows of x that a tile does not have cost nothing, the others more */
	bool is_wide;       /* shaders/matrix-wide.glsl: two buffers; neither direct nor ragged */
};

/* The kernel's n_subgroups and spec but for FINISH; false where it cannot be. */
bool op_matrix_tile_bind(const struct op_pool *pool, const struct op_matrix_tile *tile, uint64_t k,
	struct op_pool_kernel *ret_kernel);

/*
 * The kernel that reads matrices [ne[2]][n][k] of w, at multiples of 16 bytes each; of experts or
 * not. False where there is none.
 */
bool op_matrix_tile_find_kernel(
	const struct weights_tensor *w, bool is_experts, enum kernels_id *ret_id);

/* The kernel of the same format for wide tiles, and the one that makes blocks of f16 for them. */
bool op_matrix_tile_find_wide(uint32_t dtype, enum kernels_id *ret_id, enum kernels_id *ret_blocks);

/* The kernel that makes f16 of a block format for which there is one of the above; false for f16.
 */
bool op_matrix_tile_find_decoder(uint32_t dtype, enum kernels_id *ret_id);

#endif
