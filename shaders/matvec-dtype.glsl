/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_MATVEC_DTYPE_GLSL
#define SHADERS_MATVEC_DTYPE_GLSL

/*
 * Rows of a weight matrix for integer dot products, one block format a compilation (-D DTYPE_...),
 * in the `raw` layout, which is GGUF's.
 *
 * A row of k, k % 64 == 0, is cut into units of 64 numbers, one for a lane, those into four quads of
 * 16 and two halves. The numbers of a quad are scale (code - BIAS) - minimum: take_quad() gives the
 * codes as four words of bytes, in the ORDER in which x is staged, and take_scales() the scale and,
 * where a format HAS_MINIMA, the minimum.
 *
 * The blocks of most formats are no multiples of 4 bytes: lanes that read their own units would
 * touch many lines of memory an instruction. So a subgroup copies whole rounds (UNROLL units a lane)
 * of a row, words side by side, into its part of shared memory and reads units there, where an odd
 * distance costs nothing. What must be whole words is the row: its address and length.
 *
 *	Q8_0   34 bytes of 32   {f16 d, i8 q[32]}: w = d q; a unit is two blocks, 17 words
 *	Q4_0   18 of 32         {f16 d, u8 q[16]}: w = d (q - 8), low nibbles, then high ones
 *	Q4_K   144 of 256       {f16 d, f16 dmin, u8 s[12], u8 q[128]}: w = d s q - dmin m, of each 32
 *	                        bytes of q first the low nibbles; read by 16 bytes where it lies
 *	Q6_K   210 of 256       {u8 l[128], u8 h[64], i8 s[16], f16 d}: w = d s (q - 32)
 *	TQ2_0  66 of 256        {u8 q[64], f16 d}: w = d (q - 1), of 32 bytes all lowest pairs, ...
 *	Q2_0   18 of 64         {f16 d, u8 q[16]}: w = d (q - 1), a byte after the other
 *	Q1_0   18 of 128        {f16 d, u8 q[16]}: w = d (2 q - 1), a byte after the other
 *
 * In Q6_K and TQ2_0 the quads of a lane lie 32 numbers apart, each in another 32 (IS_SPREAD):
 * half a block of 128 is two lanes'.
 */
#if defined(DTYPE_Q8_0)
#define GROUP_WORDS 136 /* of eight units */
#define BIAS 0
#define IS_SPREAD false
#elif defined(DTYPE_Q4_0)
#define GROUP_WORDS 72
#define BIAS 8
#define IS_SPREAD false
#elif defined(DTYPE_Q4_K)
#define IS_IN_PLACE
#define BIAS 0
#define IS_SPREAD false
#elif defined(DTYPE_Q6_K)
#define GROUP_WORDS 105
#define BIAS 32
#define IS_SPREAD true
#elif defined(DTYPE_TQ2_0)
#define GROUP_WORDS 33
#define BIAS 1
#define IS_SPREAD true
#elif defined(DTYPE_Q2_0)
#define GROUP_WORDS 36
#define BIAS 1
#define IS_SPREAD false
#elif defined(DTYPE_Q1_0)
#define GROUP_WORDS 18
#define BIAS 1
#define IS_SPREAD false
#else
#error "no DTYPE_ defined"
#endif

#if defined(DTYPE_Q4_K)
#define HAS_MINIMA true
#else
#define HAS_MINIMA false
#endif

/*
 * Blocks of Q6_K are an odd number of halves. Where x is used by several rows, its quads are turned
 * by two bytes for lanes whose block begins within a word, or by four for those where it does not:
 * then all words of W but one in four are used as they lie. Integer sums do not care.
 */
#if defined(DTYPE_Q6_K)
const bool IS_TURNED = HOLD > 0 || ROWS > COLUMNS;
#else
const bool IS_TURNED = false;
#endif

/* Units of all lanes in one round. */
const uint ROUND_UNITS = SUBGROUP * UNROLL;

/* Rounds of rows that are loaded at a time: with HOLD, of UNROLL 1, all those of a tile. */
const int N_SLOTS = HOLD > 0 ? ROWS * HOLD : ROWS;
/* Of them, those that are summed at a time. */
const int N_HELD = HOLD > 0 ? 1 : ROWS;

#if defined(IS_IN_PLACE)

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 at[]; };

const int N_RAW = 3 * UNROLL;

uvec4 w_next[N_SLOTS][N_RAW]; /* header and two quads of codes a unit */
uvec4 w_held[N_HELD][N_RAW];

/* Starts the loads of a round of row r. Lanes behind the row's end load its last unit. */
void fetch_slot(int slot, int r, uint round)
{
	[[unroll]] for (int u = 0; u < UNROLL; u++) {
		uint unit = round * ROUND_UNITS + u * SUBGROUP + lane();
		if (WHOLE == 0)
			unit = min(unit, push.k / 64 - 1);
		Quads row = Quads(w_rows[r]);
		uint block = 9 * (unit / 4);
		w_next[slot][3 * u] = row.at[block];
		w_next[slot][3 * u + 1] = row.at[block + 1 + 2 * (unit % 4)];
		w_next[slot][3 * u + 2] = row.at[block + 2 + 2 * (unit % 4)];
	}
}

