/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_DTYPE_GLSL
#define SHADERS_DTYPE_GLSL

/*
 * Rows of a weight matrix in the `raw` layout, one block format a compilation (-D DTYPE_...); one
 * file a family:
 *
 *	dtype-plain.glsl   f32, f16, bf16
 *	dtype-q.glsl       a scale for 32 numbers of 8 or 4 bits
 *	dtype-k.glsl       blocks of 256 with scales within
 *	dtype-few.glsl     numbers of 2 bits and of 1
 *
 * A row of k elements is cut into units of N_UNIT, which N_LANES lanes share; a lane takes units
 * first_unit(), first_unit() + unit_stride(), ... below n_units(k), and of each unit N_ELEMENTS
 * elements, whose places in the row element() says. load_raw() fetches the words of a lane's share,
 * decode() turns them into numbers. All of it coalesces: neighbouring lanes read neighbouring words,
 * and x in fours.
 *
 * Exactness: a number is the f32 that ggml's dequantize_row makes of the block. Scales have 11 bits,
 * scales of scales 6 to 8, numbers at most 8: their products fit the 24 bits of a float, whatever
 * their order, but for f16's subnormal numbers nothing is near the ends of its range, and a fused
 * multiplication makes no difference. The one rounding is that of the difference of Q4_K and Q5_K.
 */
#if defined(DTYPE_F32) || defined(DTYPE_F32_X4) || defined(DTYPE_F16) || defined(DTYPE_F16_X2) ||  \
	defined(DTYPE_BF16) || defined(DTYPE_BF16_X2)
#include "dtype-plain.glsl"
#elif defined(DTYPE_Q8_0) || defined(DTYPE_Q8_0_X2) || defined(DTYPE_Q4_0) || defined(DTYPE_Q4_0_X2)
#include "dtype-q.glsl"
#elif defined(DTYPE_Q4_K) || defined(DTYPE_Q5_K) || defined(DTYPE_Q6_K)
#include "dtype-k.glsl"
#elif defined(DTYPE_TQ2_0) || defined(DTYPE_Q2_0) || defined(DTYPE_Q1_0)
#include "dtype-few.glsl"
#else
#error "no DTYPE_ defined"
#endif

uint first_unit()
{
	return lane() / N_LANES;
}

uint unit_stride()
{
	return SUBGROUP / N_LANES;
}

uint n_units(uint k)
{
	return k / N_UNIT;
}

/*
 * The word of a unit that all lanes of the unit want: of eight rows, each lane loads one row's, and
 * decode() takes it from there. row: of row `lane() % 8` of the eight.
 */
uint load_shared(uvec2 row, uint unit)
{
#if defined(SHARED_WORD)
	return Words(row).at[SHARED_WORD(unit)];
#else
	return 0;
#endif
}

#endif
