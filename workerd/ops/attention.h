/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_ATTENTION_H
#define WORKERD_OPS_ATTENTION_H

/*
 * Causal attention of the rows over their sessions' pages, query heads sharing key heads
 * (shaders/attention.comp).
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/kv-layout.h"

struct err;
struct op_pool;
struct vk_command;

struct op_attention_params {
	uint64_t qkv;    /* device address of [m][(n_head + 2 n_head_kv) head_dim] f32; q is read */
	uint64_t y;      /* of [m][n_head * head_dim] f32 */
	uint64_t rows;   /* of [m] struct abi_row */
	uint64_t m;      /* of u32: rows of the step */
	uint64_t table;  /* of the page table, see workerd/kv.h */
	uint32_t n_head; /* a multiple of n_head_kv */
	uint32_t n_head_kv;
	uint32_t head_dim; /* even, at most OP_ATTENTION_MAX_HEAD_DIM */
	uint32_t n_slot_pages;
	uint32_t layer;
	uint32_t window; /* keys that a row sees, its own among them; 0: all before it */
	enum kv_layout_type kv_type;
	uint32_t n_rows;   /* the most that m can be */
	uint32_t n_splits; /* subgroups that share a row's keys; 0: chosen, the same for any m */
};

enum {
	OP_ATTENTION_MAX_HEAD_DIM = 256, /* query and sums stay in a subgroup's registers */
	OP_ATTENTION_MAX_SPLITS = 8,     /* their sums take up to 17 KiB of shared memory */
};

/*
 * Records it. -ENOTSUP for heads that the kernel cannot hold, and for more pages a slot than it
 * counts. Engine thread.
 */
int must_check op_attention_record(struct op_pool *pool, struct vk_command *c,
	const struct op_attention_params *params, struct err *ret_err);

#endif
