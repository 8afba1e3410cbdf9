/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_SKINNY_DTYPE_GLSL
#define SHADERS_SKINNY_DTYPE_GLSL

/*
 * Weights as f16 for skinny.comp, one block format a compilation (-D DTYPE_...); the formats are
 * described in matrix-dtype.glsl.
 *
 * A row is cut into slices of W_SLICE numbers, W_BYTES of memory, those into chunks of
 * ABI_SKINNY_CHUNK, those into four pieces of 32. w_decode() makes eight f16 out of a piece's words:
 * units 0 to 3 of a piece are those numbers of the chunk that the same shift of the same words
 * gives, see ABI_SKINNY_ORDER_*, and in each four of them the two in the middle change places.
 *
 * With W_DIRECT a lane loads its pieces as they lie in memory, W_VECS quads of 16 bytes each;
 * otherwise the subgroup loads W_ROW_VECS quads of a row, which have the slice wherever it begins,
 * and puts them into shared memory, W_STRIDE quads from row to row.
 */
#if defined(DTYPE_F16) || defined(DTYPE_BF16)
#define W_DIRECT
#define W_SLICE 128
#define W_BYTES 256
#define W_VECS 4
#define W_RAW 16
#elif defined(DTYPE_Q4_K)
#define W_DIRECT
#define W_HEAD
#define W_SLICE 256
#define W_BYTES 144
#define W_VECS 1
#define W_RAW 6
#elif defined(DTYPE_Q8_0)
#define W_SLICE 128
#define W_BYTES 136
#define W_ROW_VECS 9
#define W_STRIDE 9
#define W_RAW 9
#elif defined(DTYPE_Q4_0)
#define W_SLICE 256
#define W_BYTES 144
#define W_ROW_VECS 9
#define W_STRIDE 9
#define W_RAW 5
#elif defined(DTYPE_Q6_K)
#define W_SLICE 256
#define W_BYTES 210
#define W_ROW_VECS 14
#define W_STRIDE 15
#define W_RAW 8
#elif defined(DTYPE_TQ2_0)
#define W_SLICE 256
#define W_BYTES 66
#define W_ROW_VECS 5
#define W_STRIDE 5
#define W_RAW 3
#elif defined(DTYPE_Q2_0)
#define W_SLICE 256
#define W_BYTES 72
#define W_ROW_VECS 5
#define W_STRIDE 5
#define W_RAW 3
#elif defined(DTYPE_Q1_0)
#define W_SLICE 256
#define W_BYTES 36
#define W_ROW_VECS 3
#define W_STRIDE 3
#define W_RAW 2
#else
#error "no DTYPE_ defined"
#endif

const uint W_CHUNKS = W_SLICE / ABI_SKINNY_CHUNK;
const uint W_PIECES = 4;

/* 0x6400 is 1024, whose last bit is 1: a number of up to ten bits goes into it as it is. */
const uint MAGIC = 0x64006400u;

f16vec2 halves(uint word)
{
	return unpackFloat2x16(word);
}

uint pack_pair(f16vec2 v)
{
	return packFloat2x16(v);
}

/* Small numbers of two halves of a word, less the bias. */
f16vec2 small_halves(uint word, float bias)
{
	return halves(word | MAGIC) - f16vec2(float16_t(1024.0 + bias));
}

/* (q - bias) d of eight bytes. */
uvec4 expand_bytes(uint low, uint high, float bias, f16vec2 d)
{
	return uvec4(pack_pair(small_halves(low & 0x00ff00ffu, bias) * d),
		pack_pair(small_halves(low >> 8 & 0x00ff00ffu, bias) * d),
		pack_pair(small_halves(high & 0x00ff00ffu, bias) * d),
		pack_pair(small_halves(high >> 8 & 0x00ff00ffu, bias) * d));
}

#if defined(W_DIRECT)

/* Chunk c of a slice of the row that begins at quad `at` of w: what piece p has of it. */
void w_load(uvec2 w, uint at, uint slice, uint c, uint p, out uvec4 raw[W_VECS])
{
#if defined(DTYPE_Q4_K)
	raw[0] = Quads(w).at[at + slice * (W_BYTES / 16) + 1 + 4 * c + p];
#else
	[[unroll]] for (uint j = 0; j < W_VECS; j++)
		raw[j] = Quads(w).at[at + slice * (W_BYTES / 16) + 4 * j + p];
#endif
}

