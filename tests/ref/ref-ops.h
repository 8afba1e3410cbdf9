/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_REF_REF_OPS_H
#define TESTS_REF_REF_OPS_H

/*
 * The operations of the engine as plain loops that sum in double: what kernels are held against.
 * Written from the formulas, not from the kernels. Any thread.
 */
#include <stdbool.h>
#include <stdint.h>

/* IEEE binary16 and back; to half rounds to nearest, ties to even. */
float ref_ops_from_half(uint16_t half);
uint16_t ref_ops_to_half(float value);

/*
 * One row of k numbers in a block format that is supported (enum dtype_id) -> [k] f32, each rounded
 * at most once: the difference of Q4_K and Q5_K; all else is exact.
 */
void ref_ops_dequantize(uint32_t dtype, const void *row, uint32_t k, float *ret_y);

/* What a format says of a number: scale (code - zero) - min. Of plain ones scale, with code 1. */
struct ref_ops_number {
	float scale;
	int code;
	int zero;
	float min;
};

/* Number i of a row. */
struct ref_ops_number ref_ops_get_number(uint32_t dtype, const void *row, uint32_t i);

enum { REF_OPS_MAX_SCALES = 2 };

/* Where in a block its f16 scales are, d first; how many. */
uint32_t ref_ops_get_scales(uint32_t dtype, uint32_t ret_at[REF_OPS_MAX_SCALES]);

/*
 * One block of Q8_0, of n <= 32 numbers: scale = largest |x| / 127, rounded to f16 after the
 * numbers were made of it, round(x / scale), halves away from zero. As quantize_row_q8_0_ref of
 * GGML.
 */
void ref_ops_quantize_block(const float *x, uint32_t n, uint16_t *ret_scale, int8_t *ret_numbers);

/* x [n] becomes what is left of it in blocks of 32 as above; the last may be shorter. */
void ref_ops_round_to_q8_0(float *x, uint32_t n);

/* y = x gain / sqrt(mean(x^2) + eps), all [k]; y may be x. */
void ref_ops_rms_norm(const float *x, const float *gain, uint32_t k, float eps, float *ret_y);

/*
 * y[j] = sum over i of w[j][i] x[i]; w [n][k], x [k], y [n]. scale[j], when not NULL: the sum of
 * the absolute products, what rounding errors are measured against.
 */
void ref_ops_matvec(
	const float *w, const float *x, uint32_t n, uint32_t k, float *ret_y, float *ret_scale);

/* x sigmoid(x). */
float ref_ops_silu(float x);

/*
 * The n_used largest of softmax(logits) [n], largest first, of equal ones the lower id first, and
 * their weights scaled to a sum of 1; ids and weights [n_used].
 */
void ref_ops_route(
	const float *logits, uint32_t n, uint32_t n_used, uint32_t *ret_ids, float *ret_weights);

/* Of the first n_rot numbers pair i turns by base^(-2 i / n_rot) / factors[i] a position. */
struct ref_ops_rope {
	uint32_t n_rot;
	float base;
	bool is_interleaved;  /* pair i: numbers 2 i and 2 i + 1 (NORM), else i and i + n_rot / 2
				 (NEOX) */
	const float *factors; /* [n_rot / 2]; NULL: 1 each */
};

/* Rotation of a head, in place; angles in long double. */
void ref_ops_rope(float *head, const struct ref_ops_rope *rope, uint32_t position);

/* Undoes it: rotates by minus so many positions. */
void ref_ops_rope_back(float *head, const struct ref_ops_rope *rope, uint32_t n_positions);

/*
 * y = sum over j < n_keys of softmax_j(q . k[j] / sqrt(dim)) v[j]; q and y [dim], k[j] and v[j]
 * [dim] each, stride floats apart.
 */
void ref_ops_attention(const float *q, const float *k, const float *v, uint32_t n_keys,
	uint32_t dim, uint32_t stride, float *ret_y);

/*
 * The same with scores s made cap tanh(s / cap), unless cap is 0, and one more score in the
 * softmax, `sink`, that has no value; -INFINITY: none.
 */
void ref_ops_attention_with(const float *q, const float *k, const float *v, uint32_t n_keys,
	uint32_t dim, uint32_t stride, float cap, float sink, float *ret_y);

#endif
