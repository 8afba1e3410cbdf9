#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choice[i] = the n_used experts of the largest logits[i], largest first, with their weights
 *
 * Shapes: logits [m][n_expert] f32, choice [m][n_used] struct abi_choice.
 * Grid: x: 1; y: m, a workgroup a row.
 * Bindings: none; addresses in struct abi_route. Rows beyond *m are not computed.
 */
#include "common.glsl"
#include "choose.glsl"

layout(push_constant, std430) uniform Push
{
	abi_route push;
};

void main()
{
	uint i = gl_WorkGroupID.y;

	if (i >= Words(push.m).at[0])
		return;
	rank_experts(
		address_at(push.logits, i, 4 * push.n_expert), push.n_expert, push.n_used);
	put_choices(push.n_used, address_at(push.choice, i, 8 * push.n_used));
}
