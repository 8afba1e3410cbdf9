/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_SKINNY_ORDER_GLSL
#define SHADERS_SKINNY_ORDER_GLSL

/*
 * Where the f16 of x lie for skinny.comp (ABI_SKINNY_ORDER_*): units of eight neighbours, those
 * side by side that the lanes of a subgroup load at once.
 *
 *	[k / CHUNK][n_sets][QUADS][COLUMNS][SUBGROUP] units
 *
 * ORDER and LANES are the kernel's, which includes it behind common.glsl.
 */
const uint QUADS = 16 / LANES;                            /* units of a chunk of a lane */
const uint COLUMNS = ABI_SKINNY_COLUMNS * LANES / SUBGROUP; /* rows of x of a lane in a set */

/* Unit u of a chunk is unit order_at(u) % 4 of piece order_at(u) / 4 of W. */
uint order_at(uint u)
{
	return ORDER == ABI_SKINNY_ORDER_BY8   ? u % 4 * 4 + u / 4
	       : ORDER == ABI_SKINNY_ORDER_BY16 ? (u & 9) | (u & 2) << 1 | (u & 4) >> 1
						: u;
}

/* The place of unit u of row i. */
uint order_place(uint i, uint u, uint n_sets)
{
	const uint n_step = SUBGROUP / LANES; /* rows side by side */
	uint at = order_at(u % 16), in_set = i % ABI_SKINNY_COLUMNS;
	uint place = (u / 16 * n_sets + i / ABI_SKINNY_COLUMNS) * QUADS + at % QUADS;

	place = place * COLUMNS + in_set / n_step;
	return place * SUBGROUP + in_set % n_step * LANES + at / QUADS;
}

#endif
