// SPDX-License-Identifier: Apache-2.0
//
// Tells what a pipeline made of its specialization constants and subgroups. Grid: 1.
// out = {constant 1, constant 2, workgroup size, subgroup size, subgroups, invocations that ran}
#version 450
#extension GL_EXT_buffer_reference : require
#extension GL_KHR_shader_subgroup_basic : require

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ONE = 11;
layout(constant_id = 2) const uint TWO = 22;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };

layout(push_constant) uniform Push { Words words; } push;

void main()
{
	if (gl_LocalInvocationIndex == 0) {
		push.words.at[0] = ONE;
		push.words.at[1] = TWO;
		push.words.at[2] = gl_WorkGroupSize.x;
		push.words.at[3] = gl_SubgroupSize;
		push.words.at[4] = gl_NumSubgroups;
	}
	atomicAdd(push.words.at[5], 1);
}