#if defined(W_HEAD)
uvec4 w_load_head(uvec2 w, uint at, uint slice)
{
	return Quads(w).at[at + slice * (W_BYTES / 16)];
}

/*
 * Of a head, what piece p needs: for each chunk the factors d s and e t of its two runs of 16
 * numbers, a pair in a word.
 */
void w_take_head(uvec4 head, uint p, out uint factors[2][2])
{
	/* Two bytes of s below two of t: the low six bits, then those that are put together. */
	uint shift = p / 2 * 16;
	uint six = head.y >> shift & 0xffff | head.z >> shift << 16;
	uint four = head.w >> shift & 0xffff | head.w >> shift + 4 << 16;
	uint both = four & 0x0f0f0f0fu | six >> 2 & 0x30303030u;
	f16vec2 d = halves(head.x);

	factors[0][0] = pack_pair(d * small_halves(six & 0x003f003fu, 0.0));
	factors[0][1] = pack_pair(d * small_halves(six >> 8 & 0x003f003fu, 0.0));
	factors[1][0] = pack_pair(d * small_halves(both & 0x00ff00ffu, 0.0));
	factors[1][1] = pack_pair(d * small_halves(both >> 8 & 0x00ff00ffu, 0.0));
}
#endif

#else

/* The kernel's: the word of shared memory of which a byte is. */
uint stage_word(uint at);

uint stage_half(uint at)
{
	return stage_word(at) >> 8 * (at & 2) & 0xffff;
}

/* n words from an even byte on. */
#define STAGE_WORDS(at, raw, first, n)                                               \
	{                                                                            \
		uint low = stage_word(at);                                           \
		[[unroll]] for (int i = 0; i < (n); i++) {                           \
			uint high = stage_word((at) + 4 * i + 4);                    \
			raw[(first) + i] = ((at) & 2) != 0 ? low >> 16 | high << 16 : low; \
			low = high;                                                  \
		}                                                                    \
	}

/* Piece p of chunk c of the slice at byte `at`. */
void w_piece(uint at, uint c, uint p, out uint raw[W_RAW])
{
#if defined(DTYPE_Q8_0)
	STAGE_WORDS(at + 34 * p + 2, raw, 0, 8)
	raw[8] = stage_half(at + 34 * p);
#elif defined(DTYPE_Q4_0)
	STAGE_WORDS(at + 72 * c + 18 * p + 2, raw, 0, 4)
	raw[4] = stage_half(at + 72 * c + 18 * p);
#elif defined(DTYPE_Q6_K)
	STAGE_WORDS(at + 64 * c + 8 * p, raw, 0, 2)
	STAGE_WORDS(at + 64 * c + 8 * p + 32, raw, 2, 2)
	STAGE_WORDS(at + 32 * c + 8 * p + 128, raw, 4, 2)
	STAGE_WORDS(at + 8 * c + 192, raw, 6, 2)
	uint d = stage_half(at + 208);
	/* The scales of two units each, a pair in a word. */
	[[unroll]] for (int i = 6; i < 8; i++)
		raw[i] = pack_pair(small_halves(raw[i] >> 8 * (p / 2) & 0x00ff00ffu ^ 0x00800080u,
					   128.0) *
				   halves(d).xx);
#elif defined(DTYPE_TQ2_0)
	STAGE_WORDS(at + 32 * c + 8 * p, raw, 0, 2)
	raw[2] = stage_half(at + 64);
#elif defined(DTYPE_Q2_0)
	STAGE_WORDS(at + 36 * c + 18 * (p / 2) + 2 + 8 * (p % 2), raw, 0, 2)
	raw[2] = stage_half(at + 36 * c + 18 * (p / 2));
#elif defined(DTYPE_Q1_0)
	STAGE_WORDS(at + 18 * c + 2 + 4 * p, raw, 0, 1)
	raw[1] = stage_half(at + 18 * c);
#endif
}

#endif

#if defined(DTYPE_BF16)
uint from_bf16(uint a, uint b)
{
	const float top = 65504.0;

	return packFloat2x16(f16vec2(clamp(
		vec2(uintBitsToFloat(a), uintBitsToFloat(b)), vec2(-top), vec2(top))));
}
#endif

#if defined(DTYPE_Q4_K)
/* Nibbles as they lie in bytes 0 and 2, the upper ones without a shift. */
f16vec2 nibble_halves(uint word, bool is_upper)
{
	if (is_upper)
		return fma(halves(word & 0x00f000f0u | MAGIC), f16vec2(float16_t(1.0 / 16.0)),
			f16vec2(float16_t(-64.0)));
	return small_halves(word & 0x000f000fu, 0.0);
}

