/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATRIX_Q4_K_GLSL
#define SHADERS_MATRIX_Q4_K_GLSL

/*
 * What matrix-dtype.glsl is for Q4_K, in units of 64 numbers: where few rows of x share what is decoded,
 * that is most of the work. A unit has its 32 bytes of codes once (the first 32 numbers are the low
 * nibbles), and its header for four scales.
 *
 *	w = d s q - e t   of 256: f16 d, f16 e, u6 s[8], t[8] in 12 bytes, nibbles q[128]
 *
 * Rows begin at multiples of 16 bytes; steps of k are multiples of 64. d s and e t are rounded to f16,
 * and what becomes of them.
 *
 * Of each four numbers the second and the third change places, as they do in x (ABI_STAGE_SWAPPED):
 * bytes two apart become halves side by side at no cost.
 */
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 at[]; };

#define W_ELEMENTS 64
#define W_RAW 12

const int W_QUADS = W_ELEMENTS / 8;
const float HALF_MAX = 65504.0;

void w_load(uvec2 row, uint unit, out uint raw[W_RAW])
{
	uint block = 9 * (unit / 4);
	uvec4 head = Quads(row).at[block];
	uvec4 a = Quads(row).at[block + 1 + 2 * (unit % 4)];
	uvec4 b = Quads(row).at[block + 2 + 2 * (unit % 4)];

	[[unroll]] for (int i = 0; i < 4; i++) {
		raw[i] = a[i];
		raw[4 + i] = b[i];
		raw[8 + i] = head[i];
	}
}

/* Nibbles at bits 0 and 16 of a word as two f16: 0x6400 is 1024, whose last bit is 1. */
f16vec2 nibble_halves(uint word)
{
	return unpackFloat2x16(word & 0x000f000fu | 0x64006400u) - f16vec2(1024.0);
}

/* The nibbles of four bytes at bits 0, 8, 16 and 24. */
uvec2 expand_four(uint word, f16vec2 scale, f16vec2 minimum)
{
	return uvec2(packFloat2x16(fma(nibble_halves(word), scale, -minimum)),
		packFloat2x16(fma(nibble_halves(word >> 8), scale, -minimum)));
}

void w_decode(uvec2 row, uint unit, uint raw[W_RAW], out uvec4 ret_quads[W_QUADS])
{
	/* Of runs 2 j and 2 j + 1 of 32 numbers, side by side. */
	uint j = unit % 4, shift = 16 * (j % 2);
	uint a = raw[9] >> shift, b = raw[10] >> shift, c = raw[11] >> shift;
	uint s = j < 2 ? a & 0x3f3f : (c & 0x0f0f) | (a >> 2 & 0x3030);
	uint t = j < 2 ? b & 0x3f3f : (c >> 4 & 0x0f0f) | (b >> 2 & 0x3030);
	vec2 d = unpackHalf2x16(raw[8]);
	f16vec2 scales = f16vec2(d.x * vec2(s & 0xff, s >> 8));
	f16vec2 minima = f16vec2(d.y * vec2(t & 0xff, t >> 8));

	[[unroll]] for (int i = 0; i < 8; i++) {
		uvec2 low = expand_four(raw[i], scales.xx, minima.xx);
		uvec2 high = expand_four(raw[i] >> 4, scales.yy, minima.yy);
		ret_quads[i / 2][2 * (i % 2)] = low.x;
		ret_quads[i / 2][2 * (i % 2) + 1] = low.y;
		ret_quads[4 + i / 2][2 * (i % 2)] = high.x;
		ret_quads[4 + i / 2][2 * (i % 2) + 1] = high.y;
	}
}

#endif
