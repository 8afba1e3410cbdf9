/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_RECORD_H
#define WORKERD_RECORD_H

/* From a graph's ops to recorded commands: value ids become device addresses. Engine thread. */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct graph;
struct op_pool;
struct vk_command;

/* Device addresses of what ops read and write beside the weights. */
struct record_addresses {
	uint64_t scratch; /* of the values, see graph_place */
	uint64_t logits;  /* [n_want][n_vocab] f32 */
	uint64_t n_rows;  /* u32 */
	uint64_t n_want;  /* u32 */
	uint64_t rows;    /* [n_rows] struct abi_row */
	uint64_t want;    /* [n_want] u32 */
	uint64_t turns;   /* [n_rot / 2] u64 */
	uint64_t table;   /* [n_slots][n_slot_pages] u64 */
	uint32_t n_slot_pages;
};

/*
 * Begins c, records the graph's ops for up to n_rows rows (the head's, or all others) with the
 * barriers between them, and ends it; the host may read the logits when the head is done.
 * Errors of the ops, with ret_err.
 */
int must_check record_graph(const struct graph *g, const struct record_addresses *a,
	struct op_pool *pool, uint32_t n_rows, bool is_head, struct err *ret_err,
	struct vk_command *c);

#endif
