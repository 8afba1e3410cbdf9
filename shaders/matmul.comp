#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][j] = finish(sum over k of W[j][k] a[i][k])
 *
 *	a[i] = x[i]                                               without NORM
 *	a[i] = x[i] gain / sqrt(mean(x[i]^2) + eps)               with NORM; the root is taken out of
 *	                                                          the sum: one pass over x
 *	x[i] is x[want[i]] with GATHER
 *	finish: STORE v; ADD r[i][j] + v; GATE silu(r[i][j]) v; SWIGLU silu(v of w[0]) (v of w[1])
 *
 * Shapes: w[p] [n[p]][k], x [m][k] f32, y and r [m][y_stride] f32. The outputs of the parts lie one
 * behind the other in a row of y; SWIGLU has two parts of the same n and one output of that width.
 * Grid: x: ceil(tiles / subgroups of a workgroup), tiles = sum over p of ceil(n[p] / TILE_N), with
 * SWIGLU ceil(n[0] / (TILE_N / 2)); y: ceil(m / TILE_M).
 * Bindings: none; addresses in struct abi_matmul. Rows beyond *m are not computed.
 *
 * A subgroup computes TILE_N rows of W (a power of two) times TILE_M rows of x; its lanes share k. The order of a
 * sum depends on k, the subgroup's size and the block format alone, never on the tile.
 */
#include "common.glsl"
#include "dtype.glsl"
#include "tile.glsl"

layout(constant_id = ABI_MATMUL_SPEC_GATHER) const uint GATHER = 0;

layout(push_constant, std430) uniform Push
{
	abi_matmul push;
};

/* Which rows of which matrix: the tile's first row j of part p, and its place in a row of y. */
struct tile {
	uint part;
	uint j;
	uint y_at;
};

bool find_tile(uint i, out tile ret)
{
	uint y_at = 0;

	[[unroll]] for (uint p = 0; p < ABI_MATMUL_MAX_PARTS; p++) {
		if (IS_SWIGLU && p > 0)
			break;
		uint n_tiles = (push.n[p] + TILE_OUT - 1) / TILE_OUT;
		if (i < n_tiles) {
			ret = tile(p, i * TILE_OUT, y_at + i * TILE_OUT);
			return true;
		}
		i -= n_tiles;
		y_at += push.n[p];
	}
	return false;
}

/*
 * The address of row r of the tile. Rows behind the matrix's last are the last one again: the loop
 * has no branches, the store has.
 */
uvec2 w_row(tile t, uint r)
{
	bool is_up = IS_SWIGLU && r >= TILE_OUT;
	uint part = is_up ? 1 : t.part;
	uvec2 base = part == 0 ? push.w[0] : part == 1 ? push.w[1] : push.w[2];
	uint j = min(t.j + (is_up ? r - TILE_OUT : r), push.n[t.part] - 1);

	return address_at(base, j, push.n_row_bytes);
}

/* Output o of row i of the tile, finished, where it lies in y. */
void store(tile t, uint i, uint o, float v)
{
	uint at = t.y_at + o;

	if (t.j + o >= push.n[t.part])
		return;
	if (FINISH == ABI_TILE_FINISH_ADD || FINISH == ABI_TILE_FINISH_GATE) {
		float r = Floats(address_at(push.r, i, 4 * push.y_stride)).at[at];
		precise float sum = r + v;
		v = FINISH == ABI_TILE_FINISH_ADD ? sum : silu(r) * v;
	}
	FloatsOut(address_at(push.y, i, 4 * push.y_stride)).at[at] = v;
}

/* Row i of x, column c of the tile: its outputs, finished and stored. */
void finish_row(tile t, uint i, int c)
{
	float scale = column_scale(c, push.k, push.eps);

	[[unroll]] for (int o0 = 0; o0 < TILE_OUT; o0 += N_LANE_OUT) {
		float y = column_output(c, o0, scale);
		if (lane() % N_COPIES == 0)
			store(t, i, o0 + lane() / N_COPIES, y);
	}
}

void start_tile(tile t, uint i0, uint m)
{
	[[unroll]] for (int r = 0; r < TILE_N; r++)
		w_rows[r] = w_row(t, r);
	[[unroll]] for (int g = 0; g < N_SHARED; g++)
		shared_rows[g] = w_row(t, shared_row(g));
	[[unroll]] for (int c = 0; c < TILE_M; c++) {
		uint i = min(i0 + c, m - 1);
		if (GATHER != 0)
			i = Words(push.want).at[i];
		x_rows[c] = address_at(push.x, i, 4 * push.k);
	}
}

void main()
{
	uint m = Words(push.m).at[0];
	uint i0 = gl_WorkGroupID.y * TILE_M;
	tile t;

	if (i0 >= m || !find_tile(subgroup_x(), t))
		return;
	start_tile(t, i0, m);
	sum_units(push.k, push.gain);
	[[unroll]] for (int c = 0; c < TILE_M; c++)
		if (i0 + c < m)
			finish_row(t, i0 + c, c);
}
