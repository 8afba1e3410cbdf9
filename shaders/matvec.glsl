/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATVEC_GLSL
#define SHADERS_MATVEC_GLSL

/*
 * The kernels that struct abi_matvec is for: which tiles there are, in which order a subgroup makes
 * them, and what becomes of their outputs. Included behind matvec-tile.glsl.
 */
layout(push_constant, std430) uniform Push
{
	abi_matvec push;
};

/* Which rows of which matrix: the tile's first row j of part p, and its place in a row of y. */
struct tile {
	uint part;
	uint j;
	uint y_at;
};

/* The kernel's: x of the workgroup's columns, then rounds of k. */
void find_columns(uint i0, uint m);
void find_column(uint i0); /* instead, where not needs_m(): of a row that may be behind the last */
void begin_tile();
void fetch_round(uint round); /* starts the loads of w_rows */
void hold_round();            /* what was loaded is what is summed now */
void add_round(uint round);
void end_tile();

/* False: there is none, and ret is of nobody's rows. Without branches: what is loaded is not late. */
bool find_tile(uint i, out tile ret)
{
	uint y_at = 0;
	bool is_found = false;

	ret = tile(0, 0, 0);
	[[unroll]] for (uint p = 0; p < (IS_SWIGLU ? 1 : ABI_MATMUL_MAX_PARTS); p++) {
		uint n_tiles = (push.n[p] + TILE_OUT - 1) / TILE_OUT;
		bool is_here = !is_found && i < n_tiles;
		ret.part = is_here ? p : ret.part;
		ret.j = is_here ? i * TILE_OUT : ret.j;
		ret.y_at = is_here ? y_at + i * TILE_OUT : ret.y_at;
		is_found = is_found || is_here;
		i -= n_tiles;
		y_at += push.n[p];
	}
	return is_found;
}

/* Rows behind the matrix's last are the last one again: the loop has no branches, the store has. */
void start_tile(tile t)
{
	[[unroll]] for (int r = 0; r < ROWS; r++) {
		bool is_up = IS_SWIGLU && r >= TILE_OUT;
		uint part = is_up ? 1 : t.part;
		uvec2 base = part == 0 ? push.w[0] : part == 1 ? push.w[1] : push.w[2];
		uint j = min(t.j + (is_up ? r - TILE_OUT : r), push.n[t.part] - 1);
		w_rows[r] = address_at(base, j, push.n_row_bytes);
	}
}

/* Output `at` of row i of y, finished. */
float store(uint i, uint at, float v)
{
	if (FINISH == ABI_TILE_FINISH_ADD) {
		float r = Floats(address_at(push.r, i, 4 * push.y_stride)).at[at];
		precise float sum = r + v;
		v = sum;
	}
	if (NEXT == 0 || push.y != uvec2(0))
		FloatsOut(address_at(push.y, i, 4 * push.y_stride)).at[at] = v;
	return v;
}

/* at: the tile's number among those of W. */
void finish_tile(tile t, uint at, uint i0, uint m)
{
	[[unroll]] for (int o0 = 0; o0 < N_OUT; o0 += N_FOLD) {
		float v = fold_outputs(o0, 0);
		if (IS_SWIGLU)
			v = silu(v) * fold_outputs(o0, TILE_OUT);
		uint o = o0 + lane() / N_COPIES;
		uint c = o / TILE_OUT, r = o % TILE_OUT;
		if (lane() % N_COPIES != 0 || i0 + c >= m || t.j + r >= push.n[t.part])
			continue;
		v = store(i0 + c, t.y_at + r, v);
		if (NEXT != 0)
			run_outputs[32 * c + (at * TILE_OUT + r) % 32] = v;
	}
}

/* The workgroup's run is complete: its outputs from 32 `run` on, as bytes. All of it calls it. */
void stage_run(uint run, uint i0, uint m)
{
	barrier();
	for (uint c = (gl_SubgroupID * SUBGROUP + lane()) / 8; c < COLUMNS; c += LOCAL_SIZE / 8) {
		if (i0 + c >= m)
			break;
		uvec2 row = address_at(push.next, i0 + c, ABI_QUANT_ROW_BYTES(push.y_stride));
		stage_outputs(c, run, row, push.y_stride, push.next_gain);
	}
	barrier();
}

tile next_tile;
bool has_next;
bool is_fetched; /* without AHEAD: the round's loads were started before */

/* A round of the current tile; the loads of what comes next are started behind its own. */
void compute_round(uint round, uint n_rounds)
{
	bool is_last = round + 1 == n_rounds;

	if (AHEAD == 0 && !is_fetched)
		fetch_round(round);
	is_fetched = false;
	hold_round();
	if (is_last && has_next)
		start_tile(next_tile);
	if (AHEAD != 0 && (!is_last || has_next))
		fetch_round(is_last ? 0 : round + 1);
	add_round(round);
}

/* Finds x of the workgroup, and *m. False: none of its columns is of this step. */
bool find_x(uint i0, out uint ret_m)
{
	if (!needs_m())
		find_column(i0);
	/* Which may lie in the host's memory: far. */
	ret_m = Words(push.m).at[0];
	if (needs_m() && i0 < ret_m)
		find_columns(i0, ret_m);
	return !needs_m() || i0 < ret_m;
}

/* All of the subgroup's tiles, in n_rounds of k each. */
void compute_tiles(uint n_rounds)
{
	uint i0 = gl_WorkGroupID.y * COLUMNS, m;
	tile t;
	bool has_tile = find_tile(tile_number(0), t);

	/* Before all else: nothing that is known later is needed for it. */
	is_fetched = has_tile;
	if (has_tile) {
		start_tile(t);
		fetch_round(0);
	}
	if (!find_x(i0, m))
		return;
	for (uint i = 0; has_tile; i++) {
		has_next = find_tile(tile_number(i + 1), next_tile);
		clear_sums();
		begin_tile();
		for (uint round = 0; round < n_rounds; round++)
			compute_round(round, n_rounds);
		end_tile();
		finish_tile(t, tile_number(i), i0, m);
		if (NEXT != 0 && (i + 1) % N_RUN == 0)
			stage_run(tile_number(i) * TILE_OUT / 32, i0, m);
		t = next_tile;
		has_tile = has_next;
	}
}

#endif
