#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][j] = finish(sum over k of W[j][k] a[i][k]) for few rows of x, with integer dot products
 *
 *	a[i] = x[i] as bytes with a scale for each 32, as quantize.comp makes them: with UNITS the
 *	       kernel does that itself, each workgroup for its own use, else it reads staging
 *	a[i] = 1 / sqrt(mean(x[i]^2) + eps) times the bytes of x[i] gain  with NORM
 *	x[i] is x[want[i]] with GATHER
 *	finish: STORE v; ADD r[i][j] + v; SWIGLU silu(v of w[0]) (v of w[1]); with NEXT y is staged
 *	        too, or only
 *
 * Shapes: w[p] [n[p]][k], x [m][k] f32, y and r [m][y_stride] f32. The outputs of the parts lie one
 * behind the other in a row of y; SWIGLU has two parts of the same n and one output of that width.
 * Grid: x: at most ceil(tiles / what a workgroup has in one go: a tile for each SPLIT of its
 * subgroups, with NEXT the 32 outputs of a run), of fewer each takes several; tiles = sum
 * over p of ceil(n[p] / ROWS), with SWIGLU ceil(n[0] / (ROWS / 2)); y: ceil(m / COLUMNS).
 * Bindings: none; addresses in struct abi_matvec. Rows beyond *m are not stored.
 *
 * A subgroup computes ROWS rows of W times COLUMNS rows of x, both powers of two; each word of W is
 * read once. Its lanes share k: lane l takes units l, l + SUBGROUP, ... one after the other, whatever
 * the tile, so that the order of a sum depends on k, the subgroup's size and the format alone.
 * With HOLD, for one row of x at a time, x is read once and stays in registers while the subgroup,
 * or SPLIT of them that share k, walks over its tiles.
 * Memory is kept busy by the loads of many subgroups, and with AHEAD by those of the next round.
 */
#include "common.glsl"
#include "quant.glsl"
#include "matvec-tile.glsl"

layout(constant_id = ABI_MATVEC_SPEC_UNITS) const uint UNITS = 0;
layout(constant_id = ABI_MATVEC_SPEC_HOLD) const int HOLD = 0;
/* One row is taken before it is known whether it counts: m is only for the store, and for want. */
bool needs_m()
{
	return COLUMNS > 1 || (UNITS > 0 && GATHER != 0);
}

#include "matvec.glsl"
#include "matvec-dtype.glsl"
#include "matvec-dot.glsl"

shared float x_squares[COLUMNS * N_SUBGROUPS];

