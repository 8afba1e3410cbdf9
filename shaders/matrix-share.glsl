/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATRIX_SHARE_GLSL
#define SHADERS_MATRIX_SHARE_GLSL

/*
 * Which workgroup computes what of a matrix product: for the kernel that multiplies and the one that
 * adds up what was shared (matrix.comp, matrix-sum.comp), whose push constants are these.
 *
 * A tile a workgroup leaves much of a device idle in the last round, when there are fewer tiles left
 * than it has room for; or in the only one. So the tiles of the last round, together with those of
 * the one before if there is one, are shared evenly among n_streams workgroups that run at once: the
 * steps of all these tiles lie one behind the other, and each stream has a run of them. It begins in
 * one tile and ends in another or the same; sums of parts of tiles go into `partial`, two places a
 * stream, of its first tile and of its last, and are added in the streams' order. Tiles that one
 * stream has all of, and those that are not shared, are finished at once.
 */
layout(push_constant, std430) uniform Push
{
	abi_matrix push;
};

const uint MIN_RUN = 4; /* steps; streams with fewer cost more than they save */

/* Of this step. */
uint n_m;         /* rows of x */
uint n_tiles_m;   /* rows of x are in so many tiles, which are beside each other */
uint n_steps;     /* of a tile */
uint n_shared;    /* tiles, the first ones; 0: none */
uint n_run;       /* steps of a stream */

uint count_tiles_n()
{
	uint n = 0;

	[[unroll]] for (uint p = 0; p < (IS_SWIGLU ? 1 : ABI_MATMUL_MAX_PARTS); p++)
		n += (push.n[p] + BN_OUT - 1) / BN_OUT;
	return n;
}

uint count_tiles()
{
	return count_tiles_n() * n_tiles_m;
}

void start_share()
{
	n_m = Words(push.m).at[0];
	n_tiles_m = (n_m + BM - 1) / BM;
	n_steps = push.k / BK;
	n_shared = 0;
	n_run = 0;
	if (push.n_streams == 0)
		return;
	uint n_tiles = count_tiles();
	uint n_last = n_tiles % push.n_streams;
	/* A round that is almost full is left alone. */
	if (n_last == 0 || n_last * 8 > push.n_streams * 7)
		return;
	n_shared = n_tiles < push.n_streams ? n_tiles : n_last + push.n_streams;
	n_run = max((n_shared * n_steps + push.n_streams - 1) / push.n_streams, MIN_RUN);
}

/* Where a stream's sums of its first (0) or last tile (1) are: [BM][BN]. */
uvec2 partial_at(uint stream, uint which)
{
	return address_at(push.partial, 2 * stream + which, 4 * BM * BN);
}

/* A tile's first row of x, its first row j of W of part p, and its place in a row of y. */
struct tile {
	uint i;
	uint part;
	uint j;
	uint y_at;
};

tile get_tile(uint number)
{
	uint i0 = number % n_tiles_m * BM, i = number / n_tiles_m, y_at = 0;

	[[unroll]] for (uint p = 0; p < ABI_MATMUL_MAX_PARTS - 1; p++) {
		uint n_tiles = (push.n[p] + BN_OUT - 1) / BN_OUT;
		if (IS_SWIGLU || i < n_tiles)
			return tile(i0, p, i * BN_OUT, y_at + i * BN_OUT);
		i -= n_tiles;
		y_at += push.n[p];
	}
	return tile(i0, ABI_MATMUL_MAX_PARTS - 1, i * BN_OUT, y_at + i * BN_OUT);
}

/* v is of row i and of row j of the matrix of a tile, finished with SWIGLU. */
void put_output(tile t, uint i, uint j, float v)
{
	if (t.i + i >= n_m || t.j + j >= push.n[t.part])
		return;
	uint at = t.y_at + j;
	if (FINISH == ABI_TILE_FINISH_ADD || FINISH == ABI_TILE_FINISH_GATE) {
		float r = Floats(address_at(push.r, t.i + i, 4 * push.y_stride)).at[at];
		v = FINISH == ABI_TILE_FINISH_ADD ? r + v : silu(r) * v;
	}
	FloatsOut(address_at(push.y, t.i + i, 4 * push.y_stride)).at[at] = v;
}

#endif
