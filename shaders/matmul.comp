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

layout(constant_id = ABI_MATMUL_SPEC_TILE_N) const int TILE_N = 4;
layout(constant_id = ABI_MATMUL_SPEC_TILE_M) const int TILE_M = 1;
layout(constant_id = ABI_MATMUL_SPEC_NORM) const uint NORM = 0;
layout(constant_id = ABI_MATMUL_SPEC_GATHER) const uint GATHER = 0;
layout(constant_id = ABI_MATMUL_SPEC_FINISH) const uint FINISH = ABI_MATMUL_FINISH_STORE;

const bool IS_SWIGLU = FINISH == ABI_MATMUL_FINISH_SWIGLU;
const int TILE_OUT = IS_SWIGLU ? TILE_N / 2 : TILE_N; /* outputs of a tile along n */
const int N_SHARED = (TILE_N + 7) / 8;                /* eights of rows, see load_shared() */
const int N_LANE_OUT = TILE_OUT < SUBGROUP ? TILE_OUT : int(SUBGROUP); /* summed at once */
const uint N_COPIES = SUBGROUP / N_LANE_OUT;          /* lanes that end with the same output */

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

/*
 * The sums over all lanes of N_LANE_OUT accumulators at once, in the order of sum_lanes(): at each
 * distance the vectors are folded in pairs, one result into the lanes of either side. The lanes are
 * left with output lane() / N_COPIES of the N_LANE_OUT.
 */
float sum_outputs(float v[N_LANE_OUT])
{
	[[unroll]] for (int level = 1; level <= MAX_LEVELS; level++) {
		uint d = SUBGROUP >> level;
		int n = N_LANE_OUT >> level;
		bool is_upper = (lane() & d) != 0;

		if (d > 0 && n == 0)
			v[0] += subgroupShuffleXor(v[0], d);
		[[unroll]] for (int o = 0; o < N_LANE_OUT / 2; o++) {
			if (o >= n)
				continue;
			float kept = is_upper ? v[o + n] : v[o];
			float given = is_upper ? v[o] : v[o + n];
			v[o] = kept + subgroupShuffleXor(given, d);
		}
	}
	return v[0];
}

/* Output o of row i of the tile, finished, where it lies in y. */
void store(tile t, uint i, uint o, float v)
{
	uint at = t.y_at + o;

	if (t.j + o >= push.n[t.part])
		return;
	if (FINISH == ABI_MATMUL_FINISH_ADD || FINISH == ABI_MATMUL_FINISH_GATE) {
		float r = Floats(address_at(push.r, i, 4 * push.y_stride)).at[at];
		precise float sum = r + v;
		v = FINISH == ABI_MATMUL_FINISH_ADD ? sum : silu(r) * v;
	}
	FloatsOut(address_at(push.y, i, 4 * push.y_stride)).at[at] = v;
}

/* Row i of the tile: its sums, scaled, finished and stored. */
void finish_row(tile t, uint i, float scale, float column[TILE_N])
{
	[[unroll]] for (int o0 = 0; o0 < TILE_OUT; o0 += N_LANE_OUT) {
		float v[N_LANE_OUT];
		[[unroll]] for (int o = 0; o < N_LANE_OUT; o++)
			v[o] = column[o0 + o];
		precise float y = scale * sum_outputs(v);
		if (IS_SWIGLU) {
			[[unroll]] for (int o = 0; o < N_LANE_OUT; o++)
				v[o] = column[TILE_OUT + o0 + o];
			y = silu(y) * (scale * sum_outputs(v));
		}
		if (lane() % N_COPIES == 0)
			store(t, i, o0 + lane() / N_COPIES, y);
	}
}

/* What a subgroup works on: rows of W and of x, and the tile's sums. */
uvec2 w_rows[TILE_N];
uvec2 shared_rows[N_SHARED]; /* see load_shared() */
uvec2 x_rows[TILE_M];
float sums[TILE_N][TILE_M];
float squares[TILE_M];

void start_tile(tile t, uint i0, uint m)
{
	[[unroll]] for (int r = 0; r < TILE_N; r++)
		w_rows[r] = w_row(t, r);
	[[unroll]] for (int g = 0; g < N_SHARED; g++)
		shared_rows[g] = w_row(t, min(8 * g + lane() % 8, TILE_N - 1));
	[[unroll]] for (int c = 0; c < TILE_M; c++) {
		uint i = min(i0 + c, m - 1);
		if (GATHER != 0)
			i = Words(push.want).at[i];
		x_rows[c] = address_at(push.x, i, 4 * push.k);
		squares[c] = 0.0;
		[[unroll]] for (int r = 0; r < TILE_N; r++)
			sums[r][c] = 0.0;
	}
}

/* Adds the lane's share of unit u of k to all sums. */
void add_unit(uint u)
{
	uint raw[TILE_N][N_RAW];
	uint shared_words[N_SHARED];
	float a[TILE_M][N_ELEMENTS];

	[[unroll]] for (int r = 0; r < TILE_N; r++)
		load_raw(w_rows[r], u, raw[r]);
	[[unroll]] for (int g = 0; g < N_SHARED; g++)
		shared_words[g] = load_shared(shared_rows[g], u);
	[[unroll]] for (int c = 0; c < TILE_M; c++)
		[[unroll]] for (int e = 0; e < N_ELEMENTS; e++)
			a[c][e] = Floats(x_rows[c]).at[element(u, e)];
	if (NORM != 0) {
		[[unroll]] for (int e = 0; e < N_ELEMENTS; e++) {
			float gain = Floats(push.gain).at[element(u, e)];
			[[unroll]] for (int c = 0; c < TILE_M; c++) {
				squares[c] = fma(a[c][e], a[c][e], squares[c]);
				a[c][e] *= gain;
			}
		}
	}
	[[unroll]] for (int r = 0; r < TILE_N; r++) {
		float w[N_ELEMENTS];
		decode(raw[r], shared_words[r / 8], r % 8, w);
		[[unroll]] for (int c = 0; c < TILE_M; c++)
			[[unroll]] for (int e = 0; e < N_ELEMENTS; e++)
				sums[r][c] = fma(w[e], a[c][e], sums[r][c]);
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
	for (uint u = first_unit(); u < n_units(push.k); u += unit_stride())
		add_unit(u);
	[[unroll]] for (int c = 0; c < TILE_M; c++) {
		float scale = 1.0;
		float v[TILE_N];
		if (NORM != 0)
			scale = norm_scale(sum_lanes(squares[c]), push.k, push.eps);
		[[unroll]] for (int r = 0; r < TILE_N; r++)
			v[r] = sums[r][c];
		if (i0 + c < m)
			finish_row(t, i0 + c, scale, v);
	}
}
