/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATVEC_DOT_GLSL
#define SHADERS_MATVEC_DOT_GLSL

/*
 * Sums of integer dot products: codes of W (matvec-dtype.glsl) times bytes of x, which are in
 * staging or, where UNITS is not 0, in the workgroup's shared memory. Included behind both.
 */
#extension GL_EXT_spirv_intrinsics : require

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
uvec2 x_rows[COLUMNS];
uvec2 x_half_rows[COLUMNS];

/* Where the bytes of x for column c are in staging. */
void find_row(int c, uvec2 row)
{
	x_rows[c] = row;
	x_half_rows[c] = address_at(row, 1, push.k);
}

/* The norm's factor, of the sums of squares that lie there too. */
float find_scale(int c, float eps)
{
	Squares squares = Squares(address_at(x_rows[c], 5, push.k / 4));
	float v = 0.0;

	for (uint i = lane(); i < (push.k / 32 + 3) / 4; i += SUBGROUP) {
		vec4 part = squares.at[i];
		/* k / 32 is even; what is behind it was not written. */
		v += part.x + part.y;
		if (4 * i + 2 < push.k / 32)
			v += part.z + part.w;
	}
	return norm_scale(sum_lanes(v), push.k, eps);
}

/* The codes of x that quad q of the lane's unit is multiplied by, as they lie. */
uvec4 load_raw_quad(int c, uint unit, int q, uint n_units)
{
	uint from = IS_SPREAD ? (unit & ~1u) + q / 2 : unit;
	uint place = IS_SPREAD ? 2 * (q % 2) + unit % 2 : q;

	return UNITS > 0 ? x_quads[c * N_X_QUADS + place * n_units + from]
			 : XQuads(x_rows[c]).at[place * n_units + from];
}

uvec4 turn_quad(uvec4 v, uint unit)
{
	if (!IS_TURNED)
		return v;
	return unit / 4 % 2 != 0 ? v >> 16 | v.yzwx << 16 : v.yzwx;
}

uvec4 load_quad(int c, uint unit, int q, uint n_units)
{
	return turn_quad(load_raw_quad(c, unit, q, n_units), unit);
}

/* Of 32 numbers of x, of a quad of them where it is spread. */
struct half_x {
	float scale;
	float sum; /* of the codes, for formats with minima */
	int start; /* where a dot product begins for what all codes of W are too great by */
};

uvec2 load_raw_half(int c, uint unit, int q, uint n_units)
{
	uint from = IS_SPREAD ? (unit & ~1u) + q / 2 : unit;
	uint place = IS_SPREAD ? q % 2 : q / 2;

	return UNITS > 0 ? x_halves[c * N_X_HALVES + place * n_units + from]
			 : Pairs(x_half_rows[c]).at[place * n_units + from];
}

half_x take_half(uvec2 v, uint unit)
{
	int low = bitfieldExtract(int(v.y), 0, 16), high = bitfieldExtract(int(v.y), 16, 16);
	int sum = !IS_SPREAD ? low + high : unit % 2 == 0 ? low : high;

	return half_x(uintBitsToFloat(v.x), float(sum), -BIAS * sum);
}

half_x load_half(int c, uint unit, int q, uint n_units)
{
	return take_half(load_raw_half(c, unit, q, n_units), unit);
}

/* x of column 0 of the lane's units, with HOLD, as load_quad() and load_half() say. */
const int N_X_UNITS = HOLD > 0 ? HOLD : 1;
uvec4 kept_quads[N_X_UNITS][4];
uvec2 raw_halves[N_X_UNITS][4];
half_x kept_halves[N_X_UNITS][4];

/* Unit h of those that the lane keeps: the subgroups that share a tile have them in turn. */
uint kept_round(int h)
{
	return gl_SubgroupID % SPLIT * HOLD + h;
}

/* Behind the row's end that of its last unit, for nobody. */
uint kept_unit(int h)
{
	uint unit = kept_round(h) * SUBGROUP + lane();

	return WHOLE != 0 ? unit : min(unit, push.k / 64 - 1);
}

/* Starts the loads of all that is kept; then takes it. */
void fetch_x()
{
	[[unroll]] for (int h = 0; h < HOLD; h++) {
		[[unroll]] for (int q = 0; q < 4; q++) {
			kept_quads[h][q] = load_raw_quad(0, kept_unit(h), q, push.k / 64);
			if (IS_SPREAD || q % 2 == 0)
				raw_halves[h][q] =
					load_raw_half(0, kept_unit(h), q, push.k / 64);
		}
	}
}

void keep_x()
{
	[[unroll]] for (int h = 0; h < HOLD; h++) {
		[[unroll]] for (int q = 0; q < 4; q++) {
			kept_quads[h][q] = turn_quad(kept_quads[h][q], kept_unit(h));
			if (IS_SPREAD || q % 2 == 0)
				kept_halves[h][q] = take_half(raw_halves[h][q], kept_unit(h));
		}
	}
}

int dot_quad(int sum, uvec4 w, uvec4 x)
{
	sum += dot_bytes(w.x, x.x, 0);
	sum += dot_bytes(w.y, x.y, 0);
	sum += dot_bytes(w.z, x.z, 0);
	sum += dot_bytes(w.w, x.w, 0);
	return sum;
}

/*
 * The sum of a unit is made for itself and then added to those before it, whoever makes it: so the
 * order of all is the same where subgroups share k.
 */
float add_product(float sum, int dot, vec2 scales, half_x x)
{
	precise float v = scales.x * float(dot);

	if (HAS_MINIMA)
		v = fma(-scales.y, x.sum, v);
	return fma(x.scale, v, sum);
}

float add_sums(float a, float b)
{
	precise float sum = a + b;

	return sum;
}

/* Unit u of the lane's round, this one of the row, to all sums. */
void add_unit(int u, uint unit, uint n_units)
{
	int dots[ROWS][COLUMNS];
	float unit_sums[ROWS][COLUMNS];
	half_x halves[COLUMNS];

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
			uvec4 x = load_quad(c, unit, q, n_units);
			if (is_first)
				halves[c] = load_half(c, unit, q, n_units);
			[[unroll]] for (int r = 0; r < ROWS; r++)
				dots[r][c] = dot_quad(
					is_first ? halves[c].start : dots[r][c], w[r], x);
			if (!is_last)
				continue;
			[[unroll]] for (int r = 0; r < ROWS; r++)
				unit_sums[r][c] =
					add_product(q == (IS_SPREAD ? 0 : 1) ? 0.0 : unit_sums[r][c],
						dots[r][c], scales[r], halves[c]);
		}
	}
	[[unroll]] for (int r = 0; r < ROWS; r++)
		[[unroll]] for (int c = 0; c < COLUMNS; c++)
			sums[r][c] = add_sums(sums[r][c], unit_sums[r][c]);
}

/* The sum of unit h of those that the lane keeps, of the row that is held. */
float sum_kept(int h)
{
	float sum = 0.0;
	int dot = 0;

	[[unroll]] for (int q = 0; q < 4; q++) {
		half_x x = kept_halves[h][IS_SPREAD ? q : q / 2 * 2];
		dot = dot_quad(IS_SPREAD || q % 2 == 0 ? x.start : dot, take_quad(0, 0, q),
			kept_quads[h][q]);
		if (IS_SPREAD || q % 2 != 0)
			sum = add_product(sum, dot, take_scales(0, 0, q), x);
	}
	return WHOLE != 0 || kept_round(h) * SUBGROUP + lane() < push.k / 64 ? sum : 0.0;
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

#endif
