/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_SKINNY_ORDER_GLSL
#define SHADERS_SKINNY_ORDER_GLSL

/*
 * Where the f16 of x lie for skinny.comp (ABI_SKINNY_ORDER_*): units of eight neighbours, those
 * side by side that the lanes of a subgroup load at once.
 *
 *	[k / CHUNK][n_sets][units of a lane in a chunk][rows of a lane in a set][SUBGROUP] units
 *
 * ORDER and LANES are the kernel's, which includes it behind common.glsl.
 */
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
	const uint n_lanes = LANES, n_step = SUBGROUP / n_lanes; /* rows side by side */
	const uint n_quads = 16 / n_lanes, n_columns = ABI_SKINNY_COLUMNS / n_step;
	uint at = order_at(u % 16), in_set = i % ABI_SKINNY_COLUMNS;
	uint place = (u / 16 * n_sets + i / ABI_SKINNY_COLUMNS) * n_quads + at % n_quads;

	place = place * n_columns + in_set / n_step;
	return place * SUBGROUP + in_set % n_step * n_lanes + at / n_quads;
}


const float ORDER_MAX = 65504.0;

uint order_pack(float a, float b)
{
	return packFloat2x16(f16vec2(clamp(vec2(a, b), -ORDER_MAX, ORDER_MAX)));
}

/*
 * A unit: f16, what is beyond their range as the largest. Of four neighbours the two in the middle
 * change places, as in decoded weights.
 */
uvec4 order_unit(vec4 a, vec4 b)
{
	return uvec4(order_pack(a.x, a.z), order_pack(a.y, a.w), order_pack(b.x, b.z),
		order_pack(b.y, b.w));
}

#endif
