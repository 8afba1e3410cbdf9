#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][j] += sum over rank of choice[p].weight z[p][j], p = i n_used + rank
 *
 * The order is that of experts.comp with MIX, to the bit.
 *
 * Shapes: z [m n_used][n] f32, y [m][n] f32, choice [m][n_used] struct abi_choice.
 * Grid: x: ceil(n / (ABI_MIX_COLUMNS lanes of a subgroup) / subgroups of a workgroup); y: m.
 * Bindings: none; addresses in struct abi_mix. Rows beyond *m are not computed.
 */
#include "common.glsl"
#include "route.glsl"

layout(push_constant, std430) uniform Push
{
	abi_mix push;
};

const int COLUMNS = ABI_MIX_COLUMNS;
const int UNROLL = 4; /* experts whose numbers are under way at once */

void main()
{
	uint i = gl_WorkGroupID.y;
	uint j = subgroup_x() * COLUMNS * SUBGROUP + lane();
	float total[COLUMNS];

	if (i >= Words(push.m).at[0])
		return;
	[[unroll]] for (int c = 0; c < COLUMNS; c++)
		total[c] = 0.0;
	for (uint first = 0; first < push.n_used; first += UNROLL) {
		float z[UNROLL][COLUMNS], weights[UNROLL];
		[[unroll]] for (int u = 0; u < UNROLL; u++) {
			uint pair = i * push.n_used + min(first + u, push.n_used - 1);
			Floats row = Floats(address_at(push.z, pair, 4 * push.n));
			weights[u] = Choices(push.choice).at[pair].weight;
			[[unroll]] for (int c = 0; c < COLUMNS; c++)
				z[u][c] = row.at[min(j + c * SUBGROUP, push.n - 1)];
		}
		[[unroll]] for (int u = 0; u < UNROLL; u++)
			[[unroll]] for (int c = 0; c < COLUMNS; c++)
				if (first + u < push.n_used)
					total[c] = fma(weights[u], z[u][c], total[c]);
	}
	[[unroll]] for (int c = 0; c < COLUMNS; c++)
		if (j + c * SUBGROUP < push.n)
			FloatsOut(address_at(push.y, i, 4 * push.n)).at[j + c * SUBGROUP] += total[c];
}
