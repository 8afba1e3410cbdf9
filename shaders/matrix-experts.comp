#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows times the matrices of the experts that they take, on the device's matrices (matrix.glsl). A
 * pair p = i n_used + rank is a row and one of its experts, e(p) the expert of its group:
 *
 *	y[p][j] = finish(sum over k of W[e(p)][j][k] x[p / x_share][k])
 *
 *	finish: STORE v; GATE silu(y[p][j]) v; SWIGLU silu(v of w[0]) (v of w[1])
 *
 * Shapes: w[] [n_expert] addresses of [n][k] each in a block format, x [m n_used / x_share][k] f16
 * (stage.comp), y [m n_used][n] f32, or f16 with is_half: then what is beyond its range is its
 * largest.
 * Grid: x: slots of groups of BM pairs, the wide ones of group.comp; y: ceil(n / BN), with SWIGLU
 * ceil(n / (BN / 2)).
 * Bindings: none; addresses in struct abi_matrix_experts. Only the matrices of experts that are
 * taken are read, wherever their table says they are.
 */
#include "common.glsl"
#if defined(DTYPE_Q4_K)
#include "matrix-q4_k.glsl"
#else
#include "matrix-dtype.glsl"
#endif
#include "matrix-spec.glsl"
#include "matrix.glsl"

layout(push_constant, std430) uniform Push
{
	abi_matrix_experts push;
};

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Groups
{
	abi_group at[];
};

abi_group group;
uint j0; /* the tile's first row of W */

uint pair_of(uint i)
{
	return Words(push.pairs).at[group.first + min(i, group.n - 1)];
}

/* Rows behind the matrix's last are the last one again. */
uvec2 w_row(uint matrix, uint j)
{
	uvec2 base = Pairs(push.w[matrix]).at[group.expert];

	return address_at(base, min(j0 + j, push.n - 1), push.n_row_bytes);
}

uint x_row(uint i)
{
	return pair_of(i) / push.x_share;
}

void store_output(uint i, uint j, float v)
{
	uint at = j0 + j;

	if (at >= push.n)
		return;
	if (push.is_half != 0) {
		if (push.order == ABI_STAGE_SWAPPED)
			at = at & ~3u | (at & 1) << 1 | at >> 1 & 1;
		HalvesOut(address_at(push.y, pair_of(i), 2 * push.n)).at[at] =
			float16_t(clamp(v, -HALF_MAX, HALF_MAX));
		return;
	}
	FloatsOut y = FloatsOut(address_at(push.y, pair_of(i), 4 * push.n));
	y.at[at] = FINISH == ABI_TILE_FINISH_GATE ? silu(y.at[at]) * v : v;
}

void main()
{
	uint n_pairs = Words(push.m).at[0] * push.n_used;

	j0 = gl_WorkGroupID.y * BN_OUT;
	if (gl_WorkGroupID.x >= n_pairs / BM + push.n_expert)
		return;
	group = Groups(push.groups).at[gl_WorkGroupID.x];
	if (group.n == 0)
		return;
	start_tile(push.k);
	sum_steps(push.x, push.k, 0, push.k / BK, group.n);
	store_tile(group.n);
}
