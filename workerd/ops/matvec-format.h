/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_MATVEC_FORMAT_H
#define WORKERD_OPS_MATVEC_FORMAT_H

/*
 * The block formats that the kernels for few rows read (shaders/matvec-dtype.glsl,
 * shaders/matvec-half.comp), one row each. Any thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shaders/kernels.h"

struct weights_tensor;

/* Numbers of a lane in one go, of all formats that are multiplied as bytes. */
enum { OP_MATVEC_FORMAT_UNIT = 64 };

/* No ABI_QUANT_ORDER_*: x is read as it is. */
enum { OP_MATVEC_FORMAT_NO_ORDER = 255 };

struct op_matvec_format {
	uint32_t dtype;
	enum kernels_id kernel;
	enum kernels_id experts; /* KERNELS_N: none */
	uint32_t n_align;        /* of a row of W in bytes */
	uint32_t order;          /* of the bytes of x: ABI_QUANT_ORDER_* */
	uint32_t n_unit;         /* numbers of a lane; k is a multiple of it */
	uint32_t n_group_words;  /* of eight units in shared memory; 0: read where they are */
};

/* NULL: no kernel reads it. Borrowed, static. */
const struct op_matvec_format *op_matvec_format_find(uint32_t dtype);

/* Can its kernel read the matrices [ne[2]][n][k]? */
bool op_matvec_format_fits(const struct weights_tensor *t);

/* Shared memory for that many rows of W at a time, n_unroll units of each of so many lanes. */
uint64_t op_matvec_format_count_shared(
	const struct op_matvec_format *f, uint32_t n_rows, uint32_t n_unroll, uint32_t n_lanes);

#endif
