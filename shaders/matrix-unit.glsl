/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATRIX_UNIT_GLSL
#define SHADERS_MATRIX_UNIT_GLSL

/*
 * Rows of a weight matrix as f16 as in matrix-dtype.glsl, in units of U_ELEMENTS neighbours:
 * unit_load() fetches the U_RAW words that a unit needs, unit_decode() turns them into pieces of four,
 * the middle numbers of each changed with each other: numbers 0 and 2 in a word, 1 and 3 in the next.
 * Quantized numbers are masked out of their words that far apart, two at once.
 *
 * Units of a step have numbers first + group, first being the same for all lanes; with UNITS_SHARE,
 * which is the includer's, all of a step are of the same 32 numbers.
 */
#include "matrix-dtype.glsl"

#if defined(DTYPE_F32)
#define U_ELEMENTS 8
#define U_RAW 8
#elif defined(DTYPE_F16) || defined(DTYPE_BF16)
#define U_ELEMENTS 8
#define U_RAW 4
#elif defined(DTYPE_Q4_K)
#define U_RAW 8
#elif defined(DTYPE_Q6_K)
#define U_RAW 12
#elif defined(DTYPE_Q2_0)
#define U_RAW 3
#elif defined(DTYPE_Q1_0)
#define U_RAW 2
#else
#define U_RAW 6
#endif
#if !defined(U_ELEMENTS)
#define U_ELEMENTS 16
#endif
const int U_PIECES = U_ELEMENTS / 4;

/*
 * 1024 as two f16, whose last bit is 1. The kernel sets it to that in a way that its compiler does
 * not see through: a register takes one instruction to be or-ed into a masked word, a number two.
 */
uint unit_magic;

/* Four numbers as they lie, in the units' order. */
uvec2 unit_turn(uvec2 v)
{
	f16vec2 a = unpackFloat2x16(v.x), b = unpackFloat2x16(v.y);

	return uvec2(packFloat2x16(f16vec2(a.x, b.x)), packFloat2x16(f16vec2(a.y, b.y)));
}

/* Numbers of `mask` in both halves of a word, which are below 1024, less the bias. */
f16vec2 unit_halves(uint word, uint mask, float16_t bias)
{
	return unpackFloat2x16(word & mask | unit_magic) - f16vec2(float16_t(1024.0) + bias);
}

/* d (q - bias) of a word's four numbers below 256, or such with the mask of a lower limit. */
uvec2 unit_scale(uint word, uint mask, float16_t bias, float16_t d)
{
	return uvec2(packFloat2x16(unit_halves(word, mask, bias) * d),
		packFloat2x16(unit_halves(word >> 8, mask, bias) * d));
}

/* Four words. No function: an array that is passed on may end up in memory. */
#define UNIT_PUT(first, quad)        \
	{                            \
		uvec4 v = quad;      \
		raw[first] = v.x;    \
		raw[first + 1] = v.y; \
		raw[first + 2] = v.z; \
		raw[first + 3] = v.w; \
	}

/* Sixteen bytes that begin at an even one: five words, or four and the last again. */
void unit_load_16(uvec2 row, uint at, inout uint raw[U_RAW], int first)
{
#if U_RAW >= 6
	uint word = first_word(row, at);
	[[unroll]] for (int i = 0; i < 4; i++)
		raw[first + i] = load_word(row, word + i);
	raw[first + 4] = load_word(row, is_split(row, at) ? word + 4 : word + 3);
#endif
}

uint unit_whole(uint raw[U_RAW], int i, bool is_cut)
{
#if U_RAW >= 6
	return whole_word(raw[i], raw[i + 1], is_cut);
#else
	return 0;
#endif
}

/* The bytes in which a unit's numbers are, or their low bits. */
uint unit_at(uint unit)
{
	return numbers_at(unit * (U_ELEMENTS / W_ELEMENTS));
}

void unit_load(uvec2 row, uint first, uint group, out uint raw[U_RAW])
{
	uint unit = first + group, at = unit_at(unit), e = U_ELEMENTS * unit;

#if defined(DTYPE_F32)
	UNIT_PUT(0, Quads(row).at[2 * unit])
	UNIT_PUT(4, Quads(row).at[2 * unit + 1])
#elif defined(DTYPE_F16) || defined(DTYPE_BF16)
	UNIT_PUT(0, Quads(row).at[unit])
#elif defined(DTYPE_Q4_K)
	UNIT_PUT(0, Quads(row).at[at / 16])
	UNIT_PUT(4, Quads(row).at[9 * (e / 256)])
#elif defined(DTYPE_Q8_0)
	unit_load_16(row, at, raw, 0);
	raw[5] = load_half(row, 34 * (e / 32));
#elif defined(DTYPE_Q4_0)
	unit_load_16(row, at, raw, 0);
	raw[5] = load_half(row, 18 * (e / 32));
#elif defined(DTYPE_TQ2_0)
	unit_load_16(row, at, raw, 0);
	raw[5] = load_half(row, 66 * (e / 256) + 64);
#elif defined(DTYPE_Q6_K)
	unit_load_16(row, at, raw, 0);
	unit_load_16(row, highs_at(unit * 2), raw, 5);
	raw[10] = load_half(row, scale_at(unit * 2) & ~1u);
	raw[11] = load_half(row, 210 * (e / 256) + 208);
#elif defined(DTYPE_Q2_0)
	uint word = first_word(row, at);
	raw[0] = load_word(row, word);
	raw[1] = load_word(row, is_split(row, at) ? word + 1 : word);
	raw[2] = load_half(row, 18 * (e / 64));
#elif defined(DTYPE_Q1_0)
	raw[0] = load_half(row, at);
	raw[1] = load_half(row, 18 * (e / 128));
#endif
}