/* N_HELD of what was loaded, from that slot on, are what is summed now. */
void hold_slots(int slot)
{
	[[unroll]] for (int r = 0; r < N_HELD; r++)
		[[unroll]] for (int i = 0; i < N_RAW; i++)
			w_held[r][i] = w_next[slot + r][i];
}

uvec4 take_quad(int r, int u, int q)
{
	return w_held[r][3 * u + 1 + q % 2] >> (q < 2 ? 0 : 4) & 0x0f0f0f0f;
}

/* Of 32 numbers, 2 (unit % 4) + q / 2 of the block. */
vec2 take_scales(int r, int u, int q)
{
	uvec4 header = w_held[r][3 * u];
	vec2 d = unpackHalf2x16(header.x);
	uint unit = u * SUBGROUP + lane(); /* rounds are whole blocks */
	uint shift = 16 * (unit & 1);
	uint low = header.y >> shift, high = header.z >> shift, top = header.w >> shift;
	bool is_low = (unit & 2) == 0;
	/* Both halves' side by side. */
	uint scales = is_low ? low & 0x3f3f : (top & 0x0f0f) | (low >> 2 & 0x3030);
	uint minima = is_low ? high & 0x3f3f : (top >> 4 & 0x0f0f) | (high >> 2 & 0x3030);

	return d * vec2(scales >> 8 * (q / 2) & 255, minima >> 8 * (q / 2) & 255);
}

#else

const int N_RAW = (GROUP_WORDS * UNROLL + 7) / 8;
const uint ROUND_WORDS = ROUND_UNITS / 8 * GROUP_WORDS;
const uint HELD_WORDS = N_RAW * SUBGROUP; /* of a row in shared memory */

/* One word more: the last one that is read together with its next. */
shared uint w_held[LOCAL_SIZE / SUBGROUP * N_HELD * HELD_WORDS + 1];
uint w_next[N_SLOTS][N_RAW];

/* Starts the loads of a round of row r. What lies behind the row's end is its last word. */
void fetch_slot(int slot, int r, uint round)
{
	uint first = round * ROUND_WORDS + lane();
	Words row = Words(w_rows[r]);

	[[unroll]] for (int i = 0; i < N_RAW; i++) {
		uint at = first + i * SUBGROUP;
		/* Of a whole round, the last words may be more than it has. */
		if (WHOLE == 0 || (i + 1) * SUBGROUP > ROUND_WORDS)
			at = min(at, push.n_row_bytes / 4 - 1);
		w_next[slot][i] = row.at[at];
	}
}

uint held_row(int r)
{
	return (gl_SubgroupID * N_HELD + r) * HELD_WORDS;
}

/* N_HELD of what was loaded, from that slot on, are what is summed now, whichever lane has it. */
void hold_slots(int slot)
{
	subgroupBarrier();
	[[unroll]] for (int r = 0; r < N_HELD; r++)
		[[unroll]] for (int i = 0; i < N_RAW; i++)
			w_held[held_row(r) + i * SUBGROUP + lane()] = w_next[slot + r][i];
	subgroupMemoryBarrierShared();
	subgroupBarrier();
}

/* Two bytes, at a distance counted in twos from the row's begin. */
uint held_half(int r, uint half_at)
{
	return w_held[held_row(r) + half_at / 2] >> 16 * (half_at % 2) & 0xffff;
}

/* Four bytes that begin there. */
uint held_word(int r, uint half_at)
{
	uint i = held_row(r) + half_at / 2;
	uint low = w_held[i], high = w_held[i + 1];

	return half_at % 2 == 0 ? low : low >> 16 | high << 16;
}

uvec4 held_words(int r, uint half_at)
{
	return uvec4(held_word(r, half_at), held_word(r, half_at + 2), held_word(r, half_at + 4),
		held_word(r, half_at + 6));
}

/* The same where it is known that half_at is 2 at + 1. */
uvec4 held_words_odd(int r, uint at)
{
	uint i = held_row(r) + at;
	uint a = w_held[i], b = w_held[i + 1], c = w_held[i + 2], d = w_held[i + 3];

	return uvec4(a >> 16 | b << 16, b >> 16 | c << 16, c >> 16 | d << 16,
		d >> 16 | w_held[i + 4] << 16);
}

uvec4 held_words_even(int r, uint at)
{
	uint i = held_row(r) + at;

	return uvec4(w_held[i], w_held[i + 1], w_held[i + 2], w_held[i + 3]);
}

/* The lane's unit of the round, and the first word or half of its blocks. */
uint held_unit(int u)
{
	return u * SUBGROUP + lane();
}

#if defined(DTYPE_Q8_0)

uvec4 take_quad(int r, int u, int q)
{
	uint at = 17 * held_unit(u);

	return q < 2 ? held_words_odd(r, at + 4 * q) : held_words_even(r, at + 1 + 4 * q);
}

