/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ref/ref-ops.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

float ref_ops_from_half(uint16_t half)
{
	float sign = half & 0x8000 ? -1.0f : 1.0f;
	int exponent = half >> 10 & 31;
	int mantissa = half & 1023;

	if (exponent == 31)
		return mantissa ? NAN : sign * INFINITY;
	if (exponent == 0)
		return sign * ldexpf((float)mantissa, -24);
	return sign * ldexpf((float)(mantissa | 1024), exponent - 25);
}

uint16_t ref_ops_to_half(float value)
{
	uint16_t sign = signbit(value) ? 0x8000 : 0;
	float v = fabsf(value);
	int exponent;

	if (isnan(v))
		return sign | 0x7e00;
	if (v >= 65520.0f) /* halfway from the largest, 65504, to 2^16 */
		return sign | 0x7c00;
	frexpf(v, &exponent); /* v = [0.5, 1) 2^exponent */
	if (v == 0.0f || exponent < -13)
		/* Below 2^-14: steps of 2^-24; 1024 of them are the smallest normal number. */
		return sign | (uint16_t)lrintf(ldexpf(v, 24));
	/* 1024 to 2048 steps; 2048 carries into the exponent. */
	return sign | (uint16_t)(lrintf(ldexpf(v, 11 - exponent)) + ((exponent + 13) << 10));
}

void ref_ops_quantize_block(const float *x, uint32_t n, uint16_t *ret_scale, int8_t *ret_numbers)
{
	float top = 0.0f;

	for (uint32_t i = 0; i < n; i++)
		top = fmaxf(top, fabsf(x[i]));
	float scale = top / 127.0f;
	for (uint32_t i = 0; i < n; i++)
		ret_numbers[i] = scale == 0.0f ? 0 : (int8_t)roundf(x[i] * (1.0f / scale));
	*ret_scale = ref_ops_to_half(scale);
}

void ref_ops_round_to_q8_0(float *x, uint32_t n)
{
	int8_t numbers[32];
	uint16_t scale;

	for (uint32_t at = 0; at < n; at += 32) {
		uint32_t n_block = n - at < 32 ? n - at : 32;
		ref_ops_quantize_block(x + at, n_block, &scale, numbers);
		for (uint32_t i = 0; i < n_block; i++)
			x[at + i] = ref_ops_from_half(scale) * numbers[i];
	}
}

void ref_ops_rms_norm(const float *x, const float *gain, uint32_t k, float eps, float *ret_y)
{
	double squares = 0.0;

	for (uint32_t i = 0; i < k; i++)
		squares += (double)x[i] * x[i];
	double scale = 1.0 / sqrt(squares / k + (double)eps);
	for (uint32_t i = 0; i < k; i++)
		ret_y[i] = (float)(x[i] * scale * gain[i]);
}

/* Four sums side by side: one would wait for each addition, and models are computed with this. */
static double dot(const float *a, const float *b, uint32_t n)
{
	double sums[4] = {0};

	for (uint32_t i = 0; i + 4 <= n; i += 4)
		for (uint32_t l = 0; l < 4; l++)
			sums[l] += (double)a[i + l] * b[i + l];
	for (uint32_t i = n / 4 * 4; i < n; i++)
		sums[0] += (double)a[i] * b[i];
	return sums[0] + sums[1] + sums[2] + sums[3];
}

void ref_ops_matvec(
	const float *w, const float *x, uint32_t n, uint32_t k, float *ret_y, float *ret_scale)
{
	for (uint32_t j = 0; j < n; j++) {
		const float *row = w + (uint64_t)j * k;
		double scale = 0.0;

		ret_y[j] = (float)dot(row, x, k);
		if (!ret_scale)
			continue;
		for (uint32_t i = 0; i < k; i++)
			scale += fabs((double)row[i] * x[i]);
		ret_scale[j] = (float)scale;
	}
}

float ref_ops_silu(float x)
{
	return (float)(x / (1.0 + exp(-(double)x)));
}

/* Of those not taken the largest, the first of equal ones. */
static uint32_t find_next(const float *logits, uint32_t n, const uint32_t *taken, uint32_t n_taken)
{
	uint32_t best = UINT32_MAX;

	for (uint32_t e = 0; e < n; e++) {
		bool is_taken = false;
		for (uint32_t i = 0; i < n_taken; i++)
			is_taken |= taken[i] == e;
		if (!is_taken && (best == UINT32_MAX || logits[e] > logits[best]))
			best = e;
	}
	return best;
}

void ref_ops_route(
	const float *logits, uint32_t n, uint32_t n_used, uint32_t *ret_ids, float *ret_weights)
{
	double highest = -INFINITY, all = 0.0, chosen = 0.0;

	for (uint32_t e = 0; e < n; e++)
		highest = fmax(highest, logits[e]);
	for (uint32_t e = 0; e < n; e++)
		all += exp(logits[e] - highest);
	for (uint32_t i = 0; i < n_used; i++) {
		ret_ids[i] = find_next(logits, n, ret_ids, i);
		chosen += exp(logits[ret_ids[i]] - highest) / all;
	}
	for (uint32_t i = 0; i < n_used; i++)
		ret_weights[i] = (float)(exp(logits[ret_ids[i]] - highest) / all / chosen);
}

static void rotate(float *head, const struct ref_ops_rope *rope, long double position)
{
	uint32_t n_half = rope->n_rot / 2;

	for (uint32_t i = 0; i < n_half; i++) {
		long double factor = rope->factors ? rope->factors[i] : 1.0L;
		long double angle = position * powl(rope->base, -2.0L * i / rope->n_rot) / factor;
		long double c = cosl(angle), s = sinl(angle);
		float *x0 = rope->is_interleaved ? head + 2 * i : head + i;
		float *x1 = rope->is_interleaved ? x0 + 1 : x0 + n_half;
		float a0 = *x0, a1 = *x1;

		*x0 = (float)(a0 * c - a1 * s);
		*x1 = (float)(a1 * c + a0 * s);
	}
}

void ref_ops_rope(float *head, const struct ref_ops_rope *rope, uint32_t position)
{
	rotate(head, rope, position);
}

void ref_ops_rope_back(float *head, const struct ref_ops_rope *rope, uint32_t n_positions)
{
	rotate(head, rope, -(long double)n_positions);
}

static double score(const float *q, const float *k, uint32_t dim, double cap)
{
	double s = dot(q, k, dim) / sqrt(dim);

	return cap > 0.0 ? cap * tanh(s / cap) : s;
}

void ref_ops_attention_with(const float *q, const float *k, const float *v, uint32_t n_keys,
	uint32_t dim, uint32_t stride, float cap, float sink, float *ret_y)
{
	double highest = sink, weight = 0.0;

	for (uint32_t j = 0; j < n_keys; j++)
		highest = fmax(highest, score(q, k + (uint64_t)j * stride, dim, cap));
	double sums[1024] = {0};
	assert(dim <= 1024);
	for (uint32_t j = 0; j < n_keys; j++) {
		double p = exp(score(q, k + (uint64_t)j * stride, dim, cap) - highest);
		weight += p;
		for (uint32_t i = 0; i < dim; i++)
			sums[i] += p * v[(uint64_t)j * stride + i];
	}
	weight += exp(sink - highest);
	for (uint32_t i = 0; i < dim; i++)
		ret_y[i] = (float)(sums[i] / weight);
}

void ref_ops_attention(const float *q, const float *k, const float *v, uint32_t n_keys,
	uint32_t dim, uint32_t stride, float *ret_y)
{
	ref_ops_attention_with(q, k, v, n_keys, dim, stride, 0.0f, -INFINITY, ret_y);
}
