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
 * Grid: x: at most ceil(tiles / subgroups of a workgroup), of fewer each takes several; tiles = sum
 * over p of ceil(n[p] / ROWS), with SWIGLU ceil(n[0] / (ROWS / 2)); y: ceil(m / COLUMNS).
 * Bindings: none; addresses in struct abi_matvec. Rows beyond *m are not computed.
 *
 * A subgroup computes ROWS rows of W times COLUMNS rows of x, both powers of two; each word of W is
 * read once. Its lanes share k: lane l takes units l, l + SUBGROUP, ... one after the other, whatever
 * the tile, so that the order of a sum depends on k, the subgroup's size and the format alone.
 * Memory is kept busy by the loads of many subgroups, and with AHEAD by those of the next round.
 */
#include "common.glsl"
#include "quant.glsl"
#include "matvec.glsl"
#include "matvec-dtype.glsl"

#extension GL_EXT_spirv_intrinsics : require

layout(constant_id = ABI_MATVEC_SPEC_UNITS) const uint UNITS = 0;

/*
 * The sum of the products of four signed bytes each: OpSDotKHR. Not every glslc knows
 * GL_EXT_integer_dot_product, Vulkan 1.3 has the instruction.
 */
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int dot_bytes(uint a, uint b, spirv_literal int packed_4x8);

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer XQuads { uvec4 at[]; };

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Squares { vec4 at[]; };

/* x as bytes: of this workgroup with UNITS, else in staging. */
const uint N_X_QUADS = UNITS > 0 ? 4 * UNITS : 1;
const uint N_X_HALVES = UNITS > 0 ? 2 * UNITS : 1;
shared uvec4 x_quads[COLUMNS * N_X_QUADS];
shared uvec2 x_halves[COLUMNS * N_X_HALVES];
shared float x_squares[COLUMNS * N_SUBGROUPS];
uvec2 x_rows[COLUMNS];
uvec2 x_half_rows[COLUMNS];

/* Row i of x into the workgroup's memory as column c; the lane's squares. */
float quant_row(uint i, int c)
{
	uint n_words = push.k / 4, n_units = push.k / 64;
	uint from = GATHER != 0 ? Words(push.want).at[i] : i;
	Floats x = Floats(address_at(push.x, from, 4 * push.k));
	float squares = 0.0;

	for (uint first = gl_SubgroupID * SUBGROUP; first < n_words; first += LOCAL_SIZE) {
		uint at = first + lane();
		vec4 v = vec4(0.0);
		if (at < n_words)
			v = read_word(x, Floats(push.gain), at, squares);
		quant s = quant_word(v);
		if (at < n_words)
			x_quads[c * N_X_QUADS + quad_of_word(at, n_units)][at % 4] = s.word;
		if (at < n_words && at % 8 == 0)
			x_halves[c * N_X_HALVES + half_of_word(at, n_units)] =
				uvec2(floatBitsToUint(s.scale), s.sums);
	}
	return squares;
}

void quant_rows(uint i0, uint m)
{
	[[unroll]] for (int c = 0; c < COLUMNS; c++) {
		float squares = quant_row(min(i0 + c, m - 1), c);
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
		x_rows[c] = address_at(push.staging, min(i0 + c, m - 1), ABI_QUANT_ROW_BYTES(push.k));
		x_half_rows[c] = address_at(x_rows[c], 1, push.k);
		if (NORM == 0)
			continue;
		Squares squares = Squares(address_at(x_rows[c], 5, push.k / 4));
		float v = 0.0;
		for (uint i = lane(); i < (push.k / 32 + 3) / 4; i += SUBGROUP) {
			vec4 part = squares.at[i];
			/* k / 32 is even; what is behind it was not written. */
			v += part.x + part.y;
			if (4 * i + 2 < push.k / 32)
				v += part.z + part.w;
		}
		x_scales[c] = norm_scale(sum_lanes(v), push.k, push.eps);
	}
}

/* The codes of x that quad q of the lane's unit is multiplied by. */
uvec4 x_quad(int c, uint unit, int q, uint n_units)
{
	uint from = IS_SPREAD ? (unit & ~1u) + q / 2 : unit;
	uint place = IS_SPREAD ? 2 * (q % 2) + unit % 2 : q;

	if (UNITS > 0)
		return x_quads[c * N_X_QUADS + place * n_units + from];
	return XQuads(x_rows[c]).at[place * n_units + from];
}

/* The scale of those 32 numbers of x, and the sum of the codes: of the quad where it is spread. */
vec2 x_half(int c, uint unit, int q, uint n_units)
{
	uint from = IS_SPREAD ? (unit & ~1u) + q / 2 : unit;
	uint place = IS_SPREAD ? q % 2 : q / 2;
	uvec2 v = UNITS > 0 ? x_halves[c * N_X_HALVES + place * n_units + from]
			    : Pairs(x_half_rows[c]).at[place * n_units + from];
	int low = bitfieldExtract(int(v.y), 0, 16), high = bitfieldExtract(int(v.y), 16, 16);
	int sum = !IS_SPREAD ? low + high : unit % 2 == 0 ? low : high;

	return vec2(uintBitsToFloat(v.x), HAS_BIAS ? float(sum) : 0.0);
}

int dot_quad(int sum, uvec4 w, uvec4 x)
{
	sum += dot_bytes(w.x, x.x, 0);
	sum += dot_bytes(w.y, x.y, 0);
	sum += dot_bytes(w.z, x.z, 0);
	sum += dot_bytes(w.w, x.w, 0);
	return sum;
}

/* Unit u of the lane's round, which is this unit of the row, to all sums. */
void add_unit(int u, uint unit, uint n_units)
{
	int dots[ROWS][COLUMNS];

	[[unroll]] for (int q = 0; q < 4; q++) {
		bool is_first = IS_SPREAD || q % 2 == 0, is_last = IS_SPREAD || q % 2 != 0;
		uvec4 w[ROWS];
		vec2 scales[ROWS];
		[[unroll]] for (int r = 0; r < ROWS; r++) {
			w[r] = take_quad(r, u, q);
			if (is_last)
				scales[r] = take_scales(r, u, q);
		}
		[[unroll]] for (int c = 0; c < COLUMNS; c++) {
			uvec4 x = x_quad(c, unit, q, n_units);
			[[unroll]] for (int r = 0; r < ROWS; r++)
				dots[r][c] = dot_quad(is_first ? 0 : dots[r][c], w[r], x);
			if (!is_last)
				continue;
			vec2 half_x = x_half(c, unit, q, n_units);
			[[unroll]] for (int r = 0; r < ROWS; r++) {
				precise float v = scales[r].x * float(dots[r][c]);
				if (HAS_BIAS)
					v = fma(-scales[r].y, half_x.y, v);
				sums[r][c] = fma(half_x.x, v, sums[r][c]);
			}
		}
	}
}

void add_round(uint round)
{
	uint n_units = push.k / 64;

	[[unroll]] for (int u = 0; u < UNROLL; u++) {
		uint unit = round * ROUND_UNITS + u * SUBGROUP + lane();
		if (WHOLE != 0 || unit < n_units)
			add_unit(u, unit, n_units);
	}
}

void find_columns(uint i0, uint m)
{
	if (UNITS > 0)
		quant_rows(i0, m);
	else
		find_rows(i0, m);
}

void begin_tile()
{
}

void end_tile()
{
}

void main()
{
	compute_tiles((push.k / 64 + ROUND_UNITS - 1) / ROUND_UNITS);
}
