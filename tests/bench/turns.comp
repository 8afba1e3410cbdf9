#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic for so many rounds and no memory, so that a dispatch takes a chosen time. One word of
 * dst is written if the sum is MAGIC, so that nothing can be left out.
 *
 * Grid: x: as many workgroups as one likes, all do the same.
 */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

layout(local_size_x = 128) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { float at[]; };

layout(push_constant) uniform Push
{
	uvec2 dst;
	uint n_rounds;
	uint pad;
};

const float MAGIC = 1.0e30;

void main()
{
	vec4 x = vec4(gl_LocalInvocationID.x, gl_WorkGroupID.x, 1, 2) * 0.0078125;

	for (uint i = 0; i < n_rounds; i++)
		x = fma(x, vec4(0.9990234375), vec4(0.0009765625));
	if (x.x + x.y + x.z + x.w == MAGIC)
		Words(dst).at[0] = MAGIC;
}
