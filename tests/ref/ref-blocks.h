/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_REF_REF_BLOCKS_H
#define TESTS_REF_REF_BLOCKS_H

/*
 * Rows of weights in the block formats of the integer kernels (shaders/matvec-dtype.glsl): random
 * ones, and what they say, number by number as the formats define it. Any thread.
 */
#include <stdint.h>

/* xorshift64*; *state is not 0. */
uint64_t ref_blocks_random(uint64_t *state);

/* n whole blocks (of f16 and bf16: numbers) of random codes and sub-scales; scales within +-1/16.
 */
void ref_blocks_fill(uint32_t dtype, uint64_t n, uint64_t *state, void *ret_blocks);

/*
 * k numbers of a row, w = a - b: a the scaled code, b what the format takes off. [k] each; reach,
 * when not NULL, gets |a| + |b|, what rounding errors of kernels are measured against.
 */
void ref_blocks_dequantize(
	uint32_t dtype, const void *row, uint32_t k, float *ret_w, float *ret_reach);

/*
 * A row of staging for k numbers in an ABI_QUANT_ORDER_*, as abi.h has it: the numbers that its
 * bytes say, [k]; scales, when not NULL, those of each 32, [k / 32].
 */
void ref_blocks_unstage(
	uint32_t order, const void *row, uint32_t k, float *ret_a, float *ret_scales);

#endif