/* Words of x that a lane loads before it makes any: those of one column that will be kept. */
const uint N_LANE_WORDS = (16 * UNITS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const int N_BATCH = HOLD == 0 || UNITS == 0 ? 1 : N_LANE_WORDS < 8 ? int(N_LANE_WORDS) : 8;

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vecs { vec4 at[]; };

/* The four numbers of word i of a row. What is kept comes from whole sixteens of bytes. */
vec4 load_word(uvec2 row, uint i)
{
	vec4 v;

	if (HOLD > 0 && ORDER == ABI_QUANT_ORDER_PLAIN)
		return Vecs(row).at[i];
	[[unroll]] for (uint b = 0; b < 4; b++)
		v[b] = Floats(row).at[i / 8 * 32 + quant_number(ORDER, i % 8, b)];
	return v;
}

vec4 row_words[N_BATCH];
vec4 gain_words[N_BATCH];

/* Starts the loads of the lane's words of row i, a batch from this one on. */
void fetch_words(uint i, uint first)
{
	uint n_words = push.k / 4;
	uint from = GATHER != 0 ? Words(push.want).at[i] : i;
	uvec2 row = address_at(push.x, from, 4 * push.k);

	[[unroll]] for (int b = 0; b < N_BATCH; b++) {
		uint at = min(first + b * LOCAL_SIZE + lane(), n_words - 1);
		row_words[b] = load_word(row, at);
		if (NORM != 0)
			gain_words[b] = load_word(push.gain, at);
	}
}

/* What was loaded, into the workgroup's memory as column c; the lane's squares. */
float quant_words(uint first, int c)
{
	uint n_words = push.k / 4, n_units = push.k / 64;
	float squares = 0.0;

	[[unroll]] for (int b = 0; b < N_BATCH; b++) {
		uint at = first + b * LOCAL_SIZE + lane();
		bool is_in = at < n_words;
		vec4 v = row_words[b];
		if (NORM != 0) {
			[[unroll]] for (int e = 0; e < 4; e++)
				squares = is_in ? fma(v[e], v[e], squares) : squares;
			v *= gain_words[b];
		}
		quant s = quant_word(v);
		if (is_in)
			x_quads[c * N_X_QUADS + quad_of_word(at, n_units)][at % 4] = s.word;
		if (is_in && at % 8 == 0)
			x_halves[c * N_X_HALVES + half_of_word(at, n_units)] =
				uvec2(floatBitsToUint(s.scale), s.sums);
	}
	return squares;
}

/* Row i of x into the workgroup's memory as column c; the lane's squares. The first loads are made. */
float quant_row(uint i, int c)
{
	float squares = 0.0;

	for (uint first = gl_SubgroupID * SUBGROUP; first < push.k / 4;
		first += N_BATCH * LOCAL_SIZE) {
		if (first >= LOCAL_SIZE)
			fetch_words(i, first);
		squares += quant_words(first, c);
	}
	return squares;
}

void fetch_row_words(uint i)
{
	fetch_words(i, gl_SubgroupID * SUBGROUP);
}

void quant_rows(uint i0, uint m)
{
	[[unroll]] for (int c = 0; c < COLUMNS; c++) {
		uint i = min(i0 + c, m - 1);
		if (HOLD == 0)
			fetch_row_words(i);
		float squares = quant_row(i, c);
		if (NORM == 0)
			continue;
		squares = sum_lanes(squares);
		if (lane() == 0)
			x_squares[c * N_SUBGROUPS + gl_SubgroupID] = squares;
	}
	barrier();
	[[unroll]] for (int c = 0; c < COLUMNS; c++) {
		float squares = 0.0;
		if (NORM == 0)
			continue;
		[[unroll]] for (uint s = 0; s < N_SUBGROUPS; s++)
			squares += x_squares[c * N_SUBGROUPS + s];
		x_scales[c] = norm_scale(squares, push.k, push.eps);
	}
}

/* Where the bytes are that somebody left, and the norm's factor of its sums of squares. */
void find_rows(uint i0, uint m)
{
	[[unroll]] for (int c = 0; c < COLUMNS; c++) {
		uint i = min(i0 + c, m - 1);
		find_row(c, address_at(push.staging, i, ABI_QUANT_ROW_BYTES(push.k)));
		if (NORM != 0)
			x_scales[c] = find_scale(c, push.eps);
	}
}

void find_columns(uint i0, uint m)
{
	if (UNITS > 0)
		quant_rows(i0, m);
	else
		find_rows(i0, m);
}

void find_column(uint i0)
{
	find_columns(i0, i0 + 1);
}

/* What is kept of row i0, in two: its loads, and what waits for them. */
void begin_column(uint i0)
{
	if (UNITS > 0) {
		fetch_row_words(i0);
		return;
	}
	find_row(0, address_at(push.staging, i0, ABI_QUANT_ROW_BYTES(push.k)));
	fetch_x();
}

void end_column(uint i0)
{
	if (UNITS > 0) {
		quant_rows(i0, i0 + 1);
		fetch_x();
	} else if (NORM != 0) {
		x_scales[0] = find_scale(0, push.eps);
	}
	keep_x();
}

void begin_tile()
{
}

void end_tile()
{
}

#include "matvec-kept.glsl"

void main()
{
	if (HOLD > 0)
		compute_kept();
	else
		compute_tiles((push.k / 64 + ROUND_UNITS - 1) / ROUND_UNITS);
}
