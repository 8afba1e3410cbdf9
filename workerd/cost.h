/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_COST_H
#define WORKERD_COST_H

/*
 * What a dispatch of an op cannot do without: bytes of weights, of keys and values, and arithmetic.
 * Beside workerd/record.c: an op that is recorded otherwise costs otherwise. Bytes are the least
 * that the work needs (a weight once a dispatch, a key once a session), so that a rate made of them
 * may be held against what memory gives; values between ops are not counted.
 *
 * Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "shaders/kernels.h"
#include "workerd/kv-layout.h"

struct abi_row;
struct graph;
struct graph_op;

enum { COST_SHAPE_BYTES = 48 };

struct cost {
	uint64_t n_weight_bytes;
	uint64_t n_kv_bytes;
	uint64_t n_flops;             /* a multiplication and an addition are two */
	char shape[COST_SHAPE_BYTES]; /* "4096 x 6144", the op's words for what it computes */
};

/* A step as it was computed. */
struct cost_step {
	const struct graph *graph;
	enum kv_layout_type kv_type;
	const struct abi_row *rows; /* [n_rows] */
	uint32_t n_rows;
	uint32_t n_want;
};

/*
 * Of one dispatch of op by kernel id. n_alike: the op's dispatches by the same kernel, which share
 * what it reads; n_kindred: its dispatches of the same block format by any kernel, which share the
 * arithmetic (rows of a step that two kernels divide among them). At least 1 both.
 *
 * Where the matrices of an op have several block formats, a kernel's name says which it reads:
 * "MATMUL_Q4_K" those of Q4_K.
 */
void cost_get(const struct cost_step *step, const struct graph_op *op, enum kernels_id id,
	uint32_t n_alike, uint32_t n_kindred, struct cost *ret_cost);

/* Do both kernels read matrices of one block format? By their names, as above. */
bool cost_is_kindred(const struct graph_op *op, enum kernels_id a, enum kernels_id b);

#endif
