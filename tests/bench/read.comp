#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads n units of 16 bytes and writes one sum a subgroup, so that nothing can be left out: what
 * the memory gives to a kernel that computes nothing.
 *
 * Grid: x: as many workgroups of 32 as one likes; each takes every so-many-th run of 32 units.
 */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

layout(local_size_x = 32) in;
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Units { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Sums { uint at[]; };

layout(push_constant) uniform Push
{
	uvec2 data;
	uvec2 sums; /* [workgroups][32] */
	uint n;
	uint pad;
};

void main()
{
	uvec4 sum = uvec4(0);

	/* Four loads in flight; what is behind the end is the last unit again. */
	uint stride = 32 * gl_NumWorkGroups.x;
	for (uint i = gl_GlobalInvocationID.x; i < n; i += 4 * stride) {
		uvec4 a = Units(data).at[i];
		uvec4 b = Units(data).at[min(i + stride, n - 1)];
		uvec4 c = Units(data).at[min(i + 2 * stride, n - 1)];
		uvec4 d = Units(data).at[min(i + 3 * stride, n - 1)];
		sum += a + b + c + d;
	}
	Sums(sums).at[gl_GlobalInvocationID.x] = sum.x + sum.y + sum.z + sum.w;
}
