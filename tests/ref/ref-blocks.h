/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_REF_REF_BLOCKS_H
#define TESTS_REF_REF_BLOCKS_H

/*
 * Random weights in every block format that is supported, and what roundings of them are measured
 * against. What they say is ref_ops_dequantize's. Any thread.
 */
#include <stdint.h>

/* xorshift64 (Marsaglia 2003, shifts 13, 7, 17); *rng is not 0. */
uint64_t ref_blocks_random(uint64_t *rng);

/* Uniform in [-1, 1). */
float ref_blocks_random_unit(uint64_t *rng);

/* One block, not of a plain format: any codes and sub-scales. Its f16 scales are not yet any. */
void ref_blocks_put_codes(uint32_t dtype, uint64_t *rng, uint8_t *ret_block);
/* Its f16 scales: d, and where it has offsets their min. */
void ref_blocks_put_scales(uint32_t dtype, float d, float min, uint8_t *ret_block);

/*
 * n blocks of any codes and sub-scales, scales uniform within +-d and +-min; an eighth of them are
 * 2^-15 of that: below the smallest normal f16. Of plain formats numbers uniform within +-d.
 */
void ref_blocks_fill(
	uint32_t dtype, uint64_t n, float d, float min, uint64_t *rng, void *ret_blocks);

/*
 * k numbers of a row, w = scale code - scale zero - min. [k] each; reach, when not NULL, gets the
 * sum of the three's magnitudes: what kernels are off that sum each for itself.
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
