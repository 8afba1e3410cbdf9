/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_DTYPE_PLAIN_GLSL
#define SHADERS_DTYPE_PLAIN_GLSL

/*
 * Included by dtype.glsl, which says what is what.
 *
 *	F32      any k
 *	F32_X4   k % 4 == 0: four words a lane
 *	F16      any k, rows 2-byte aligned
 *	F16_X2   k even, rows 4-byte aligned: a word a lane
 *	BF16     as F16; the upper half of an f32
 *	BF16_X2  as F16_X2
 */
#define N_LANES 1
#if defined(DTYPE_F32_X4)
#define N_ELEMENTS 4
#define N_RAW 4
#elif defined(DTYPE_F16_X2) || defined(DTYPE_BF16_X2)
#define N_ELEMENTS 2
#define N_RAW 1
#else
#define N_ELEMENTS 1
#define N_RAW 1
#endif
#define N_UNIT N_ELEMENTS

/* Element e of the lane's share of a unit: its index in the row. */
uint element(uint unit, int e)
{
	return N_UNIT * unit + e;
}

/* The words of the lane's share of a unit. */
void load_raw(uvec2 row, uint unit, out uint raw[N_RAW])
{
#if defined(DTYPE_F16) || defined(DTYPE_BF16)
	raw[0] = uint(Halves(row).at[unit]);
#else
	[[unroll]] for (int e = 0; e < N_RAW; e++)
		raw[e] = Words(row).at[N_RAW * unit + e];
#endif
}

/* w[e]: the weight at element(unit, e) of row r of eight. */
void decode(uint raw[N_RAW], uint shared_words, uint r, out float w[N_ELEMENTS])
{
#if defined(DTYPE_F32) || defined(DTYPE_F32_X4)
	[[unroll]] for (int e = 0; e < N_RAW; e++)
		w[e] = uintBitsToFloat(raw[e]);
#elif defined(DTYPE_F16)
	w[0] = half_low(raw[0]);
#elif defined(DTYPE_F16_X2)
	w[0] = half_low(raw[0]);
	w[1] = half_high(raw[0]);
#else
	w[0] = uintBitsToFloat(raw[0] << 16);
#if defined(DTYPE_BF16_X2)
	w[1] = uintBitsToFloat(raw[0] & 0xffff0000u);
#endif
#endif
}

#endif