vec2 take_scales(int r, int u, int q)
{
	uint at = held_row(r) + 17 * held_unit(u);

	return vec2(q < 2 ? half_low(w_held[at]) : half_high(w_held[at + 8]), 0.0);
}

#elif defined(DTYPE_Q4_0)

uvec4 take_quad(int r, int u, int q)
{
	uint at = 9 * held_unit(u);
	uvec4 bytes = q < 2 ? held_words_odd(r, at) : held_words_even(r, at + 5);

	return bytes >> 4 * (q % 2) & 0x0f0f0f0f;
}

vec2 take_scales(int r, int u, int q)
{
	uint at = held_row(r) + 9 * held_unit(u);

	return vec2(q < 2 ? half_low(w_held[at]) : half_high(w_held[at + 4]), 0.0);
}

#elif defined(DTYPE_Q6_K)

/* Word of its row at which the lane's block begins: an odd one in its middle. */
uint block_word(int r, int u)
{
	return held_row(r) + 105 * (held_unit(u) / 4) / 2;
}

bool is_block_odd(int u)
{
	return held_unit(u) / 4 % 2 != 0;
}

/* Four words of the lane's block, from this one on. */
uvec4 block_quad(int r, int u, uint word)
{
	uint i = block_word(r, u) + word;
	uint a = w_held[i], b = w_held[i + 1], c = w_held[i + 2], d = w_held[i + 3];
	uint e = w_held[i + 4];

	if (IS_TURNED) {
		uint of_a = is_block_odd(u) ? 0xffff0000 : 0xffffffff;
		return uvec4(b, c, d, (a & of_a) | (e & ~of_a));
	}
	return is_block_odd(u) ? uvec4(a >> 16 | b << 16, b >> 16 | c << 16, c >> 16 | d << 16,
					 d >> 16 | e << 16)
			       : uvec4(a, b, c, d);
}

/*
 * Which 16 numbers of each 32: of half n of the block, those from 16 t on. What is read here for
 * one q and for another is the same expression, which a compiler computes once.
 */
uvec4 take_quad(int r, int u, int q)
{
	uint unit = held_unit(u), n = unit / 2 % 2, t = unit % 2;
	uvec4 low = block_quad(r, u, 16 * n + 4 * t + 8 * (q % 2)) >> (q < 2 ? 0 : 4);
	uvec4 high = block_quad(r, u, 32 + 8 * n + 4 * t);

	high = q < 2 ? high << 4 - 2 * q : high >> 2 * q - 4;
	return (low & 0x0f0f0f0f) | (high & 0x30303030);
}

vec2 take_scales(int r, int u, int q)
{
	uint unit = held_unit(u), n = unit / 2 % 2, t = unit % 2;
	uint i = block_word(r, u) + 48 + 2 * n + q / 2;
	uint a = w_held[i], b = w_held[i + 1], d_word = w_held[block_word(r, u) + 52];
	uint four = (is_block_odd(u) ? a >> 16 | b << 16 : a) >> 8 * t;
	float d = half_low(is_block_odd(u) ? d_word >> 16 : d_word);

	return vec2(d * float(bitfieldExtract(int(four), 16 * (q % 2), 8)), 0.0);
}

#elif defined(DTYPE_TQ2_0)

uvec4 take_quad(int r, int u, int q)
{
	uint unit = held_unit(u);
	uint at = 33 * (unit / 4) + 8 * (unit % 4);

	return held_words(r, at) >> 2 * q & 0x03030303;
}

vec2 take_scales(int r, int u, int q)
{
	return vec2(half_low(held_half(r, 33 * (held_unit(u) / 4) + 32)), 0.0);
}

#elif defined(DTYPE_Q2_0)

uvec4 take_quad(int r, int u, int q)
{
	uint word = held_word(r, 9 * held_unit(u) + 1 + 2 * q);

	return uvec4(word, word >> 2, word >> 4, word >> 6) & 0x03030303;
}

vec2 take_scales(int r, int u, int q)
{
	return vec2(half_low(held_half(r, 9 * held_unit(u))), 0.0);
}

#elif defined(DTYPE_Q1_0)

uvec4 take_quad(int r, int u, int q)
{
	uint unit = held_unit(u);
	uint word = held_word(r, 9 * (unit / 2) + 1 + 4 * (unit % 2) + 2 * (q / 2));

	/* Twice the bit. */
	return q % 2 == 0 ? uvec4(word << 1, word, word >> 1, word >> 2) & 0x02020202
			  : uvec4(word >> 3, word >> 4, word >> 5, word >> 6) & 0x02020202;
}

vec2 take_scales(int r, int u, int q)
{
	return vec2(half_low(held_half(r, 9 * (held_unit(u) / 2))), 0.0);
}

#endif

#endif

/* All rows at once, without HOLD. */
void fetch_round(uint round)
{
	[[unroll]] for (int r = 0; r < ROWS; r++)
		fetch_slot(r, r, round);
}

void hold_round()
{
	hold_slots(0);
}

#endif
