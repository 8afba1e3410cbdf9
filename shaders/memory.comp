#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What memory gives to a kernel that computes nothing:
 *	MEMORY_READ: reads src; writes one word of dst if the sum is MAGIC, so that no load can be
 *		left out and next to nothing is written
 *	MEMORY_COPY: dst[i] = src[i]
 *
 * Shapes: src [n] units of 16 bytes, dst the same or one word.
 * Grid: x: as many workgroups as one likes; an invocation takes every so-many-th unit.
 * Bindings: none; addresses in struct abi_memory.
 */
#include "common.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Units { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer UnitsOut { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer WordsOut { uint at[]; };

layout(push_constant, std430) uniform Push
{
	abi_memory push;
};

const uint MAGIC = 0x6d656d6f;

void main()
{
	uint stride = gl_NumWorkGroups.x * LOCAL_SIZE;
	uint last = push.n - 1;
	uvec4 sum = uvec4(0);

	/* Four loads in flight; what is behind the end is the last unit again. */
	for (uint i = gl_GlobalInvocationID.x; i < push.n; i += 4 * stride) {
		uvec4 unit[4];

		[[unroll]] for (uint k = 0; k < 4; k++)
			unit[k] = Units(push.src).at[min(i + k * stride, last)];
		[[unroll]] for (uint k = 0; k < 4; k++) {
#ifdef MEMORY_COPY
			UnitsOut(push.dst).at[min(i + k * stride, last)] = unit[k];
#else
			sum += unit[k];
#endif
		}
	}
#ifdef MEMORY_READ
	if (sum.x + sum.y + sum.z + sum.w == MAGIC)
		WordsOut(push.dst).at[0] = MAGIC;
#endif
}
