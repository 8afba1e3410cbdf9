/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block formats, from the structures and formulas of ggml 0.25 (ggml-common.h, the dequantize_row
 * functions): tests/unit/test-ref-dequantize.c has numbers that ggml itself made.
 */
#include "tests/ref/ref-ops.h"

#include <assert.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/util/cleanup.h"

static float half_at(const uint8_t *bytes)
{
	uint16_t half;

	memcpy(&half, bytes, sizeof(half));
	return ref_ops_from_half(half);
}

/* Number i of a list of numbers of n_bits each, the low bits of a byte first. */
static int bits_at(const uint8_t *bytes, uint32_t i, uint32_t n_bits)
{
	return bytes[i * n_bits / 8] >> i * n_bits % 8 & ((1u << n_bits) - 1);
}

/* A number that stands there as it is. */
static struct ref_ops_number plain(float v)
{
	return (struct ref_ops_number){.scale = v, .code = 1};
}

/* {f32} */
static struct ref_ops_number get_f32(const uint8_t *block, uint32_t i)
{
	float v;

	(void)i;
	memcpy(&v, block, sizeof(v));
	return plain(v);
}

/* {f16} */
static struct ref_ops_number get_f16(const uint8_t *block, uint32_t i)
{
	(void)i;
	return plain(half_at(block));
}

/* {the upper half of an f32} */
static struct ref_ops_number get_bf16(const uint8_t *block, uint32_t i)
{
	uint32_t bits = (uint32_t)block[0] << 16 | (uint32_t)block[1] << 24;
	float v;

	(void)i;
	memcpy(&v, &bits, sizeof(v));
	return plain(v);
}

/* {f16 d, i8 q[32]} */
static struct ref_ops_number get_q8_0(const uint8_t *block, uint32_t i)
{
	return (struct ref_ops_number){.scale = half_at(block), .code = (int8_t)block[2 + i]};
}

/* {f16 d, u4 q[16][2]}: number i and number 16 + i in a byte. */
static struct ref_ops_number get_q4_0(const uint8_t *block, uint32_t i)
{
	return (struct ref_ops_number){
		.scale = half_at(block), .code = bits_at(block + 2 + i % 16, i / 16, 4), .zero = 8};
}

/*
 * A number of sub-block `sub`, of {f16 d, f16 dmin, u6 scale[8], u6 min[8]}. The latter are 12
 * bytes: those of numbers below 4 whole, their upper two bits the upper two of 4 and on, whose
 * lower four stand in the last four bytes.
 */
static struct ref_ops_number get_k(const uint8_t *block, uint32_t sub, int code)
{
	const uint8_t *s = block + 4;
	uint32_t scale = sub < 4 ? s[sub] & 63 : (s[4 + sub] & 15) | s[sub - 4] >> 6 << 4;
	uint32_t min = sub < 4 ? s[4 + sub] & 63 : s[4 + sub] >> 4 | s[sub] >> 6 << 4;

	return (struct ref_ops_number){.scale = half_at(block) * (float)scale,
		.code = code,
		.min = half_at(block + 2) * (float)min};
}

/* {scales as above, u4 q[4][32][2]}: 32 numbers and the next 32 in 32 bytes. */
static struct ref_ops_number get_q4_k(const uint8_t *block, uint32_t i)
{
	uint32_t sub = i / 32;

	return get_k(block, sub, bits_at(block + 16 + sub / 2 * 32 + i % 32, sub % 2, 4));
}

/* {scales as above, u1 high[32][8], u4 q[4][32][2]}: of 32 numbers bit `sub` of high. */
static struct ref_ops_number get_q5_k(const uint8_t *block, uint32_t i)
{
	uint32_t sub = i / 32;

	return get_k(block, sub,
		bits_at(block + 48 + sub / 2 * 32 + i % 32, sub % 2, 4) |
			bits_at(block + 16 + i % 32, sub, 1) << 4);
}

/*
 * {u4 low[2][64][2], u2 high[2][32][4], i8 scale[16], f16 d}: of each half of 128 numbers the first
 * 64 in the lower four bits of low, the others in the upper; number i of 32 at byte i of high.
 */
