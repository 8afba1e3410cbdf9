/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VULKAN_MATRIX_SAMPLE_H
#define TESTS_VULKAN_MATRIX_SAMPLE_H

/*
 * Rows of random weights in every block format that shaders/matrix.comp reads, and how far its
 * products may be off.
 */
#include <stdint.h>

/* The largest block of all formats, in elements; a row of a multiple of it has whole blocks. */
enum { MATRIX_SAMPLE_BLOCK = 256 };

/* Bytes of a row of k. */
uint64_t matrix_sample_row_bytes(uint32_t dtype, uint32_t k);

/* Fills it with weights of about -1 to 1. *rng is not 0. */
void matrix_sample_fill(uint32_t dtype, uint32_t k, uint64_t *rng, uint8_t *ret_row);

/*
 * w [k] of a row; size [k] what rounding errors of w are measured against: its magnitude, of a
 * difference the sum of both sides'.
 */
void matrix_sample_get(
	uint32_t dtype, const uint8_t *row, uint32_t k, float *ret_w, float *ret_size);

/* A product of a row of W and of x, and how far rounding both to f16 may lead from it. */
struct matrix_sample_dot {
	double y;
	double tolerance;
};

/*
 * The errors of k products are independent and of either sign, each within some 2^-11 of its size:
 * eight deviations of their sum. A bound on the sum of magnitudes would let whole weights be wrong.
 */
struct matrix_sample_dot matrix_sample_dot(
	const float *w, const float *size, const float *x, uint32_t k);

/* The same of silu(gate) up. */
struct matrix_sample_dot matrix_sample_swiglu(
	struct matrix_sample_dot gate, struct matrix_sample_dot up);

#endif