#if defined(DTYPE_Q4_K)
/* d s and e t of the j-th 32 numbers. */
f16vec2 unit_factors(uint j, uint raw[U_RAW])
{
	uint shift = 8 * (j % 4);
	uint a = raw[5] >> shift, b = raw[6] >> shift, c = raw[7] >> shift;
	uint s = j < 4 ? a & 63 : c & 15 | a >> 2 & 48;
	uint t = j < 4 ? b & 63 : c >> 4 & 15 | b >> 2 & 48;

	return unit_halves(s | t << 16, 0x003f003fu, float16_t(0.0)) * unpackFloat2x16(raw[4]);
}
#endif

void unit_decode(uvec2 row, uint first, uint group, uint raw[U_RAW], out uvec2 ret_pieces[U_PIECES])
{
	uint unit = first + group, e = U_ELEMENTS * unit;
	bool is_cut = is_split(row, unit_at(unit));
	const float16_t zero = float16_t(0.0);

#if defined(DTYPE_Q4_K)
	uint j = (UNITS_SHARE ? first : unit) / 2 % 8;
	f16vec2 f = unit_factors(j, raw);
#elif defined(DTYPE_Q6_K)
	uint run = e % 128 / 32; /* see w_decode */
	bool is_high_cut = is_split(row, highs_at(unit * 2));
	float16_t s = float16_t(int(bitfieldExtract(int(raw[10]), int(e / 16 % 2 * 8), 8)));
	float16_t d = s * unpackFloat2x16(raw[11]).x;
#endif
	[[unroll]] for (int q = 0; q < U_PIECES; q++) {
#if defined(DTYPE_F32)
		ret_pieces[q] = uvec2(pack_halves(uintBitsToFloat(raw[4 * q]),
					      uintBitsToFloat(raw[4 * q + 2])),
			pack_halves(uintBitsToFloat(raw[4 * q + 1]),
				uintBitsToFloat(raw[4 * q + 3])));
#elif defined(DTYPE_F16)
		ret_pieces[q] = unit_turn(uvec2(raw[2 * q], raw[2 * q + 1]));
#elif defined(DTYPE_BF16)
		uint a = raw[2 * q], b = raw[2 * q + 1];
		ret_pieces[q] = uvec2(pack_halves(uintBitsToFloat(a << 16), uintBitsToFloat(b << 16)),
			pack_halves(uintBitsToFloat(a & 0xffff0000u),
				uintBitsToFloat(b & 0xffff0000u)));
#elif defined(DTYPE_Q4_K)
		uint w = raw[q] >> (4 * (j % 2));
		ret_pieces[q] = uvec2(
			packFloat2x16(fma(unit_halves(w, 0x000f000fu, zero), f.xx, -f.yy)),
			packFloat2x16(fma(unit_halves(w >> 8, 0x000f000fu, zero), f.xx, -f.yy)));
#elif defined(DTYPE_Q8_0)
		ret_pieces[q] = unit_scale(unit_whole(raw, q, is_cut) ^ 0x80808080u, 0x00ff00ffu,
			float16_t(128.0), unpackFloat2x16(raw[5]).x);
#elif defined(DTYPE_Q4_0)
		ret_pieces[q] = unit_scale(unit_whole(raw, q, is_cut) >> (4 * (unit % 2)),
			0x000f000fu, float16_t(8.0), unpackFloat2x16(raw[5]).x);
#elif defined(DTYPE_Q6_K)
		uint l = unit_whole(raw, q, is_cut) >> (4 * (run / 2)) & 0x0f0f0f0fu;
		uint h = unit_whole(raw, 5 + q, is_high_cut) >> (2 * run) & 0x03030303u;
		ret_pieces[q] = unit_scale(l | h << 4, 0x00ff00ffu, float16_t(32.0), d);
#elif defined(DTYPE_TQ2_0)
		ret_pieces[q] = unit_scale(unit_whole(raw, q, is_cut) >> (2 * (e % 128 / 32)),
			0x00030003u, float16_t(1.0), unpackFloat2x16(raw[5]).x);
#elif defined(DTYPE_Q2_0)
		/* Of a byte the first number stays where it is, and the third comes 16 bits up. */
		uint b = whole_word(raw[0], raw[1], is_cut) >> (8 * q) & 0xff, w = b | b << 12;
		f16vec2 d = unpackFloat2x16(raw[2]).xx;
		ret_pieces[q] =
			uvec2(packFloat2x16(unit_halves(w, 0x00030003u, float16_t(1.0)) * d),
				packFloat2x16(
					unit_halves(w >> 2, 0x00030003u, float16_t(1.0)) * d));
#elif defined(DTYPE_Q1_0)
		/* As second bits, so that they are 0 and 2. */
		uint b = raw[0] >> (4 * q) & 0xf, w = b | b << 14;
		f16vec2 d = unpackFloat2x16(raw[1]).xx;
		ret_pieces[q] =
			uvec2(packFloat2x16(unit_halves(w << 1, 0x00020002u, float16_t(1.0)) * d),
				packFloat2x16(unit_halves(w, 0x00020002u, float16_t(1.0)) * d));
#endif
	}
}

#endif
