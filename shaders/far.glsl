/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_FAR_GLSL
#define SHADERS_FAR_GLSL

/*
 * sum_units() for rows of W on the other side of a bus. There the part of a 128-byte line that one
 * load of a subgroup wants is a request of its own, and a small one costs the bus almost as much as
 * a whole line: with PCI Express some 24 bytes beside its data. The words of Q8_0_X2 that the lanes
 * want at once lie in pieces of 32 bytes. So a load here is a line: SUBGROUP words in order, one a
 * lane, beginning at a multiple of their size. Lanes then take what they decode from each other.
 * Words, their lanes and the order of sums are those of sum_units(), to the bit.
 *
 * f32, f16 and bf16 load whole lines anyway. The other formats are read as in device memory: a load
 * of 32 lanes wants 64 or 128 bytes in a row, but for scales. Included behind tile.glsl.
 */
#if defined(DTYPE_Q8_0_X2)

const uint N_ROUND_UNITS = SUBGROUP / 8;          /* units that a subgroup adds at once */
const uint N_ROUND_WORDS = 17 * N_ROUND_UNITS;    /* 2 1/8 lines, */
const int MAX_LINES = 4;                          /* which begin anywhere in one */
const uint NO_LINE = 0xffffffffu;

uint lines[TILE_N][MAX_LINES];
uint last_line[TILE_N]; /* the lane's word of the line that was loaded last */
uint last_number[TILE_N];

/* Words between the boundary before the row and the row. */
uint row_skip(int r)
{
	return w_rows[r].x / 4 % SUBGROUP;
}

/* The lane's word of a line of row r; what is beside the row is not touched. */
uint load_line(int r, uint number, uint n_row_words)
{
	int at = int(number * SUBGROUP + lane()) - int(row_skip(r));

	return Words(w_rows[r]).at[clamp(at, 0, int(n_row_words) - 1)];
}

/* The lines with the words [first, first + N_ROUND_WORDS), counted from the boundary. */
void load_lines(int r, uint first, uint n_row_words)
{
	uint number = first / SUBGROUP;
	uint end = (first + N_ROUND_WORDS - 1) / SUBGROUP; /* 2 or 3 lines on */

	if (number == last_number[r])
		lines[r][0] = last_line[r];
	else
		lines[r][0] = load_line(r, number, n_row_words);
	lines[r][1] = load_line(r, number + 1, n_row_words);
	lines[r][2] = load_line(r, number + 2, n_row_words);
	lines[r][3] = 0;
	if (end == number + 3)
		lines[r][3] = load_line(r, end, n_row_words);
	last_line[r] = end == number + 3 ? lines[r][3] : lines[r][2];
	last_number[r] = end;
}

/* Word i of the lines, whichever lane has it. */
uint take_word(int r, uint i)
{
	uint v = 0;

	[[unroll]] for (int n = 0; n < MAX_LINES; n++) {
		uint word = subgroupShuffle(lines[r][n], i % SUBGROUP);
		v = i / SUBGROUP == n ? word : v;
	}
	return v;
}

/* What load_unit() would load; in all lanes. */
void take_unit(uint first_word)
{
	uint l = lane() % 8;

	[[unroll]] for (int r = 0; r < TILE_N; r++) {
		uint at = (row_skip(r) + first_word) % SUBGROUP + 17 * (lane() / 8);
		uint word8 = take_word(r, at + 8);
		w_raw[r][0] = take_word(r, at + (l == 7 ? 0 : 1 + l));
		w_raw[r][1] = take_word(r, at + 9 + l);
		if (l == r % 8)
			w_shared[r / 8] = word8;
	}
}

void sum_far(uint k, uvec2 gain_at)
{
	clear_sums();
	[[unroll]] for (int r = 0; r < TILE_N; r++)
		last_number[r] = NO_LINE;
	for (uint u0 = 0; u0 < n_units(k); u0 += N_ROUND_UNITS) {
		[[unroll]] for (int r = 0; r < TILE_N; r++)
			load_lines(r, row_skip(r) + 17 * u0, 17 * n_units(k));
		take_unit(17 * u0);
		uint u = u0 + lane() / 8;
		if (u < n_units(k))
			add_unit(u, gain_at);
	}
}

#else

void sum_far(uint k, uvec2 gain_at)
{
	sum_units(k, gain_at);
}

#endif

#endif
