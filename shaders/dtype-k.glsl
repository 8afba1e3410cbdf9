/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_DTYPE_K_GLSL
#define SHADERS_DTYPE_K_GLSL

/*
 * Included by dtype.glsl, which says what is what. Blocks of 256 numbers; a unit is 64 of them, which
 * eight lanes share: each has four in the lower half of a word's bytes and four in the upper.
 *
 *	Q4_K  144-byte blocks {f16 d, f16 dmin, 12 bytes of scales, u4 q[4][32][2]}, 16-byte aligned;
 *	      w = (d scale) q - dmin min
 *	Q5_K  176-byte blocks, with the fifth bits u1 [32][8] between scales and q
 *	Q6_K  210-byte blocks {u4 low[2][64][2], u2 high[2][32][4], i8 scale[16], f16 d}, w = d scale
 *	      (q - 32), read as 16-bit words: every other block begins in the middle of a word, and
 *	      with what straddles them pairs of blocks would take as many loads of whole ones
 *
 * Scales of Q4_K and Q5_K: eight of 6 bits and eight minima. Bytes 0 to 3 have scales 0 to 3, bytes 4
 * to 7 minima 0 to 3, bytes 8 to 11 the lower four bits of scale and minimum 4 to 7, whose upper two
 * are those of bytes 0 to 7.
 */
#define N_LANES 8
#define N_UNIT 64
#define N_ELEMENTS 8
#if defined(DTYPE_Q5_K)
#define N_RAW 4
#else
#define N_RAW 3
#endif

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads
{
	uvec4 at[];
};

/* Element e of the lane's share of a unit: its index in the row. */
uint element(uint unit, int e)
{
	uint l = lane() % 8;

#if defined(DTYPE_Q6_K)
	return 128 * (unit / 2) + 32 * (unit % 2) + 64 * (e / 4) + 4 * l + e % 4;
#else
	return 64 * unit + 32 * (e / 4) + 4 * l + e % 4;
#endif
}

/* Scales 2 part and 2 part + 1 in the lower bytes, their minima in the upper two. */
uint unpack_scales(uvec4 head, uint part)
{
	uvec3 s = head.yzw >> 16 * (part % 2);
	uint first = (s.x & 0x3f3f) | (s.y & 0x3f3f) << 16;
	uint second = (s.z & 0x0f0f) | (s.x >> 2 & 0x3030) | (s.z & 0xf0f0) << 12 |
		      (s.y & 0xc0c0) << 14;

	return part < 2 ? first : second;
}

/* Two 16-bit words of a row. */
uint load_halves(Halves w, uint at)
{
	return uint(w.at[at]) | uint(w.at[at + 1]) << 16;
}

/* The words of the lane's share of a unit. */
void load_raw(uvec2 row, uint unit, out uint raw[N_RAW])
{
	uint l = lane() % 8, block = unit / 4, part = unit % 4;

#if defined(DTYPE_Q4_K)
	uvec4 head = Quads(row).at[9 * block];
	raw[0] = head.x;
	raw[1] = unpack_scales(head, part);
	raw[2] = Words(row).at[36 * block + 4 + 8 * part + l];
#elif defined(DTYPE_Q5_K)
	uvec4 head = Quads(row).at[11 * block];
	raw[0] = head.x;
	raw[1] = unpack_scales(head, part);
	raw[2] = Words(row).at[44 * block + 12 + 8 * part + l];
	raw[3] = Words(row).at[44 * block + 4 + l] >> 2 * part;
#else
	Halves w = Halves(row);
	uint at = 105 * block;
	uint half_at = part / 2, in_half = part % 2;
	uint scales = at + 96 + 4 * half_at + in_half, shift = 8 * (l / 4);
	raw[0] = load_halves(w, at + 32 * half_at + 16 * in_half + 2 * l);
	raw[1] = load_halves(w, at + 64 + 16 * half_at + 2 * l) >> 2 * in_half;
	raw[2] = uint(w.at[at + 104]) | (uint(w.at[scales]) >> shift & 0xff) << 16 |
		 uint(w.at[scales + 2]) >> shift << 24;
#endif
}

/* Byte i of a word. */
float ubyte_float(uint word, int i)
{
	return float(bitfieldExtract(word, 8 * i, 8));
}

/* w[e]: the weight at element(unit, e) of row r of eight. */
void decode(uint raw[N_RAW], uint shared_words, uint r, out float w[N_ELEMENTS])
{
#if defined(DTYPE_Q6_K)
	uint low = (raw[0] & 0x0f0f0f0f) | (raw[1] & 0x03030303) << 4;
	uint high = (raw[0] >> 4 & 0x0f0f0f0f) | (raw[1] & 0x30303030);
	float d = half_low(raw[2]);
	float d0 = d * byte_float(raw[2], 2), d1 = d * byte_float(raw[2], 3);
	[[unroll]] for (int e = 0; e < 4; e++) {
		w[e] = d0 * (ubyte_float(low, e) - 32.0);
		w[4 + e] = d1 * (ubyte_float(high, e) - 32.0);
	}
#else
	uint low = raw[2] & 0x0f0f0f0f, high = raw[2] >> 4 & 0x0f0f0f0f;
#if defined(DTYPE_Q5_K)
	low |= (raw[3] & 0x01010101) << 4;
	high |= (raw[3] & 0x02020202) << 3;
#endif
	float d = half_low(raw[0]), dmin = half_high(raw[0]);
	float d0 = d * ubyte_float(raw[1], 0), d1 = d * ubyte_float(raw[1], 1);
	float m0 = dmin * ubyte_float(raw[1], 2), m1 = dmin * ubyte_float(raw[1], 3);
	[[unroll]] for (int e = 0; e < 4; e++) {
		w[e] = d0 * ubyte_float(low, e) - m0;
		w[4 + e] = d1 * ubyte_float(high, e) - m1;
	}
#endif
}

#endif
