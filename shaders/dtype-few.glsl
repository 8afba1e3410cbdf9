/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_DTYPE_FEW_GLSL
#define SHADERS_DTYPE_FEW_GLSL

/*
 * Included by dtype.glsl, which says what is what. Numbers of 2 bits and of 1; a unit is 64 of them,
 * which eight lanes share. A lane's eight are 16 bits or 8, so that 16-bit words are read: whole ones
 * would save no load.
 *
 *	TQ2_0  66-byte blocks {u2 q[2][32][4], f16 d}, w = d (q - 1): each byte has one number of
 *	       four lots of 32
 *	Q2_0   18-byte blocks {f16 d, u2 q[64]}, w = d (q - 1); 2 is written by ggml as well, by no
 *	       ternary model
 *	Q1_0   18-byte blocks {f16 d, u1 q[128]}, w = d or, where the bit is 0, -d
 */
#define N_LANES 8
#define N_UNIT 64
#define N_ELEMENTS 8
#define N_RAW 1

/* Element e of the lane's share of a unit: its index in the row. */
uint element(uint unit, int e)
{
	uint l = lane() % 8;

#if defined(DTYPE_TQ2_0)
	/* Bytes 2 l and 2 l + 1 of 16. */
	return 128 * (unit / 2) + 32 * (e / 2) + 16 * (unit % 2) + 2 * l + e % 2;
#else
	return 64 * unit + 32 * (e / 4) + 4 * l + e % 4;
#endif
}

/* The words of the lane's share of a unit: the numbers below, the scale above. */
void load_raw(uvec2 row, uint unit, out uint raw[N_RAW])
{
	Halves w = Halves(row);
	uint l = lane() % 8;

#if defined(DTYPE_TQ2_0)
	uint at = 33 * (unit / 4);
	raw[0] = uint(w.at[at + 8 * (unit % 4) + l]) | uint(w.at[at + 32]) << 16;
#elif defined(DTYPE_Q2_0)
	/* Bytes l and 8 + l. */
	uint at = 9 * unit + 1 + l / 2, shift = 8 * (l % 2);
	raw[0] = (uint(w.at[at]) >> shift & 0xff) | (uint(w.at[at + 4]) >> shift & 0xff) << 8 |
		 uint(w.at[9 * unit]) << 16;
#else
	/* The l-th four of 32 bits, and of the next 32. */
	uint block = 9 * (unit / 2);
	uint at = block + 1 + 4 * (unit % 2) + l / 4, shift = 4 * (l % 4);
	raw[0] = (uint(w.at[at]) >> shift & 0xf) | (uint(w.at[at + 2]) >> shift & 0xf) << 4 |
		 uint(w.at[block]) << 16;
#endif
}

/* w[e]: the weight at element(unit, e) of row r of eight. */
void decode(uint raw[N_RAW], uint shared_words, uint r, out float w[N_ELEMENTS])
{
	float d = half_high(raw[0]);

	[[unroll]] for (int e = 0; e < 8; e++) {
#if defined(DTYPE_TQ2_0)
		w[e] = d * float(int(bitfieldExtract(raw[0], 8 * (e % 2) + 2 * (e / 2), 2)) - 1);
#elif defined(DTYPE_Q2_0)
		w[e] = d * float(int(bitfieldExtract(raw[0], 2 * e, 2)) - 1);
#else
		w[e] = (raw[0] >> e & 1) != 0 ? d : -d;
#endif
	}
}

#endif
