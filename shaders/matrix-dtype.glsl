/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATRIX_DTYPE_GLSL
#define SHADERS_MATRIX_DTYPE_GLSL

/*
 * Rows of a weight matrix in the `raw` layout as f16, one block format a compilation (-D DTYPE_...).
 *
 * A row is cut into units of W_ELEMENTS neighbours: w_load() fetches the W_RAW words that a unit
 * needs, w_decode() turns them into W_QUADS quads of eight f16 each. Between the two a kernel has
 * other work to do. Rows begin at multiples of 2 bytes, of 16 with F32, F16, BF16 and Q4_K; k is a
 * multiple of 32 and of the format's block.
 *
 *	F32, F16, BF16   8 numbers; beyond f16's range: its largest
 *	Q8_0    34 bytes of 32:   f16 d, i8 q[32];                w = d q
 *	Q4_0    18 bytes of 32:   f16 d, nibbles q[16];           w = d (q - 8), i and i + 16 in a byte
 *	Q4_K    144 bytes of 256: f16 d, f16 e, u6 s[8], t[8] in 12 bytes, nibbles q[128];
 *	                                                          w = d s q - e t, i and i + 32 in a byte
 *	Q6_K    210 bytes of 256: nibbles l[128], pairs h[64], i8 s[16], f16 d;
 *	                                                          w = d s (l + 16 h - 32)
 *	TQ2_0   66 bytes of 256:  pairs q[64], f16 d;             w = d (q - 1)
 *	Q2_0    18 bytes of 64:   f16 d, pairs q[16];             w = d (q - 1)
 *	Q1_0    18 bytes of 128:  f16 d, bits q[16];              w = q ? d : -d
 *
 * Products of two factors are rounded to f16 once, those of more and Q4_K's sums twice.
 */
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 at[]; };

#if defined(DTYPE_F32)
#define W_ELEMENTS 8
#define W_RAW 8
#elif defined(DTYPE_F16) || defined(DTYPE_BF16)
#define W_ELEMENTS 8
#define W_RAW 4
#elif defined(DTYPE_Q8_0) || defined(DTYPE_Q4_0) || defined(DTYPE_TQ2_0)
#define W_ELEMENTS 8
#define W_RAW 4
#elif defined(DTYPE_Q4_K)
#define W_ELEMENTS 16
#define W_RAW 8
#elif defined(DTYPE_Q6_K)
#define W_ELEMENTS 8
#define W_RAW 8
#elif defined(DTYPE_Q2_0)
#define W_ELEMENTS 16
#define W_RAW 3
#elif defined(DTYPE_Q1_0)
#define W_ELEMENTS 16
#define W_RAW 2
#else
#error "no DTYPE_ defined"
#endif

const int W_QUADS = W_ELEMENTS / 8;
const float HALF_MAX = 65504.0;

uint pack_halves(float a, float b)
{
	vec2 v = clamp(vec2(a, b), -HALF_MAX, HALF_MAX);

	return packFloat2x16(f16vec2(v));
}

/* Is what begins so many bytes from the row's begin cut by words' borders? All begins are even. */
bool is_split(uvec2 row, uint at)
{
	return ((row.x + at) & 2) != 0;
}

/* The word of which a byte is, counted from the one in which the row begins. */
uint first_word(uvec2 row, uint at)
{
	return ((row.x & 2) + at) >> 2;
}

uint load_word(uvec2 row, uint at)
{
	return Words(uvec2(row.x & ~3u, row.y)).at[at];
}

/* Eight bytes: three words, or two and the last again. A row's lanes read neighbours' bytes. */
void load_8(uvec2 row, uint at, inout uint raw[W_RAW], int first)
{
	uint word = first_word(row, at);

#if W_RAW >= 3
	raw[first] = load_word(row, word);
	raw[first + 1] = load_word(row, word + 1);
	raw[first + 2] = load_word(row, is_split(row, at) ? word + 2 : word + 1);
#endif
}

uint whole_word(uint low, uint high, bool is_cut)
{
	return is_cut ? low >> 16 | high << 16 : low;
}

uvec4 whole_8(uint raw[W_RAW], int first, bool is_cut)
{
#if W_RAW >= 3
	return uvec4(whole_word(raw[first], raw[first + 1], is_cut),
		whole_word(raw[first + 1], raw[first + 2], is_cut), 0, 0);
#else
	return uvec4(0);
#endif
}

uint load_half(uvec2 row, uint at)
{
	return uint(Halves(row).at[at / 2]);
}