static struct ref_ops_number get_q6_k(const uint8_t *block, uint32_t i)
{
	uint32_t half = i / 128, in_half = i % 128;
	int low = bits_at(block + 64 * half + in_half % 64, in_half / 64, 4);
	int high = bits_at(block + 128 + 32 * half + in_half % 32, in_half / 32, 2);

	return (struct ref_ops_number){.scale = half_at(block + 208) * (int8_t)block[192 + i / 16],
		.code = low | high << 4,
		.zero = 32};
}

/* {u2 q[2][32][4], f16 d}: number i of 32 at byte i, four lots of 32 in the bits. */
static struct ref_ops_number get_tq2_0(const uint8_t *block, uint32_t i)
{
	return (struct ref_ops_number){.scale = half_at(block + 64),
		.code = bits_at(block + i / 128 * 32 + i % 32, i % 128 / 32, 2),
		.zero = 1};
}

/* {f16 d, u2 q[64]} */
static struct ref_ops_number get_q2_0(const uint8_t *block, uint32_t i)
{
	return (struct ref_ops_number){
		.scale = half_at(block), .code = bits_at(block + 2, i, 2), .zero = 1};
}

/* {f16 d, u1 q[128]}: -d or d. */
static struct ref_ops_number get_q1_0(const uint8_t *block, uint32_t i)
{
	return (struct ref_ops_number){
		.scale = half_at(block), .code = 2 * bits_at(block + 2, i, 1), .zero = 1};
}

static const struct format {
	uint32_t dtype;
	struct ref_ops_number (*get)(const uint8_t *block, uint32_t i); /* number i of a block */
	uint32_t n_scales;
	uint32_t scale_at[REF_OPS_MAX_SCALES];
} formats[] = {
	{DTYPE_F32, get_f32, 0, {0}},
	{DTYPE_F16, get_f16, 0, {0}},
	{DTYPE_BF16, get_bf16, 0, {0}},
	{DTYPE_Q8_0, get_q8_0, 1, {0}},
	{DTYPE_Q4_0, get_q4_0, 1, {0}},
	{DTYPE_Q4_K, get_q4_k, 2, {0, 2}},
	{DTYPE_Q5_K, get_q5_k, 2, {0, 2}},
	{DTYPE_Q6_K, get_q6_k, 1, {208}},
	{DTYPE_TQ2_0, get_tq2_0, 1, {64}},
	{DTYPE_Q2_0, get_q2_0, 1, {0}},
	{DTYPE_Q1_0, get_q1_0, 1, {0}},
};

static const struct format *find_format(uint32_t dtype)
{
	for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
		if (formats[i].dtype == dtype)
			return &formats[i];
	return NULL;
}

static struct ref_ops_number get(
	const struct format *f, const struct dtype *t, const uint8_t *row, uint32_t i)
{
	return f->get(row + (uint64_t)(i / t->n_block) * t->n_bytes, i % t->n_block);
}

struct ref_ops_number ref_ops_get_number(uint32_t dtype, const void *row, uint32_t i)
{
	const struct format *f = find_format(dtype);

	assert(f && "a block format without reference");
	return get(f, dtype_find(dtype), row, i);
}

void ref_ops_dequantize(uint32_t dtype, const void *row, uint32_t k, float *ret_y)
{
	const struct format *f = find_format(dtype);
	const struct dtype *t = dtype_find(dtype);

	assert(f && "a block format without reference");
	for (uint32_t i = 0; i < k; i++) {
		struct ref_ops_number n = get(f, t, row, i);
		ret_y[i] = n.scale * (float)(n.code - n.zero) - n.min;
	}
}

uint32_t ref_ops_get_scales(uint32_t dtype, uint32_t ret_at[REF_OPS_MAX_SCALES])
{
	const struct format *f = find_format(dtype);

	for (uint32_t i = 0; f && i < f->n_scales; i++)
		ret_at[i] = f->scale_at[i];
	return f ? f->n_scales : 0;
}
