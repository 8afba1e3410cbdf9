/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ref/ref-blocks.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "proto/dtype.h"
#include "shaders/abi.h"
#include "tests/ref/ref-ops.h"

/* A number of a block: w = scale code - offset. */
struct number {
	int code;
	float scale;
	float offset;
};

uint64_t ref_blocks_random(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*state = x;
	return x * 0x2545f4914f6cdd1d;
}

static float get_half(const uint8_t *at)
{
	uint16_t half;

	memcpy(&half, at, sizeof(half));
	return ref_ops_from_half(half);
}

static float get_bf16(const uint8_t *at)
{
	uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
	float v;

	memcpy(&v, &bits, sizeof(v));
	return v;
}

static void put_scale(uint32_t dtype, uint64_t *state, uint8_t *at)
{
	float v = (float)((int64_t)ref_blocks_random(state) >> 11) * 0x1p-56f;
	uint16_t half = ref_ops_to_half(v);
	uint32_t bits;

	memcpy(&bits, &v, sizeof(bits));
	if (dtype == DTYPE_BF16)
		half = (uint16_t)(bits >> 16);
	memcpy(at, &half, sizeof(half));
}

/* Where a block has its f16 d; of Q4_K dmin follows. */
static uint32_t scale_at(uint32_t dtype)
{
	return dtype == DTYPE_Q6_K ? 208 : dtype == DTYPE_TQ2_0 ? 64 : 0;
}

void ref_blocks_fill(uint32_t dtype, uint64_t n, uint64_t *state, void *ret_blocks)
{
	uint32_t n_bytes = dtype_find(dtype)->n_bytes;
	uint8_t *bytes = ret_blocks;

	for (uint64_t at = 0; at < n * n_bytes; at += 8) {
		uint64_t v = ref_blocks_random(state), n_left = n * n_bytes - at;
		memcpy(bytes + at, &v, n_left < 8 ? n_left : 8);
	}
	for (uint64_t i = 0; i < n; i++) {
		put_scale(dtype, state, bytes + i * n_bytes + scale_at(dtype));
		if (dtype == DTYPE_Q4_K)
			put_scale(dtype, state, bytes + i * n_bytes + 2);
	}
}

static struct number get_q4_K(const uint8_t *block, uint32_t i)
{
	const uint8_t *s = block + 4;
	uint32_t j = i / 32;
	int byte = block[16 + 32 * (i / 64) + i % 32];
	int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
	int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;

	return (struct number){.code = j % 2 ? byte >> 4 : byte & 15,
		.scale = get_half(block) * (float)scale,
		.offset = get_half(block + 2) * (float)minimum};
}

static struct number get_q6_K(const uint8_t *block, uint32_t i)
{
	uint32_t n = i / 128, quarter = i % 128 / 32, l = i % 32;
	int low = block[64 * n + 32 * (quarter % 2) + l] >> (quarter < 2 ? 0 : 4) & 15;
	int high = block[128 + 32 * n + l] >> 2 * quarter & 3;
	float scale = get_half(block + 208) * (float)(int8_t)block[192 + i / 16];

	return (struct number){.code = low | high << 4, .scale = scale, .offset = 32 * scale};
}

static struct number get_number(uint32_t dtype, const uint8_t *block, uint32_t i)
{
	float d = get_half(block + scale_at(dtype));

	switch (dtype) {
	case DTYPE_F16: return (struct number){.code = 1, .scale = d};
	case DTYPE_BF16: return (struct number){.code = 1, .scale = get_bf16(block)};
	case DTYPE_Q8_0: return (struct number){.code = (int8_t)block[2 + i], .scale = d};
	case DTYPE_Q4_0:
		return (struct number){.code = block[2 + i % 16] >> (i < 16 ? 0 : 4) & 15,
			.scale = d,
			.offset = 8 * d};
	case DTYPE_Q4_K: return get_q4_K(block, i);
	case DTYPE_Q6_K: return get_q6_K(block, i);
	case DTYPE_TQ2_0:
		return (struct number){
			.code = block[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3,
			.scale = d,
			.offset = d};
	case DTYPE_Q2_0:
		return (struct number){
			.code = block[2 + i / 4] >> 2 * (i % 4) & 3, .scale = d, .offset = d};
	case DTYPE_Q1_0:
		return (struct number){
			.code = block[2 + i / 8] >> i % 8 & 1, .scale = 2 * d, .offset = d};
	}
	assert(!"a block format without reference");
	return (struct number){0};
}

void ref_blocks_dequantize(
	uint32_t dtype, const void *row, uint32_t k, float *ret_w, float *ret_reach)
{
	const struct dtype *t = dtype_find(dtype);
	const uint8_t *bytes = row;

	for (uint32_t i = 0; i < k; i++) {
		struct number n =
			get_number(dtype, bytes + i / t->n_block * t->n_bytes, i % t->n_block);
		ret_w[i] = n.scale * (float)n.code - n.offset;
		if (ret_reach)
			ret_reach[i] = fabsf(n.scale * (float)n.code) + fabsf(n.offset);
	}
}

/* Which number of 32 byte b of word w is. */
static uint32_t number_of(uint32_t order, uint32_t w, uint32_t b)
{
	switch (order) {
	case ABI_QUANT_ORDER_BY4: return 16 * (w / 4) + 4 * b + w % 4;
	case ABI_QUANT_ORDER_BY8: return 8 * b + w;
	default: return 4 * w + b;
	}
}

void ref_blocks_unstage(
	uint32_t order, const void *row, uint32_t k, float *ret_a, float *ret_scales)
{
	const uint8_t *bytes = row;

	for (uint32_t i = 0; i < k; i++) {
		uint32_t block = i / 32, unit = i / 64, byte = i % 32;
		uint32_t w = byte / 4, quad = block % 2 * 2 + w / 4;
		int8_t q = (int8_t)bytes[(quad * (k / 64) + unit) * 16 + w % 4 * 4 + byte % 4];
		float scale;

		memcpy(&scale, bytes + k + (block % 2 * (k / 64) + unit) * 8, sizeof(scale));
		ret_a[32 * block + number_of(order, w, byte % 4)] = scale * (float)q;
		if (ret_scales)
			ret_scales[block] = scale;
	}
}
