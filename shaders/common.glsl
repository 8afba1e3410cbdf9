/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_COMMON_GLSL
#define SHADERS_COMMON_GLSL

/*
 * What every kernel includes: device addresses as typed references, and the place of an invocation.
 *
 * In kernels that are exact each subgroup works alone, without barrier or shared memory, and a
 * workgroup is a bundle of them, but in attention and best; others share what they like. Sums run in
 * an order that is a function of the row alone, but those of matrix, skinny and of attention in
 * parts; a multiplication that is summed is an explicit fma, and what
 * else has both is `precise`: a compiler that contracts one tile's arithmetic otherwise than
 * another's would give a row other bits beside other rows.
 */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#include "abi.h"

layout(local_size_x_id = ABI_SPEC_LOCAL_SIZE) in;
layout(constant_id = ABI_SPEC_LOCAL_SIZE) const uint LOCAL_SIZE = 8;
layout(constant_id = ABI_SPEC_SUBGROUP) const uint SUBGROUP = 8;

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Words { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) readonly buffer Halves
{
	uint16_t at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Floats { float at[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pairs { uvec2 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Rows { abi_row at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer FloatsOut { float at[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer HalvesOut { float16_t at[]; };

/* base + i * n_bytes in 64 bits, without needing 64-bit integers of the device. */
uvec2 address_at(uvec2 base, uint i, uint n_bytes)
{
	uint low, high, carry;

	umulExtended(i, n_bytes, high, low);
	low = uaddCarry(base.x, low, carry);
	return uvec2(low, base.y + high + carry);
}

uint lane()
{
	return gl_SubgroupInvocationID;
}

/* The number of this subgroup along x of the grid. */
uint subgroup_x()
{
	return gl_WorkGroupID.x * (LOCAL_SIZE / SUBGROUP) + gl_SubgroupID;
}

const int MAX_LEVELS = 6; /* halvings of the widest subgroup, 64 */

/*
 * The sum over all lanes, in every lane: halves are added to each other, then quarters, and so on.
 * The order is part of what makes a result the same bits wherever it is computed.
 */
float sum_lanes(float v)
{
	[[unroll]] for (int level = 1; level <= MAX_LEVELS; level++) {
		uint d = SUBGROUP >> level;
		if (d > 0)
			v += subgroupShuffleXor(v, d);
	}
	return v;
}

uint sum_lanes(uint v)
{
	[[unroll]] for (int level = 1; level <= MAX_LEVELS; level++) {
		uint d = SUBGROUP >> level;
		if (d > 0)
			v += subgroupShuffleXor(v, d);
	}
	return v;
}

/* 1 / sqrt(mean of the squares + eps), of their sum over a row of k. */
float norm_scale(float squares, uint k, float eps)
{
	precise float mean = squares / float(k);
	precise float v = mean + eps;

	return inversesqrt(v);
}

float half_low(uint word)
{
	return unpackHalf2x16(word).x;
}

float half_high(uint word)
{
	return unpackHalf2x16(word).y;
}

/* Byte i of a word as a signed number. */
float byte_float(uint word, int i)
{
	return float(bitfieldExtract(int(word), 8 * i, 8));
}

float silu(float v)
{
	return v / (1.0 + exp(-v));
}

#endif
