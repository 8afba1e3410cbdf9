/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_RECORD_H
#define WORKERD_RECORD_H

/* From a graph's ops to recorded commands: value ids become device addresses. Engine thread. */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/kv-layout.h"
#include "workerd/ops/attention.h"

struct err;
struct graph;
struct op_cache_layer;
struct op_matmul_params;
struct op_pool;
struct vk_command;

/* Device addresses of what ops read and write beside the weights. */
struct record_addresses {
	uint64_t scratch; /* of the values, see graph_place */
	uint64_t logits;  /* [n_want][n_vocab] f32 */
	uint64_t best;    /* [n_want][ABI_BEST_N] struct abi_best */
	uint64_t picked;  /* [n_want] u32, of op_best for the next step's op_embed */
	uint64_t parts;   /* [n_want] times OP_BEST_PARTS_BYTES */
	uint64_t n_rows;  /* u32 */
	uint64_t n_want;  /* u32 */
	uint64_t rows;    /* [n_rows] struct abi_row */
	uint64_t want;    /* [n_want] u32 */
	uint64_t asked;   /* [n_want] u32, of op_best */
	uint64_t turns;   /* [n_rot / 2] u64 */
	uint64_t spans;   /* of up to n_spans rows, see op_attention_fill_spans; 0: none */
	uint32_t n_spans;
	uint64_t attention_counters; /* see op_attention_params */
	enum op_attention_kind attention;
	uint64_t table; /* [n_slots][n_slot_pages] u64 */
	uint32_t n_slot_pages;
	enum kv_layout_type kv_type;
	bool is_exact;          /* see plan_params */
	uint64_t expert_tables; /* [n_table_entries] u64, see graph_fill_tables; of this graph */
	const struct op_cache_layer *expert_caches; /* by graph_routing.cache; NULL: none is used */
	uint64_t embed_rows;                        /* as rows, for the embedding alone; 0: rows */
};

/* Of the ops [first, end) those of the head, or all others. */
struct record_range {
	uint32_t first;
	uint32_t end;
	bool is_head;
	bool is_spread;   /* as op_attention_params has it */
	uint32_t *ret_op; /* the op that is being recorded, for who watches the pool; NULL */
};

/*
 * What op i, a matmul, is for up to n_rows rows, with what it and the matmul before it or behind it
 * do for each other: for who records it alone. (That experts may stage its x is not looked at; rows
 * are each of another session.)
 */
void record_get_matmul(const struct graph *g, const struct record_addresses *a,
	const struct op_pool *pool, uint32_t i, uint32_t n_rows, struct op_matmul_params *ret);

/* Does it make a difference whether a step is_spread? */
bool record_may_spread(const struct record_addresses *a, const struct op_pool *pool);

/*
 * Begins c, records the range's ops for up to n_rows rows with the barriers between them, and ends
 * it; the host may read the logits when the head is done. Errors of the ops, with ret_err.
 */
int must_check record_graph(const struct graph *g, const struct record_addresses *a,
	struct op_pool *pool, uint32_t n_rows, const struct record_range *range,
	struct err *ret_err, struct vk_command *c);

#endif
