#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][j] = finish(sum over k of W[j][k] a[i][k]) for few rows of x, of matrices of two bytes a number,
 * with x as it is
 *
 *	a[i] = x[i], or x[i] gain / sqrt(mean(x[i]^2) + eps) with NORM; x[i] is x[want[i]] with GATHER
 *	finish: as matvec.comp has it
 *
 * Shapes, grid: as of matvec.comp; k % 8 == 0, rows of all matrices at multiples of 16 bytes.
 * Bindings: none; addresses in struct abi_matvec. Rows beyond *m are not computed.
 *
 * What matmul.comp does word by word, by loads of 16 bytes: a unit is eight numbers, lane l takes
 * units l, l + SUBGROUP, ... one after the other. The order of a sum depends on k and the subgroup's
 * size alone.
 */
#include "common.glsl"
#include "quant.glsl"
#include "matvec-tile.glsl"

const int HOLD = 0;

bool needs_m()
{
	return true;
}

#include "matvec.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vecs { vec4 at[]; };

const uint ROUND_UNITS = SUBGROUP * UNROLL;

uvec4 w_next[ROWS][UNROLL];
uvec4 w_held[ROWS][UNROLL];
uvec2 x_rows[COLUMNS];
float squares[COLUMNS];

void find_columns(uint i0, uint m)
{
	[[unroll]] for (int c = 0; c < COLUMNS; c++) {
		uint i = min(i0 + c, m - 1);
		if (GATHER != 0)
			i = Words(push.want).at[i];
		x_rows[c] = address_at(push.x, i, 4 * push.k);
	}
}

void find_column(uint i0)
{
}

void begin_tile()
{
	[[unroll]] for (int c = 0; c < COLUMNS; c++)
		squares[c] = 0.0;
}

/* Lanes behind the row's end load its last unit. */
void fetch_round(uint round)
{
	[[unroll]] for (int u = 0; u < UNROLL; u++) {
		uint unit = round * ROUND_UNITS + u * SUBGROUP + lane();
		if (WHOLE == 0)
			unit = min(unit, push.k / 8 - 1);
		[[unroll]] for (int r = 0; r < ROWS; r++)
			w_next[r][u] = Quads(w_rows[r]).at[unit];
	}
}

void hold_round()
{
	[[unroll]] for (int r = 0; r < ROWS; r++)
		[[unroll]] for (int u = 0; u < UNROLL; u++)
			w_held[r][u] = w_next[r][u];
}

/* Both numbers of a word. */
vec2 two(uint word)
{
#if defined(DTYPE_F16)
	return unpackHalf2x16(word);
#elif defined(DTYPE_BF16)
	return vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000));
#else
#error "no DTYPE_ defined"
#endif
}

void add_four(int c, int r, vec4 w, vec4 a)
{
	[[unroll]] for (int e = 0; e < 4; e++)
		sums[r][c] = fma(w[e], a[e], sums[r][c]);
}

void add_unit(int u, uint unit)
{
	vec4 gain[2];

	if (NORM != 0) {
		gain[0] = Vecs(push.gain).at[2 * unit];
		gain[1] = Vecs(push.gain).at[2 * unit + 1];
	}
	[[unroll]] for (int c = 0; c < COLUMNS; c++) {
		[[unroll]] for (int h = 0; h < 2; h++) {
			vec4 a = Vecs(x_rows[c]).at[2 * unit + h];
			if (NORM != 0) {
				[[unroll]] for (int e = 0; e < 4; e++)
					squares[c] = fma(a[e], a[e], squares[c]);
				a *= gain[h];
			}
			[[unroll]] for (int r = 0; r < ROWS; r++)
				add_four(c, r, vec4(two(w_held[r][u][2 * h]),
					two(w_held[r][u][2 * h + 1])), a);
		}
	}
}

void add_round(uint round)
{
	[[unroll]] for (int u = 0; u < UNROLL; u++) {
		uint unit = round * ROUND_UNITS + u * SUBGROUP + lane();
		if (WHOLE != 0 || unit < push.k / 8)
			add_unit(u, unit);
	}
}

void end_tile()
{
	[[unroll]] for (int c = 0; c < COLUMNS; c++)
		if (NORM != 0)
			x_scales[c] = norm_scale(sum_lanes(squares[c]), push.k, push.eps);
}

void main()
{
	compute_tiles((push.k / 8 + ROUND_UNITS - 1) / ROUND_UNITS);
}
