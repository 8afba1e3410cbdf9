/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_QUANT_GLSL
#define SHADERS_QUANT_GLSL

/*
 * Rows of x as signed bytes (abi.h has the layout): what is common to the kernel that writes them
 * to memory and to the one that makes them in its own shared memory. Eight lanes share 32 numbers,
 * a lane makes a word of four of them. Included behind common.glsl. With QUANT_ORDER, which numbers
 * a word has is not the specialization's to say, and nothing is read from memory.
 */
#if !defined(QUANT_ORDER)
layout(constant_id = ABI_QUANT_SPEC_NORM) const uint NORM = 0;
layout(constant_id = ABI_QUANT_SPEC_GATHER) const uint GATHER = 0;
layout(constant_id = ABI_QUANT_SPEC_ORDER) const uint ORDER = ABI_QUANT_ORDER_PLAIN;
#endif

/* A word of a row and what is said of its half of a unit, the same in all eight lanes. */
struct quant {
	uint word;
	float scale;
	uint sums; /* i16 each: of words 0 to 3, and of words 4 to 7 */
};

/* The number at byte b of word w of 32. */
uint quant_number(uint order, uint w, uint b)
{
	return order == ABI_QUANT_ORDER_BY8   ? 8 * b + w
	       : order == ABI_QUANT_ORDER_BY4 ? 16 * (w / 4) + 4 * b + w % 4
					      : 4 * w + b;
}

/* v: the numbers of the lane's word. All lanes of the eight call it. */
quant quant_word(vec4 v)
{
	vec4 a = abs(v);
	float top = max(max(a.x, a.y), max(a.z, a.w));

	[[unroll]] for (uint d = 1; d < 8; d *= 2) top = max(top, subgroupShuffleXor(top, d));
	precise float scale = top * (1.0 / 127.0);
	/* Of numbers so small that the reciprocal is none, nothing is left. */
	float inverse = top > 1e-30 ? 127.0 / top : 0.0;
	ivec4 q = ivec4(roundEven(v * inverse));
	int sum = q.x + q.y + q.z + q.w;
	sum += subgroupShuffleXor(sum, 1);
	sum += subgroupShuffleXor(sum, 2);
	int other = subgroupShuffleXor(sum, 4);
	bool is_second = (lane() & 4) != 0;
	uint low = uint(is_second ? other : sum), high = uint(is_second ? sum : other);
	return quant(
		uint(q.x & 255) | uint(q.y & 255) << 8 | uint(q.z & 255) << 16 | uint(q.w) << 24,
		scale, (low & 0xffff) | high << 16);
}

#if !defined(QUANT_ORDER)
/* The numbers of word i of a row (of k / 4), with the gain on them; adds their squares. */
vec4 read_word(Floats x, Floats gain, uint i, inout float squares)
{
	uint base = i / 8 * 32;
	vec4 v;

	[[unroll]] for (uint b = 0; b < 4; b++) v[b] = x.at[base + quant_number(ORDER, i % 8, b)];
	if (NORM != 0) {
		[[unroll]] for (uint b = 0; b < 4; b++)
		{
			squares = fma(v[b], v[b], squares);
			v[b] *= gain.at[base + quant_number(ORDER, i % 8, b)];
		}
	}
	return v;
}
#endif

/* The sum over the eight lanes of 32 numbers, in all of them. */
float sum_eight(float v)
{
	[[unroll]] for (uint d = 4; d > 0; d /= 2) v += subgroupShuffleXor(v, d);
	return v;
}

/* Where word i of a row lies: which quad, in units of 16 bytes from the row's begin. */
uint quad_of_word(uint i, uint n_units)
{
	return (i / 4 % 4) * n_units + i / 16;
}

/* Where the half of a unit that word i belongs to has its scale and sums, in units of 8 bytes. */
uint half_of_word(uint i, uint n_units)
{
	return (i / 8 % 2) * n_units + i / 16;
}

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer QuantsOut
{
	uvec4 at[];
};
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer QuantHalvesOut
{
	uvec2 at[];
};

/*
 * Writes word i of a row of k, made by this lane, and with squares (of its 32 numbers) what a norm
 * needs.
 */
void put_word(uvec2 row, uint k, uint i, quant q, bool has_squares, float squares)
{
	QuantsOut(row).at[quad_of_word(i, k / 64)][i % 4] = q.word;
	if (i % 8 == 0)
		QuantHalvesOut(address_at(row, 1, k)).at[half_of_word(i, k / 64)] =
			uvec2(floatBitsToUint(q.scale), q.sums);
	if (i % 8 == 0 && has_squares)
		FloatsOut(address_at(row, 5, k / 4)).at[i / 8] = squares;
}

#endif
