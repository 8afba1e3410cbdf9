/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_ROPE_KV_H
#define WORKERD_OPS_ROPE_KV_H

/*
 * Norm and rotation of queries and keys, and the rows' keys and values put into their pages
 * (shaders/rope-kv.comp).
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/kv-layout.h"

struct err;
struct op_pool;
struct vk_command;

struct op_rope_kv_params {
	uint64_t qkv;    /* device address of [m][(n_head + 2 n_head_kv) head_dim] f32 */
	uint64_t q_gain; /* of [head_dim] f32; 0: no norm */
	uint64_t k_gain; /* of [head_dim] f32; 0: no norm */
	uint64_t turns;  /* of [n_rot / 2] u64, see op_rope_kv_fill_turns */
	uint64_t rows;   /* of [m] struct abi_row */
	uint64_t m;      /* of u32: rows of the step */
	uint64_t table;  /* of the page table, see workerd/kv.h */
	uint32_t n_head;
	uint32_t n_head_kv;
	uint32_t head_dim;
	uint32_t n_rot;      /* even, at most head_dim */
	bool is_interleaved; /* neighbours turn together, else the halves of what is rotated */
	uint32_t n_slot_pages;
	uint32_t layer;
	enum kv_layout_type kv_type;
	float eps;
	uint32_t n_rows; /* the most that m can be */
};

/*
 * turns[i]: of a position, base^(-2 i / n_rot) / factors[i] / (2 pi) in units of 2^-64, whole turns
 * left out, [n_rot / 2]. base > 0; factors [n_rot / 2], all above 0 and finite, NULL: 1 each. Any
 * thread.
 */
void op_rope_kv_fill_turns(float base, const float *factors, uint32_t n_rot, uint64_t *ret_turns);

/* Records it. -EINVAL for numbers that do not fit. Engine thread. */
int must_check op_rope_kv_record(struct op_pool *pool, struct vk_command *c,
	const struct op_rope_kv_params *params, struct err *ret_err);

#endif
