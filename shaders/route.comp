#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choice[i] = the n_used experts of the largest logits[i], largest first, with their weights
 *
 * Shapes: logits [m][n_expert] f32, choice [m][n_used] struct abi_choice.
 * Grid: x: 1, a subgroup a row; y: m.
 * Bindings: none; addresses in struct abi_route. Rows beyond *m are not computed.
 */
#include "common.glsl"
#include "route.glsl"

layout(push_constant, std430) uniform Push
{
	abi_route push;
};

void main()
{
	uint i = gl_WorkGroupID.y;

	if (subgroup_x() != 0 || i >= Words(push.m).at[0])
		return;
	route_all(Floats(address_at(push.logits, i, 4 * push.n_expert)), push.n_expert, push.n_used,
		ChoicesOut(address_at(push.choice, i, 8 * push.n_used)));
}