/* q d - e of the lower or upper nibbles of a word. */
uvec2 expand_nibbles(uint word, bool is_upper, f16vec2 d, f16vec2 e)
{
	return uvec2(pack_pair(fma(nibble_halves(word, is_upper), d, e)),
		pack_pair(fma(nibble_halves(word >> 8, is_upper), d, e)));
}
#endif

/* Unit j of a piece. */
uvec4 w_decode(uint raw[W_RAW], uint j)
{
#if defined(DTYPE_F16)
	/* Two words each, of which the inner halves change places. */
	uint a = raw[4 * j], b = raw[4 * j + 1], c = raw[4 * j + 2], d = raw[4 * j + 3];
	return uvec4(a & 0xffff | b << 16, a >> 16 | b & 0xffff0000u, c & 0xffff | d << 16,
		c >> 16 | d & 0xffff0000u);
#elif defined(DTYPE_BF16)
	uint a = raw[4 * j], b = raw[4 * j + 1], c = raw[4 * j + 2], d = raw[4 * j + 3];
	return uvec4(from_bf16(a << 16, b << 16), from_bf16(a & 0xffff0000u, b & 0xffff0000u),
		from_bf16(c << 16, d << 16), from_bf16(c & 0xffff0000u, d & 0xffff0000u));
#elif defined(DTYPE_Q4_K)
	f16vec2 f = halves(raw[4 + j / 2]);
	uvec2 a = expand_nibbles(raw[2 * (j % 2)], j >= 2, f.xx, -f.yy);
	uvec2 b = expand_nibbles(raw[2 * (j % 2) + 1], j >= 2, f.xx, -f.yy);
	return uvec4(a, b);
#elif defined(DTYPE_Q8_0)
	return expand_bytes(raw[2 * j] ^ 0x80808080u, raw[2 * j + 1] ^ 0x80808080u, 128.0,
		halves(raw[8]).xx);
#elif defined(DTYPE_Q4_0)
	uint shift = j / 2 * 4;
	return expand_bytes(raw[2 * (j % 2)] >> shift & 0x0f0f0f0fu,
		raw[2 * (j % 2) + 1] >> shift & 0x0f0f0f0fu, 8.0, halves(raw[4]).xx);
#elif defined(DTYPE_Q6_K)
	f16vec2 f = halves(raw[6 + j / 2]);
	uint l = 2 * (j % 2), shift = j / 2 * 4;
	uint low = raw[l] >> shift & 0x0f0f0f0fu | (raw[4] >> 2 * j & 0x03030303u) << 4;
	uint high = raw[l + 1] >> shift & 0x0f0f0f0fu | (raw[5] >> 2 * j & 0x03030303u) << 4;
	return expand_bytes(low, high, 32.0, j % 2 == 0 ? f.xx : f.yy);
#elif defined(DTYPE_TQ2_0)
	return expand_bytes(raw[0] >> 2 * j & 0x03030303u, raw[1] >> 2 * j & 0x03030303u, 1.0,
		halves(raw[2]).xx);
#elif defined(DTYPE_Q2_0)
	uint a = raw[j / 2] >> j % 2 * 16, b = a >> 8 & 0xff;
	f16vec2 d = halves(raw[2]).xx;
	a &= 0xff;
	return uvec4(pack_pair(small_halves((a | a << 12) & 0x00030003u, 1.0) * d),
		pack_pair(small_halves((a >> 2 | a << 10) & 0x00030003u, 1.0) * d),
		pack_pair(small_halves((b | b << 12) & 0x00030003u, 1.0) * d),
		pack_pair(small_halves((b >> 2 | b << 10) & 0x00030003u, 1.0) * d));
#elif defined(DTYPE_Q1_0)
	uint a = raw[0] >> 8 * j & 0xf, b = raw[0] >> 8 * j + 4 & 0xf;
	f16vec2 d = halves(raw[1]).xx;
	return uvec4(pack_pair(small_halves((a << 1 | a << 15) & 0x00020002u, 1.0) * d),
		pack_pair(small_halves((a | a << 14) & 0x00020002u, 1.0) * d),
		pack_pair(small_halves((b << 1 | b << 15) & 0x00020002u, 1.0) * d),
		pack_pair(small_halves((b | b << 14) & 0x00020002u, 1.0) * d));
#endif
}

#endif
