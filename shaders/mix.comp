#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][j] += sum over rank of choice[p].weight z[p][j], p = i n_used + rank
 *
 * The order is that of experts.comp with MIX, to the bit.
 *
 * Shapes: z [m n_used][n] f32, y [m][n] f32, choice [m][n_used] struct abi_choice.
 * Grid: x: ceil(n / lanes of a subgroup / subgroups of a workgroup), a lane a column; y: m.
 * Bindings: none; addresses in struct abi_mix. Rows beyond *m are not computed.
 */
#include "common.glsl"
#include "route.glsl"

layout(push_constant, std430) uniform Push
{
	abi_mix push;
};

void main()
{
	uint i = gl_WorkGroupID.y;
	uint j = subgroup_x() * SUBGROUP + lane();

	if (i >= Words(push.m).at[0] || j >= push.n)
		return;
	float total = 0.0;
	for (uint rank = 0; rank < push.n_used; rank++) {
		uint pair = i * push.n_used + rank;
		float z = Floats(address_at(push.z, pair, 4 * push.n)).at[j];
		total = fma(Choices(push.choice).at[pair].weight, z, total);
	}
	FloatsOut(address_at(push.y, i, 4 * push.n)).at[j] += total;
}
