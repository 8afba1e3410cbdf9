// SPDX-License-Identifier: Apache-2.0
//
// out[i] = seed + i * step for i < n. Grid: x, one invocation an element.
#version 450
#extension GL_EXT_buffer_reference : require

layout(local_size_x = 64) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };

layout(push_constant) uniform Push
{
	Words words;
	uint n;
	uint seed;
	uint step;
} push;

void main()
{
	uint i = gl_GlobalInvocationID.x;
	if (i < push.n)
		push.words.at[i] = push.seed + i * push.step;
}
