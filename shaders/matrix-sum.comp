#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][j] = finish(sum over s of partial[s][i][j]), what matrix.comp left in runs of k; finish as
 * there, with SWIGLU j of the gate beside n + j of the up matrix.
 *
 * Shapes: partial [n_splits][n_split_bytes] with rows of width f32; y and r [m][y_stride] f32.
 * Grid: x: ceil(width of y / workgroup), y: m. Bindings: none; addresses in struct abi_matrix_sum.
 * The runs are added in their order.
 */
#include "common.glsl"

layout(constant_id = ABI_MATRIX_SUM_SPEC_FINISH) const uint FINISH = ABI_TILE_FINISH_STORE;

layout(push_constant, std430) uniform Push
{
	abi_matrix_sum push;
};

const bool IS_SWIGLU = FINISH == ABI_TILE_FINISH_SWIGLU;

float sum_runs(uint i, uint j)
{
	float sum = 0.0;

	for (uint s = 0; s < push.n_splits; s++) {
		uvec2 run = address_at(push.partial, s, push.n_split_bytes);
		precise float next = sum + Floats(address_at(run, i, 4 * push.width)).at[j];
		sum = next;
	}
	return sum;
}

void main()
{
	uint i = gl_WorkGroupID.y;
	uint j = gl_GlobalInvocationID.x;
	uint n = IS_SWIGLU ? push.width / 2 : push.width;

	if (i >= Words(push.m).at[0] || j >= n)
		return;
	float v = sum_runs(i, j);
	if (IS_SWIGLU)
		v = silu(v) * sum_runs(i, n + j);
	if (FINISH == ABI_TILE_FINISH_ADD || FINISH == ABI_TILE_FINISH_GATE) {
		float r = Floats(address_at(push.r, i, 4 * push.y_stride)).at[j];
		v = FINISH == ABI_TILE_FINISH_ADD ? r + v : silu(r) * v;
	}
	FloatsOut(address_at(push.y, i, 4 * push.y_stride)).at[j] = v;
}