/* Where in a row the unit's numbers begin, in bytes. */
uint numbers_at(uint unit)
{
	uint e = unit * W_ELEMENTS;

#if defined(DTYPE_Q8_0)
	return 34 * (e / 32) + 2 + e % 32;
#elif defined(DTYPE_Q4_0)
	return 18 * (e / 32) + 2 + e % 16;
#elif defined(DTYPE_Q4_K)
	return 144 * (e / 256) + 16 + 32 * (e % 256 / 64) + e % 32;
#elif defined(DTYPE_Q6_K)
	return 210 * (e / 256) + 64 * (e % 256 / 128) + e % 64;
#elif defined(DTYPE_TQ2_0)
	return 66 * (e / 256) + 32 * (e % 256 / 128) + e % 32;
#elif defined(DTYPE_Q2_0)
	return 18 * (e / 64) + 2 + e % 64 / 4;
#elif defined(DTYPE_Q1_0)
	return 18 * (e / 128) + 2 + e % 128 / 8;
#else
	return 0;
#endif
}

#if defined(DTYPE_Q6_K)
uint highs_at(uint unit)
{
	uint e = unit * W_ELEMENTS;

	return 210 * (e / 256) + 128 + 32 * (e % 256 / 128) + e % 32;
}

uint scale_at(uint unit)
{
	uint e = unit * W_ELEMENTS;

	return 210 * (e / 256) + 192 + e % 256 / 16;
}
#endif

void w_load(uvec2 row, uint unit, out uint raw[W_RAW])
{
	uint at = numbers_at(unit), e = unit * W_ELEMENTS;

#if defined(DTYPE_F32)
	uvec4 a = Quads(row).at[2 * unit], b = Quads(row).at[2 * unit + 1];
	[[unroll]] for (int i = 0; i < 4; i++) {
		raw[i] = a[i];
		raw[4 + i] = b[i];
	}
#elif defined(DTYPE_F16) || defined(DTYPE_BF16)
	uvec4 a = Quads(row).at[unit];
	[[unroll]] for (int i = 0; i < 4; i++)
		raw[i] = a[i];
#elif defined(DTYPE_Q4_K)
	uvec4 a = Quads(row).at[at / 16], head = Quads(row).at[9 * (e / 256)];
	[[unroll]] for (int i = 0; i < 4; i++) {
		raw[i] = a[i];
		raw[4 + i] = head[i];
	}
#elif defined(DTYPE_Q8_0)
	load_8(row, at, raw, 0);
	raw[3] = load_half(row, 34 * (e / 32));
#elif defined(DTYPE_Q4_0)
	load_8(row, at, raw, 0);
	raw[3] = load_half(row, 18 * (e / 32));
#elif defined(DTYPE_TQ2_0)
	load_8(row, at, raw, 0);
	raw[3] = load_half(row, 66 * (e / 256) + 64);
#elif defined(DTYPE_Q6_K)
	load_8(row, at, raw, 0);
	load_8(row, highs_at(unit), raw, 3);
	raw[6] = load_half(row, scale_at(unit) & ~1u);
	raw[7] = load_half(row, 210 * (e / 256) + 208);
#elif defined(DTYPE_Q2_0)
	uint word = first_word(row, at);
	raw[0] = load_word(row, word);
	raw[1] = load_word(row, is_split(row, at) ? word + 1 : word);
	raw[2] = load_half(row, 18 * (e / 64));
#elif defined(DTYPE_Q1_0)
	raw[0] = load_half(row, at);
	raw[1] = load_half(row, 18 * (e / 128));
#endif
}

/*
 * Bytes 0 and 2 of a word as two f16, less the bias: 0x6400 is 1024, whose last bit is 1, so a byte
 * goes into it as it is. Two bytes that lie so cost one instruction, neighbours three.
 */
f16vec2 byte_halves(uint bytes, float16_t bias)
{
	return unpackFloat2x16(bytes & 0x00ff00ffu | 0x64006400u) -
	       f16vec2(float16_t(1024.0) + bias);
}

/* d (q - bias) - e of 16 bytes q. */
void expand(uvec4 q, float16_t bias, float16_t d, float16_t e, out uvec4 ret_quads[W_QUADS])
{
	[[unroll]] for (int i = 0; i < 4 && i < 2 * W_QUADS; i++) {
		f16vec2 a = byte_halves(q[i], bias), b = byte_halves(q[i] >> 8, bias);
#if defined(DTYPE_Q4_K)
		a = fma(a, f16vec2(d), f16vec2(-e));
		b = fma(b, f16vec2(d), f16vec2(-e));
#else
		a *= d;
		b *= d;
#endif
		ret_quads[i / 2][2 * (i % 2)] = packFloat2x16(f16vec2(a.x, b.x));
		ret_quads[i / 2][2 * (i % 2) + 1] = packFloat2x16(f16vec2(a.y, b.y));
	}
}

