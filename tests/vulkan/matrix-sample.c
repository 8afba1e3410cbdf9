/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/matrix-sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"
#include "tests/ref/ref-ops.h"

/* splitmix64 (https://prng.di.unimi.it/splitmix64.c). */
static uint64_t next(uint64_t *rng)
{
	uint64_t z = *rng += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static float unit(uint64_t *rng)
{
	return (float)(next(rng) >> 40) * 0x1p-23f - 1.0f;
}

static void put_half(uint8_t *at, float v)
{
	uint16_t half = ref_ops_to_half(v);

	memcpy(at, &half, sizeof(half));
}

static float get_half(const uint8_t *at)
{
	uint16_t half;

	memcpy(&half, at, sizeof(half));
	return ref_ops_from_half(half);
}

uint64_t matrix_sample_row_bytes(uint32_t dtype, uint32_t k)
{
	const struct dtype *t = dtype_find(dtype);

	return (uint64_t)k / t->n_block * t->n_bytes;
}

void matrix_sample_fill(uint32_t dtype, uint32_t k, uint64_t *rng, uint8_t *ret_row)
{
	const struct dtype *t = dtype_find(dtype);
	/* Of one block: where its factors are, and the largest number that they multiply. */
	uint32_t d_at = dtype == DTYPE_Q6_K ? 208 : dtype == DTYPE_TQ2_0 ? 64 : 0;
	float top = dtype == DTYPE_Q8_0   ? 128
		    : dtype == DTYPE_Q4_0 ? 8
		    : dtype == DTYPE_Q4_K ? 63 * 15
		    : dtype == DTYPE_Q6_K ? 128 * 32
					  : 1;

	for (uint32_t i = 0; i < k / t->n_block; i++) {
		uint8_t *block = ret_row + (uint64_t)i * t->n_bytes;
		float v = unit(rng), e = unit(rng);
		if (dtype == DTYPE_F32) {
			memcpy(block, &v, sizeof(v));
		} else if (dtype == DTYPE_BF16) {
			memcpy(block, (const uint8_t *)&v + 2, 2);
		} else if (dtype == DTYPE_F16) {
			put_half(block, v);
		} else {
			for (uint32_t at = 0; at < t->n_bytes; at++)
				block[at] = (uint8_t)next(rng);
			put_half(block + d_at, v / top);
			if (dtype == DTYPE_Q4_K)
				put_half(block + 2, e / 63);
		}
	}
}

/* The 6-bit factor s (side 0) or t (side 1) of 32 numbers, j of 8: q4_K's twelve bytes. */
static uint32_t factor_6(const uint8_t *bytes, uint32_t j, uint32_t side)
{
	if (j < 4)
		return bytes[j + 4 * side] & 63;
	uint32_t low = side ? bytes[j + 4] >> 4 : bytes[j + 4] & 15;
	return low | (uint32_t)bytes[j - 4 + 4 * side] >> 6 << 4;
}

static float get_q4_k(const uint8_t *b, uint32_t i, float *ret_size)
{
	uint32_t j = i / 32;
	uint8_t byte = b[16 + i / 64 * 32 + i % 32];
	float v = get_half(b) * (float)factor_6(b + 4, j, 0) *
		  (float)(i / 32 % 2 ? byte >> 4 : byte & 15);
	float e = get_half(b + 2) * (float)factor_6(b + 4, j, 1);

	*ret_size = fabsf(v) + fabsf(e);
	return v - e;
}

static float get_q6_k(const uint8_t *b, uint32_t i)
{
	uint32_t half = i / 128, run = i % 128 / 32, l = i % 32;
	uint8_t low = b[64 * half + 32 * (run % 2) + l];
	uint32_t q = (run / 2 ? low >> 4 : low & 15) |
		     (uint32_t)(b[128 + 32 * half + l] >> 2 * run & 3) << 4;

	return get_half(b + 208) * (float)(int8_t)b[192 + i / 16] * ((float)q - 32);
}

static float get_one(uint32_t dtype, const uint8_t *b, uint32_t i, float *ret_size)
{
	float v = 0;
	uint32_t bits;

	switch (dtype) {
	case DTYPE_F32: memcpy(&v, b, sizeof(v)); break;
	case DTYPE_F16: v = get_half(b); break;
	case DTYPE_BF16:
		bits = (uint32_t)(b[0] | b[1] << 8) << 16;
		memcpy(&v, &bits, sizeof(v));
		break;
	case DTYPE_Q8_0: v = get_half(b) * (int8_t)b[2 + i]; break;
	case DTYPE_Q4_0:
		v = get_half(b) * ((i < 16 ? b[2 + i] & 15 : b[2 + i - 16] >> 4) - 8);
		break;
	case DTYPE_Q4_K: return get_q4_k(b, i, ret_size);
	case DTYPE_Q6_K: v = get_q6_k(b, i); break;
	case DTYPE_TQ2_0:
		v = get_half(b + 64) *
		    (float)((b[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) - 1);
		break;
	case DTYPE_Q2_0: v = get_half(b) * (float)((b[2 + i / 4] >> i % 4 * 2 & 3) - 1); break;
	case DTYPE_Q1_0: v = b[2 + i / 8] >> i % 8 & 1 ? get_half(b) : -get_half(b); break;
	default: abort();
	}
	*ret_size = fabsf(v);
	return v;
}

void matrix_sample_get(
	uint32_t dtype, const uint8_t *row, uint32_t k, float *ret_w, float *ret_size)
{
	const struct dtype *t = dtype_find(dtype);

	for (uint32_t i = 0; i < k; i++)
		ret_w[i] = get_one(dtype, row + (uint64_t)i / t->n_block * t->n_bytes,
			i % t->n_block, &ret_size[i]);
}

struct matrix_sample_dot matrix_sample_dot(
	const float *w, const float *size, const float *x, uint32_t k)
{
	double y = 0, squares = 0, all = 0, steps = 0;

	for (uint32_t i = 0; i < k; i++) {
		double product = fabs((double)size[i] * x[i]);
		y += (double)w[i] * x[i];
		squares += product * product;
		all += product;
		steps += (double)x[i] * x[i];
	}
	/* 2^-25: half a step of the f16s below 2^-14. 4e-6: of sums in f32. */
	return (struct matrix_sample_dot){.y = y,
		.tolerance = 8 * (0x1p-11 * sqrt(squares) + 0x1p-25 * (sqrt(steps) + sqrt(k))) +
			     4e-6 * all};
}

struct matrix_sample_dot matrix_sample_swiglu(
	struct matrix_sample_dot gate, struct matrix_sample_dot up)
{
	double silu = gate.y / (1 + exp(-gate.y));

	/* |silu'| is at most 1.1. */
	return (struct matrix_sample_dot){.y = silu * up.y,
		.tolerance = 1.1 * gate.tolerance * (fabs(up.y) + up.tolerance) +
			     fabs(silu) * up.tolerance + 1e-6 * fabs(silu * up.y)};
}
