/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_TILE_GLSL
#define SHADERS_TILE_GLSL

/*
 * A tile of a matrix product in the registers of a subgroup: TILE_N rows of W (a power of two) times
 * TILE_M rows of x; the lanes share k. The kernel puts the addresses of the rows into w_rows,
 * shared_rows and x_rows, then sum_units() makes all sums, and column_output() gives those of one
 * row of x. With SWIGLU the first half of the rows of W is of the gate, the second of the up matrix.
 *
 * The order of a sum depends on k, the subgroup's size and the block format alone, never on the
 * tile. Included behind dtype.glsl.
 */
layout(constant_id = ABI_TILE_SPEC_N) const int TILE_N = 4;
layout(constant_id = ABI_TILE_SPEC_M) const int TILE_M = 1;
layout(constant_id = ABI_TILE_SPEC_NORM) const uint NORM = 0;
layout(constant_id = ABI_TILE_SPEC_FINISH) const uint FINISH = ABI_TILE_FINISH_STORE;

const bool IS_SWIGLU = FINISH == ABI_TILE_FINISH_SWIGLU;
const int TILE_OUT = IS_SWIGLU ? TILE_N / 2 : TILE_N; /* outputs of a tile along n */
const int N_SHARED = (TILE_N + 7) / 8;                /* eights of rows, see load_shared() */
const int N_LANE_OUT = TILE_OUT < SUBGROUP ? TILE_OUT : int(SUBGROUP); /* summed at once */
const uint N_COPIES = SUBGROUP / N_LANE_OUT;          /* lanes that end with the same output */

/* What a subgroup works on: rows of W and of x, and the tile's sums. */
uvec2 w_rows[TILE_N];
uvec2 shared_rows[N_SHARED];
uvec2 x_rows[TILE_M];
float sums[TILE_N][TILE_M];
float squares[TILE_M];

/* The lane's share of a unit of the rows of W. */
uint w_raw[TILE_N][N_RAW];
uint w_shared[N_SHARED];

/* The row of the tile that the lane loads the shared words of, of eight g. */
uint shared_row(uint g)
{
	return min(8 * g + lane() % 8, TILE_N - 1);
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

void load_unit(uint u)
{
	[[unroll]] for (int r = 0; r < TILE_N; r++)
		load_raw(w_rows[r], u, w_raw[r]);
	[[unroll]] for (int g = 0; g < N_SHARED; g++)
		w_shared[g] = load_shared(shared_rows[g], u);
}

/* Adds the lane's share of unit u of k, which is loaded, to all sums. */
void add_unit(uint u, uvec2 gain_at)
{
	float a[TILE_M][N_ELEMENTS];

	[[unroll]] for (int c = 0; c < TILE_M; c++)
		[[unroll]] for (int e = 0; e < N_ELEMENTS; e++)
			a[c][e] = Floats(x_rows[c]).at[element(u, e)];
	if (NORM != 0) {
		[[unroll]] for (int e = 0; e < N_ELEMENTS; e++) {
			float gain = Floats(gain_at).at[element(u, e)];
			[[unroll]] for (int c = 0; c < TILE_M; c++) {
				squares[c] = fma(a[c][e], a[c][e], squares[c]);
				a[c][e] *= gain;
			}
		}
	}
	[[unroll]] for (int r = 0; r < TILE_N; r++) {
		float w[N_ELEMENTS];
		decode(w_raw[r], w_shared[r / 8], r % 8, w);
		[[unroll]] for (int c = 0; c < TILE_M; c++)
			[[unroll]] for (int e = 0; e < N_ELEMENTS; e++)
				sums[r][c] = fma(w[e], a[c][e], sums[r][c]);
	}
}

void clear_sums()
{
	[[unroll]] for (int c = 0; c < TILE_M; c++) {
		squares[c] = 0.0;
		[[unroll]] for (int r = 0; r < TILE_N; r++)
			sums[r][c] = 0.0;
	}
}

/* All of k; gain_at: with NORM. */
void sum_units(uint k, uvec2 gain_at)
{
	clear_sums();
	for (uint u = first_unit(); u < n_units(k); u += unit_stride()) {
		load_unit(u);
		add_unit(u, gain_at);
	}
}

/* What the sums of row c of x are to be multiplied by. */
float column_scale(int c, uint k, float eps)
{
	return NORM != 0 ? norm_scale(sum_lanes(squares[c]), k, eps) : 1.0;
}

/* Of row c of x: W x, or the SwiGLU of it, for output o0 + lane() / N_COPIES of the tile. */
float column_output(int c, int o0, float scale)
{
	float v[N_LANE_OUT];

	[[unroll]] for (int o = 0; o < N_LANE_OUT; o++)
		v[o] = sums[o0 + o][c];
	precise float y = scale * sum_outputs(v);
	if (IS_SWIGLU) {
		[[unroll]] for (int o = 0; o < N_LANE_OUT; o++)
			v[o] = sums[TILE_OUT + o0 + o][c];
		y = silu(y) * (scale * sum_outputs(v));
	}
	return y;
}

#endif
