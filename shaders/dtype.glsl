/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_DTYPE_GLSL
#define SHADERS_DTYPE_GLSL

/*
 * Rows of a weight matrix in the `raw` layout, one block format a compilation (-D DTYPE_...).
 *
 * A row of k elements is cut into units; a lane takes units first_unit(), first_unit() +
 * unit_stride(), ... below n_units(k), and of each unit N_ELEMENTS elements, whose places in the
 * row element() says. load_raw() fetches the words of a unit, decode() turns them into numbers. All of it coalesces: neighbouring lanes read neighbouring words.
 *
 *	F32      any k
 *	F32_X4   k % 4 == 0: four words a lane
 *	F16      any k, rows 2-byte aligned
 *	F16_X2   k even, rows 4-byte aligned: a word a lane
 *	Q8_0     k % 32 == 0: 34-byte blocks {f16 d, i8 q[32]}, w = d q, read as 16-bit words
 *	Q8_0_X2  k % 64 == 0, rows 4-byte aligned: pairs of blocks as 17 words
 *
 *	word of a pair:  0           1..7                    8                    9..16
 *	                 d0 q[0..1]  q[2..5] .. q[26..29]    q[30..31] d1         q[32..35] .. q[60..63]
 */
#if defined(DTYPE_F32) || defined(DTYPE_F16)
#define N_ELEMENTS 1
#define N_RAW 1
#elif defined(DTYPE_F32_X4)
#define N_ELEMENTS 4
#define N_RAW 4
#elif defined(DTYPE_F16_X2)
#define N_ELEMENTS 2
#define N_RAW 1
#elif defined(DTYPE_Q8_0)
#define N_ELEMENTS 4
#define N_RAW 2
#elif defined(DTYPE_Q8_0_X2)
#define N_ELEMENTS 8
#define N_RAW 2
#define HAS_SHARED
#else
#error "no DTYPE_ defined"
#endif

#if defined(DTYPE_Q8_0) || defined(DTYPE_Q8_0_X2)
/* Eight lanes share a block. */
uint first_unit()
{
	return lane() / 8;
}

uint unit_stride()
{
	return SUBGROUP / 8;
}
#else
uint first_unit()
{
	return lane();
}

uint unit_stride()
{
	return SUBGROUP;
}
#endif

uint n_units(uint k)
{
#if defined(DTYPE_F32_X4)
	return k / 4;
#elif defined(DTYPE_F16_X2)
	return k / 2;
#elif defined(DTYPE_Q8_0)
	return k / 32;
#elif defined(DTYPE_Q8_0_X2)
	return k / 64;
#else
	return k;
#endif
}

/* Element e of the lane's share of a unit: its index in the row. */
uint element(uint unit, int e)
{
#if defined(DTYPE_F32_X4)
	return 4 * unit + e;
#elif defined(DTYPE_F16_X2)
	return 2 * unit + e;
#elif defined(DTYPE_Q8_0)
	return 32 * unit + 4 * (lane() % 8) + e;
#elif defined(DTYPE_Q8_0_X2)
	uint l = lane() % 8;
	/* Of words 1 to 7 or, lane 7, what is left of words 0 and 8. */
	uint first = l == 7 ? (e < 2 ? 0 : 28) : 2 + 4 * l;
	return 64 * unit + e + (e < 4 ? first : 28 + 4 * l);
#else
	return unit;
#endif
}

/* The words of the lane's share of a unit. */
void load_raw(uvec2 row, uint unit, out uint raw[N_RAW])
{
#if defined(DTYPE_F32) || defined(DTYPE_F16_X2)
	raw[0] = Words(row).at[unit];
#elif defined(DTYPE_F32_X4)
	[[unroll]] for (int e = 0; e < 4; e++)
		raw[e] = Words(row).at[4 * unit + e];
#elif defined(DTYPE_F16)
	raw[0] = uint(Halves(row).at[unit]);
#elif defined(DTYPE_Q8_0)
	Halves w = Halves(row);
	uint at = 17 * unit;
	uint l = lane() % 8;
	raw[0] = uint(w.at[at]);
	raw[1] = uint(w.at[at + 1 + 2 * l]) | uint(w.at[at + 2 + 2 * l]) << 16;
#elif defined(DTYPE_Q8_0_X2)
	Words w = Words(row);
	uint l = lane() % 8;
	raw[0] = w.at[17 * unit + (l == 7 ? 0 : 1 + l)];
	raw[1] = w.at[17 * unit + 9 + l];
#endif
}

/*
 * The word of a unit that all lanes of the unit want: of eight rows, each lane loads one row's, and
 * decode() takes it from there. row: of row `lane() % 8` of the eight.
 */
uint load_shared(uvec2 row, uint unit)
{
#if defined(HAS_SHARED)
	return Words(row).at[17 * unit + 8];
#else
	return 0;
#endif
}

/*
 * w[e]: the weight at element(unit, e) of row r of eight, exactly: 11 bits of d times 8 bits of q
 * fit a float.
 */
void decode(uint raw[N_RAW], uint shared_words, uint r, out float w[N_ELEMENTS])
{
#if defined(DTYPE_F32)
	w[0] = uintBitsToFloat(raw[0]);
#elif defined(DTYPE_F32_X4)
	[[unroll]] for (int e = 0; e < 4; e++)
		w[e] = uintBitsToFloat(raw[e]);
#elif defined(DTYPE_F16)
	w[0] = half_low(raw[0]);
#elif defined(DTYPE_F16_X2)
	w[0] = half_low(raw[0]);
	w[1] = half_high(raw[0]);
#elif defined(DTYPE_Q8_0)
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
#endif
}

#endif
