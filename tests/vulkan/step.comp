// SPDX-License-Identifier: Apache-2.0
//
// at[0] = at[0] * 3 + addend, n_rounds times: wrong as soon as two of them overlap or change places,
// and slow. Grid: 1.
#version 450
#extension GL_EXT_buffer_reference : require

layout(local_size_x = 1) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };

layout(push_constant) uniform Push
{
	Words words;
	uint addend;
	uint n_rounds;
} push;

void main()
{
	uint value = push.words.at[0];
	for (uint i = 0; i < push.n_rounds; i++)
		value = value * 3 + push.addend;
	push.words.at[0] = value;
}
