/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATVEC_TILE_GLSL
#define SHADERS_MATVEC_TILE_GLSL

/*
 * What all kernels for few rows of x have in common: tiles of ROWS rows of W by COLUMNS rows of x,
 * their sums in the registers of a subgroup whose lanes share k, and how those become outputs.
 * Included behind common.glsl and quant.glsl.
 *
 * With NEXT a workgroup makes runs of 32 outputs, and stages them for whoever multiplies y next,
 * with the gain of that one's norm.
 */
layout(constant_id = ABI_MATVEC_SPEC_ROWS) const int ROWS = 2;
layout(constant_id = ABI_MATVEC_SPEC_COLUMNS) const int COLUMNS = 1;
layout(constant_id = ABI_MATVEC_SPEC_UNROLL) const int UNROLL = 1;
layout(constant_id = ABI_MATVEC_SPEC_AHEAD) const uint AHEAD = 0;
layout(constant_id = ABI_MATVEC_SPEC_FINISH) const uint FINISH = ABI_TILE_FINISH_STORE;
layout(constant_id = ABI_MATVEC_SPEC_WHOLE) const uint WHOLE = 0;
layout(constant_id = ABI_MATVEC_SPEC_NEXT) const uint NEXT = 0;
layout(constant_id = ABI_MATVEC_SPEC_NEXT_NORM) const uint NEXT_NORM = 0;
layout(constant_id = ABI_MATVEC_SPEC_SPLIT) const uint SPLIT = 1;
layout(constant_id = ABI_MATVEC_SPEC_RUN) const uint RUN = 1;

const bool IS_SWIGLU = FINISH == ABI_TILE_FINISH_SWIGLU;
const int TILE_OUT = IS_SWIGLU ? ROWS / 2 : ROWS; /* outputs of a tile along n */
const int N_OUT = TILE_OUT * COLUMNS;
const int N_FOLD = N_OUT < SUBGROUP ? N_OUT : int(SUBGROUP); /* summed over the lanes at once */
const uint N_COPIES = SUBGROUP / N_FOLD;                     /* lanes that end with the same output */
const uint N_SUBGROUPS = LOCAL_SIZE / SUBGROUP;
const uint N_TEAMS = N_SUBGROUPS / SPLIT; /* of subgroups that share tiles */
/* Tiles of a team in a row, one after the other: all of a workgroup's are side by side. */
const uint N_RUN = NEXT != 0 ? 32 / (TILE_OUT * N_TEAMS) : RUN;

uvec2 w_rows[ROWS];
float sums[ROWS][COLUMNS];
float x_scales[COLUMNS]; /* of the norm */

/* The number of the team's i-th tile. */
uint tile_number(uint i)
{
	uint run = gl_WorkGroupID.x + i / N_RUN * gl_NumWorkGroups.x;

	return (run * N_RUN + i % N_RUN) * N_TEAMS + gl_SubgroupID / SPLIT;
}

/*
 * The sums over all lanes of N_FOLD numbers at once: at each distance the vectors are folded in
 * pairs, one result into the lanes of either side. The lanes are left with number
 * lane() / N_COPIES of the N_FOLD.
 */
float fold(float v[N_FOLD])
{
	[[unroll]] for (int level = 1; level <= MAX_LEVELS; level++) {
		uint d = SUBGROUP >> level;
		int n = N_FOLD >> level;
		bool is_upper = (lane() & d) != 0;

		if (d > 0 && n == 0)
			v[0] += subgroupShuffleXor(v[0], d);
		[[unroll]] for (int o = 0; o < N_FOLD / 2; o++) {
			if (o >= n)
				continue;
			float kept = is_upper ? v[o + n] : v[o];
			float given = is_upper ? v[o] : v[o + n];
			v[o] = kept + subgroupShuffleXor(given, d);
		}
	}
	return v[0];
}

/* Outputs o0 and on of the tile, those of a column side by side, of the rows of W from r0 on. */
float fold_outputs(int o0, int r0)
{
	float v[N_FOLD];

	[[unroll]] for (int o = 0; o < N_FOLD; o++) {
		int c = (o0 + o) / TILE_OUT, r = r0 + (o0 + o) % TILE_OUT;
		v[o] = NORM != 0 ? sums[r][c] * x_scales[c] : sums[r][c];
	}
	return fold(v);
}

shared float run_outputs[NEXT != 0 ? 32 * COLUMNS : 1];

/*
 * The workgroup's outputs from 32 `run` on of column c, as bytes in a row of staging for a
 * multiplication of k numbers with this gain. Eight lanes call it, all of run_outputs is there.
 */
void stage_outputs(uint c, uint run, uvec2 row, uint k, uvec2 gain)
{
	float squares = 0.0;
	vec4 v;

	[[unroll]] for (uint b = 0; b < 4; b++) {
		uint e = quant_number(NEXT - 1, lane() % 8, b);
		v[b] = run_outputs[32 * c + e];
		squares = fma(v[b], v[b], squares);
		if (NEXT_NORM != 0)
			v[b] *= Floats(gain).at[32 * run + e];
	}
	put_word(row, k, 8 * run + lane() % 8, quant_word(v), NEXT_NORM != 0, sum_eight(squares));
}

void clear_sums()
{
	[[unroll]] for (int r = 0; r < ROWS; r++)
		[[unroll]] for (int c = 0; c < COLUMNS; c++)
			sums[r][c] = 0.0;
}

#endif
