/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/synthetic-block.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "proto/util/cleanup.h"

static const float half_min = 6.103515625e-05f; /* 2^-14, the least normal f16 */

uint64_t synthetic_block_draw(uint64_t *rng)
{
	uint64_t x = *rng += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static void draw_bytes(uint64_t *rng, uint8_t *ret, uint32_t n_bytes)
{
	while (n_bytes > 0) {
		uint64_t x = synthetic_block_draw(rng);
		uint32_t n = n_bytes < sizeof(x) ? n_bytes : sizeof(x);

		memcpy(ret, &x, n);
		ret += n;
		n_bytes -= n;
	}
}

/* [0, 1) */
static float draw_unit(uint64_t *rng)
{
	return (float)(synthetic_block_draw(rng) >> 40) * 0x1p-24f;
}

/* To the nearest f16, ties to even; |value| is below the largest. */
static uint16_t to_half(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
	float magnitude = fabsf(value);
	/* Below the normal ones a step is 2^-24. */
	if (magnitude < half_min)
		return sign | (uint16_t)lrintf(magnitude * 0x1p24f);
	bits &= 0x7fffffff;
	bits += 0xfff + (bits >> 13 & 1);
	return sign | (uint16_t)((bits >> 13) - (112u << 10));
}

static void put_half(uint8_t *at, float value)
{
	uint16_t half = to_half(value);

	memcpy(at, &half, sizeof(half));
}

/*
 * A scale for codes of that root mean square: within a quarter of the middle, whose own mean square
 * is 1 + 1/48.
 */
static float draw_scale(uint64_t *rng, float sigma, float code_rms, bool is_signed)
{
	static const float spread_rms = 1.01036f;
	float d = (0.75f + 0.5f * draw_unit(rng)) * sigma / (code_rms * spread_rms);

	d = d < half_min ? half_min : d;
	return is_signed && synthetic_block_draw(rng) & 1 ? -d : d;
}

/* The sum of four uniform numbers: close enough to a normal one, and fast. */
static float draw_normal(uint64_t *rng)
{
	uint64_t x = synthetic_block_draw(rng);
	float sum = (float)(x & 0xffff) + (float)(x >> 16 & 0xffff) + (float)(x >> 32 & 0xffff) +
		    (float)(x >> 48);

	return (sum - 4 * 32767.5f) / 37837.2f; /* 2 * 65536 / sqrt(12) */
}

static void fill_f32(uint64_t *rng, float sigma, uint8_t *ret_block)
{
	float value = sigma * draw_normal(rng);

	memcpy(ret_block, &value, sizeof(value));
}

static void fill_f16(uint64_t *rng, float sigma, uint8_t *ret_block)
{
	put_half(ret_block, sigma * draw_normal(rng));
}

/* d f16, codes [32] i8: d code */
static void fill_q8_0(uint64_t *rng, float sigma, uint8_t *ret_block)
{
	put_half(ret_block, draw_scale(rng, sigma, 73.3f, true));
	draw_bytes(rng, ret_block + 2, 32);
	for (int i = 2; i < 34; i++)
		if (ret_block[i] == 0x80) /* -128: no quantizer's */
			ret_block[i] = 0;
}

/* d f16, codes [32] of 4 bits: d (code - 8) */
static void fill_q4_0(uint64_t *rng, float sigma, uint8_t *ret_block)
{
	put_half(ret_block, draw_scale(rng, sigma, 4.637f, true));
	draw_bytes(rng, ret_block + 2, 16);
}

/*
 * d f16, dmin f16, 12 bytes of 8 scales and 8 mins of 6 bits, codes [256] of 4 bits:
 * d scale code - dmin min. Here min = scale < 32 and dmin = 7.5 d, so that the mean is 0: bytes
 * 0-3 have four scales and the upper bits of the others, 4-7 the same of mins, 8-11 the lower bits.
 */
static void fill_q4_k(uint64_t *rng, float sigma, uint8_t *ret_block)
{
	float d = draw_scale(rng, sigma, 18.04f * 4.61f, false);
	uint8_t *scales = ret_block + 4;

	put_half(ret_block, d);
	put_half(ret_block + 2, 7.5f * d);
	draw_bytes(rng, scales, 12 + 128);
	for (int i = 0; i < 4; i++) {
		scales[i] &= 0x5f; /* 0x40: the fifth bit of a later scale */
		scales[4 + i] = scales[i];
		scales[8 + i] = (uint8_t)((scales[8 + i] & 0xf) * 0x11);
	}
}

/* 4 lower and 2 upper bits of codes [256], scales [16] i8, d f16: d scale (code - 32) */
static void fill_q6_k(uint64_t *rng, float sigma, uint8_t *ret_block)
{
	draw_bytes(rng, ret_block, 208);
	for (int i = 192; i < 208; i++)
		ret_block[i] = (uint8_t)((ret_block[i] & 31) - 16);
	put_half(ret_block + 208, draw_scale(rng, sigma, 9.247f * 18.48f, false));
}

/* Codes 0, 1 and 2 of 2 bits, four a byte: 3 is none of a ternary number's. */
static void draw_ternary(uint64_t *rng, uint8_t *ret, uint32_t n_bytes)
{
	for (uint32_t i = 0; i < n_bytes; i++) {
		uint32_t x = (uint32_t)(synthetic_block_draw(rng) >> 32);
		uint32_t code = 0;

		for (int k = 0; k < 4; k++, x /= 3)
			code |= x % 3 << 2 * k;
		ret[i] = (uint8_t)code;
	}
}

/* codes [256], d f16: d (code - 1) */
static void fill_tq2_0(uint64_t *rng, float sigma, uint8_t *ret_block)
{
	draw_ternary(rng, ret_block, 64);
	put_half(ret_block + 64, draw_scale(rng, sigma, 0.8165f, false));
}

/* d f16, codes [64]: d (code - 1) */
static void fill_q2_0(uint64_t *rng, float sigma, uint8_t *ret_block)
{
	put_half(ret_block, draw_scale(rng, sigma, 0.8165f, false));
	draw_ternary(rng, ret_block + 2, 16);
}

/* d f16, bits [128]: d or -d */
static void fill_q1_0(uint64_t *rng, float sigma, uint8_t *ret_block)
{
	put_half(ret_block, draw_scale(rng, sigma, 1, false));
	draw_bytes(rng, ret_block + 2, 16);
}

static const struct synthetic_block blocks[] = {
	{SYNTHETIC_BLOCK_F32, 1, 4, fill_f32},
	{SYNTHETIC_BLOCK_F16, 1, 2, fill_f16},
	{SYNTHETIC_BLOCK_Q4_0, 32, 18, fill_q4_0},
	{SYNTHETIC_BLOCK_Q8_0, 32, 34, fill_q8_0},
	{SYNTHETIC_BLOCK_Q4_K, 256, 144, fill_q4_k},
	{SYNTHETIC_BLOCK_Q6_K, 256, 210, fill_q6_k},
	{SYNTHETIC_BLOCK_TQ2_0, 256, 66, fill_tq2_0},
	{SYNTHETIC_BLOCK_Q1_0, 128, 18, fill_q1_0},
	{SYNTHETIC_BLOCK_Q2_0, 64, 18, fill_q2_0},
};

const struct synthetic_block *synthetic_block_find(uint32_t dtype)
{
	for (size_t i = 0; i < ARRAY_SIZE(blocks); i++)
		if (blocks[i].dtype == dtype)
			return &blocks[i];
	assert(!"a format of this file");
	return NULL;
}
