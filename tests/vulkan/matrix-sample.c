/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/matrix-sample.h"

#include <math.h>

#include "proto/dtype.h"
#include "tests/ref/ref-blocks.h"
#include "tests/ref/ref-ops.h"

uint64_t matrix_sample_row_bytes(uint32_t dtype, uint32_t k)
{
	const struct dtype *t = dtype_find(dtype);

	return (uint64_t)k / t->n_block * t->n_bytes;
}

void matrix_sample_fill(uint32_t dtype, uint32_t k, uint64_t *rng, uint8_t *ret_row)
{
	/* Of one block: the largest number that its factor multiplies. */
	float top = dtype == DTYPE_Q8_0   ? 128
		    : dtype == DTYPE_Q4_0 ? 8
		    : dtype == DTYPE_Q4_K ? 63 * 15
		    : dtype == DTYPE_Q6_K ? 128 * 32
					  : 1;

	ref_blocks_fill(dtype, k / dtype_find(dtype)->n_block, 1 / top, 1.0f / 63, rng, ret_row);
}

void matrix_sample_get(
	uint32_t dtype, const uint8_t *row, uint32_t k, float *ret_w, float *ret_size)
{
	ref_ops_dequantize(dtype, row, k, ret_w);
	for (uint32_t i = 0; i < k; i++) {
		struct ref_ops_number n = ref_ops_get_number(dtype, row, i);
		ret_size[i] = fabsf(n.scale * (float)(n.code - n.zero)) + fabsf(n.min);
	}
}

struct matrix_sample_dot matrix_sample_dot(
	const float *w, const float *size, const float *x, uint32_t k)
{
	double y = 0, squares = 0, all = 0, steps = 0;

	for (uint32_t i = 0; i < k; i++) {
		double product = fabs((double)size[i] * x[i]);
		y += (double)w[i] * x[i];
		squares += product * product;
		all += product;
		steps += (double)x[i] * x[i];
	}
	/* 2^-25: half a step of the f16s below 2^-14. 4e-6: of sums in f32. */
	return (struct matrix_sample_dot){.y = y,
		.tolerance = 8 * (0x1p-11 * sqrt(squares) + 0x1p-25 * (sqrt(steps) + sqrt(k))) +
			     4e-6 * all};
}

struct matrix_sample_dot matrix_sample_swiglu(
	struct matrix_sample_dot gate, struct matrix_sample_dot up)
{
	double silu = gate.y / (1 + exp(-gate.y));

	/* |silu'| is at most 1.1. */
	return (struct matrix_sample_dot){.y = silu * up.y,
		.tolerance = 1.1 * gate.tolerance * (fabs(up.y) + up.tolerance) +
			     fabs(silu) * up.tolerance + 1e-6 * fabs(silu * up.y)};
}
