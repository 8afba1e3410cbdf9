#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What arithmetic gives to a kernel that touches no memory: x = x * factor + addend, over and over,
 * in so many chains that none waits for its own last result. One word of dst is written if the sum
 * is MAGIC, so that nothing can be left out.
 *
 * Grid: x: as many workgroups as one likes, all do the same.
 * Bindings: none; struct abi_fma.
 */
#include "common.glsl"

layout(push_constant, std430) uniform Push
{
	abi_fma push;
};

const float MAGIC = 1.0e30;

void main()
{
	vec4 x[ABI_FMA_CHAINS];
	vec4 factor = vec4(push.factor), addend = vec4(push.addend);

	[[unroll]] for (int i = 0; i < ABI_FMA_CHAINS; i++)
		x[i] = vec4(lane(), i, gl_WorkGroupID.x, 1) * 0.0078125;
	for (uint round = 0; round < push.n_rounds; round++)
		[[unroll]] for (int k = 0; k < ABI_FMA_UNROLL; k++)
			[[unroll]] for (int i = 0; i < ABI_FMA_CHAINS; i++)
				x[i] = fma(x[i], factor, addend);

	vec4 sum = vec4(0);
	[[unroll]] for (int i = 0; i < ABI_FMA_CHAINS; i++)
		sum += x[i];
	if (sum.x + sum.y + sum.z + sum.w == MAGIC)
		FloatsOut(push.dst).at[0] = MAGIC;
}