#if defined(DTYPE_Q4_K)
/* The factors of the j-th 32 numbers: d s and e t. */
f16vec2 factors(uint j, uint raw[W_RAW])
{
	uint shift = 8 * (j % 4);
	uint a = raw[5] >> shift & 0xff, b = raw[6] >> shift & 0xff, c = raw[7] >> shift & 0xff;
	uint s = j < 4 ? a & 63 : (c & 15) | a >> 6 << 4;
	uint t = j < 4 ? b & 63 : c >> 4 | b >> 6 << 4;

	return f16vec2(vec2(half_low(raw[4]) * float(s), half_high(raw[4]) * float(t)));
}
#endif

void w_decode(uvec2 row, uint unit, uint raw[W_RAW], out uvec4 ret_quads[W_QUADS])
{
	bool is_cut = is_split(row, numbers_at(unit));
	uint e = unit * W_ELEMENTS;
	const float16_t zero = float16_t(0.0);

#if defined(DTYPE_F32)
	[[unroll]] for (int i = 0; i < 4; i++)
		ret_quads[0][i] = pack_halves(
			uintBitsToFloat(raw[2 * i]), uintBitsToFloat(raw[2 * i + 1]));
#elif defined(DTYPE_F16)
	ret_quads[0] = uvec4(raw[0], raw[1], raw[2], raw[3]);
#elif defined(DTYPE_BF16)
	[[unroll]] for (int i = 0; i < 4; i++)
		ret_quads[0][i] = pack_halves(
			uintBitsToFloat(raw[i] << 16), uintBitsToFloat(raw[i] & 0xffff0000u));
#elif defined(DTYPE_Q8_0)
	uvec4 q = whole_8(raw, 0, is_cut) ^ 0x80808080u;
	expand(q, float16_t(128.0), unpackFloat2x16(raw[3]).x, zero, ret_quads);
#elif defined(DTYPE_Q4_0)
	uvec4 q = whole_8(raw, 0, is_cut) >> (4 * (e / 16 % 2)) & 0x0f0f0f0fu;
	expand(q, float16_t(8.0), unpackFloat2x16(raw[3]).x, zero, ret_quads);
#elif defined(DTYPE_Q4_K)
	uvec4 q = uvec4(raw[0], raw[1], raw[2], raw[3]) >> (4 * (e / 32 % 2)) & 0x0f0f0f0fu;
	f16vec2 f = factors(e % 256 / 32, raw);
	expand(q, zero, f.x, f.y, ret_quads);
#elif defined(DTYPE_Q6_K)
	uint g = e % 128 / 32; /* of four runs of 32: nibble g / 2 of bytes 32 (g % 2) on, pair g */
	uvec4 l = whole_8(raw, 0, is_cut) >> (4 * (g / 2)) & 0x0f0f0f0fu;
	uvec4 h = whole_8(raw, 3, is_split(row, highs_at(unit))) >> (2 * g) & 0x03030303u;
	float s = byte_float(raw[6], int(e / 16 % 2)) * half_low(raw[7]);
	expand(l | h << 4, float16_t(32.0), float16_t(s), zero, ret_quads);
#elif defined(DTYPE_TQ2_0)
	uvec4 q = whole_8(raw, 0, is_cut) >> (2 * (e % 128 / 32)) & 0x03030303u;
	expand(q, float16_t(1.0), unpackFloat2x16(raw[3]).x, zero, ret_quads);
#elif defined(DTYPE_Q2_0)
	uint w = whole_word(raw[0], raw[1], is_cut);
	uvec4 q = uvec4(w, w >> 8, w >> 16, w >> 24) & 0xff;
	q = (q | q << 6 | q << 12 | q << 18) & 0x03030303u;
	expand(q, float16_t(1.0), unpackFloat2x16(raw[2]).x, zero, ret_quads);
#elif defined(DTYPE_Q1_0)
	uvec4 q = uvec4(raw[0], raw[0] >> 4, raw[0] >> 8, raw[0] >> 12) & 0xf;
	/* Bit i to the second bit of byte i: no two of the products' bits meet. */
	q = q * 0x00204081u << 1 & 0x02020202u;
	expand(q, float16_t(1.0), unpackFloat2x16(raw[1]).x, zero, ret_quads);
#endif
}

#endif
