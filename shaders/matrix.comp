#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][j] = finish(sum over k of W[j][k] x[i][k]) of many rows, on the device's matrices (matrix.glsl)
 *
 *	finish: STORE v; ADD r[i][j] + v; GATE silu(r[i][j]) v; SWIGLU silu(v of w[0]) (v of w[1])
 *	PARTIAL: y[s][i][j] = the sum over the s-th run of n_split_steps of k, for matrix-sum.comp
 *
 * Shapes: w[p] [n[p]][k] in a block format, x [m][x_stride] f16 (stage.comp), y and r [m][y_stride]
 * f32. The outputs of the parts lie one behind the other in a row of y; SWIGLU has two parts of the
 * same n and one output of that width, with PARTIAL two.
 * Grid: x: ceil(m / BM), so that workgroups with the same rows of W run beside each other; y: tiles
 * of W times runs of k, tiles = sum over p of ceil(n[p] / BN), with SWIGLU ceil(n[0] / (BN / 2)).
 * Bindings: none; addresses in struct abi_matrix. Rows beyond *m are not stored.
 */
#include "common.glsl"
#include "matrix-dtype.glsl"
#include "matrix.glsl"

layout(push_constant, std430) uniform Push
{
	abi_matrix push;
};

/* Which rows of which matrix: the tile's first row j of part p, and its place in a row of y. */
struct tile {
	uint part;
	uint j;
	uint y_at;
};

tile t;
uint i0;    /* the tile's first row of x */
uint n_m;   /* *push.m */
uvec2 y;

bool find_tile(uint i)
{
	uint y_at = 0;

	[[unroll]] for (uint p = 0; p < ABI_MATMUL_MAX_PARTS; p++) {
		if (IS_SWIGLU && p > 0)
			break;
		uint n_tiles = (push.n[p] + BN_OUT - 1) / BN_OUT;
		if (i < n_tiles) {
			t = tile(p, i * BN_OUT, y_at + i * BN_OUT);
			return true;
		}
		i -= n_tiles;
		y_at += push.n[p];
	}
	return false;
}

/* Rows behind the matrix's last are the last one again. */
uvec2 w_row(uint matrix, uint j)
{
	uint part = t.part + matrix;
	uvec2 base = part == 0 ? push.w[0] : part == 1 ? push.w[1] : push.w[2];

	return address_at(base, min(t.j + j, push.n[t.part] - 1), push.n_row_bytes);
}

uint x_row(uint i)
{
	return min(i0 + i, n_m - 1);
}

void store_output(uint i, uint matrix, uint j, float v)
{
	uint at = t.y_at + j + (matrix != 0 ? push.n[0] : 0);

	if (t.j + j >= push.n[t.part])
		return;
	if (PARTIAL == 0 && (FINISH == ABI_TILE_FINISH_ADD || FINISH == ABI_TILE_FINISH_GATE)) {
		float before = Floats(address_at(push.r, i0 + i, 4 * push.y_stride)).at[at];
		v = FINISH == ABI_TILE_FINISH_ADD ? before + v : silu(before) * v;
	}
	FloatsOut(address_at(y, i0 + i, 4 * push.y_stride)).at[at] = v;
}

void main()
{
	uint split = gl_WorkGroupID.y % push.n_splits;
	uint first = split * push.n_split_steps;

	n_m = Words(push.m).at[0];
	i0 = gl_WorkGroupID.x * BM;
	y = push.y;
	if (i0 >= n_m || !find_tile(gl_WorkGroupID.y / push.n_splits))
		return;
	if (PARTIAL != 0)
		y = address_at(y, split, push.n_split_bytes);
	start_tile(push.x_stride);
	sum_steps(push.x, push.x_stride, first, min(first + push.n_split_steps, push.k / BK), n_m - i0);
	store_tile(n_m - i0);
}
