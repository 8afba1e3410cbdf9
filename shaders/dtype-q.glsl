/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_DTYPE_Q_GLSL
#define SHADERS_DTYPE_Q_GLSL

/*
 * Included by dtype.glsl, which says what is what. Blocks of 32 numbers, w = d q; eight lanes share
 * a unit. _X2: k % 64 == 0, rows 4-byte aligned: pairs of blocks as whole words; the others are read
 * as 16-bit words.
 *
 *	Q8_0     34-byte blocks {f16 d, i8 q[32]}
 *	Q4_0     18-byte blocks {f16 d, u4 q[16][2]}, q - 8; the low halves of the bytes are the
 *	         first 16 numbers, the high ones the others
 *
 *	word of a pair of Q8_0:
 *	                 0           1..7                    8                    9..16
 *	                 d0 q[0..1]  q[2..5] .. q[26..29]    q[30..31] d1         q[32..35] .. q[60..63]
 *	of Q4_0, in bytes of q:
 *	                 0           1..3                    4                    5..8
 *	                 d0 q[0..1]  q[2..5] .. q[10..13]    q[14..15] d1         q[16..19] .. q[28..31]
 */
#define N_LANES 8
#if defined(DTYPE_Q8_0)
#define N_UNIT 32
#define N_ELEMENTS 4
#define N_RAW 2
#elif defined(DTYPE_Q8_0_X2)
#define N_UNIT 64
#define N_ELEMENTS 8
#define N_RAW 2
#define SHARED_WORD(unit) (17 * (unit) + 8)
#elif defined(DTYPE_Q4_0)
#define N_UNIT 32
#define N_ELEMENTS 4
#define N_RAW 1
#else
#define N_UNIT 64
#define N_ELEMENTS 8
#define N_RAW 2
#endif

/* Element e of the lane's share of a unit: its index in the row. */
uint element(uint unit, int e)
{
	uint l = lane() % 8;

#if defined(DTYPE_Q8_0)
	return 32 * unit + 4 * l + e;
#elif defined(DTYPE_Q8_0_X2)
	/* Of words 1 to 7 or, lane 7, what is left of words 0 and 8. */
	uint first = l == 7 ? (e < 2 ? 0 : 28) : 2 + 4 * l;
	return 64 * unit + e + (e < 4 ? first : 28 + 4 * l);
#elif defined(DTYPE_Q4_0)
	return 32 * unit + 16 * (e / 2) + 2 * l + e % 2;
#else
	return 64 * unit + 32 * (l / 4) + 16 * (e / 4) + 4 * (l % 4) + e % 4;
#endif
}

/* The words of the lane's share of a unit. */
void load_raw(uvec2 row, uint unit, out uint raw[N_RAW])
{
	uint l = lane() % 8;

#if defined(DTYPE_Q8_0)
	Halves w = Halves(row);
	uint at = 17 * unit;
	raw[0] = uint(w.at[at]);
	raw[1] = uint(w.at[at + 1 + 2 * l]) | uint(w.at[at + 2 + 2 * l]) << 16;
#elif defined(DTYPE_Q8_0_X2)
	Words w = Words(row);
	raw[0] = w.at[17 * unit + (l == 7 ? 0 : 1 + l)];
	raw[1] = w.at[17 * unit + 9 + l];
#elif defined(DTYPE_Q4_0)
	Halves w = Halves(row);
	raw[0] = uint(w.at[9 * unit]) | uint(w.at[9 * unit + 1 + l]) << 16;
#else
	/* Lanes 0 to 3 want the upper half of word l and the lower of the next, the others a word. */
	Words w = Words(row);
	raw[0] = w.at[9 * unit + min(l, 4)];
	raw[1] = w.at[9 * unit + l + 1];
#endif
}

/* w[e]: the weight at element(unit, e) of row r of eight. */
void decode(uint raw[N_RAW], uint shared_words, uint r, out float w[N_ELEMENTS])
{
#if defined(DTYPE_Q8_0)
	float d = half_low(raw[0]);
	[[unroll]] for (int e = 0; e < 4; e++)
		w[e] = d * byte_float(raw[1], e);
#elif defined(DTYPE_Q8_0_X2)
	uint first = lane() & ~7u; /* of the eight lanes of this unit */
	uint word0 = subgroupShuffle(raw[0], first + 7);
	uint word8 = subgroupShuffle(shared_words, first + r);
	float d0 = half_low(word0);
	float d1 = half_high(word8);
	uint q = lane() % 8 == 7 ? word0 >> 16 | word8 << 16 : raw[0];
	[[unroll]] for (int e = 0; e < 4; e++) {
		w[e] = d0 * byte_float(q, e);
		w[4 + e] = d1 * byte_float(raw[1], e);
	}
#elif defined(DTYPE_Q4_0)
	float d = half_low(raw[0]);
	[[unroll]] for (int e = 0; e < 4; e++)
		w[e] = d * float(int(bitfieldExtract(raw[0], 16 + 8 * (e % 2) + 4 * (e / 2), 4)) - 8);
#else
	uint word0 = subgroupShuffle(raw[0], lane() & ~7u);
	bool is_first = lane() % 8 < 4;
	float d = is_first ? half_low(word0) : half_high(raw[0]);
	uint q = is_first ? raw[0] >> 16 | raw[1] << 16 : raw[1];
	[[unroll]] for (int e = 0; e < 8; e++)
		w[e] = d * float(int(bitfieldExtract(q, 8 * (e % 4) + 4 * (e / 4), 4)) - 8);
#endif
}

#endif
