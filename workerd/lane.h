/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_LANE_H
#define WORKERD_LANE_H

/*
 * Where the host writes a step's rows for the device, and where the best logits come back. There
 * are PLAN_LAYOUT_LANES of them: one is written, or read, while the device computes from another.
 * Commands can be under way once at a time, so each lane has its own, too, recorded at their first
 * use. Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
struct abi_best;
struct abi_row;
struct err;
struct graph;
struct op_pool;
struct plan_io;
struct plan_row;
struct record_addresses;
struct vk_command;
struct vk_device;

/* Recorded commands are for up to 1, 2, 4, ... rows. */
enum { LANE_MAX_BUCKETS = 14, LANE_MAX_ROWS = 1 << (LANE_MAX_BUCKETS - 1) };

struct lane {
	uint32_t index;
	/* All mapped, see plan_layout. */
	struct plan_io *step;
	uint32_t *want;              /* [n_logit_rows] */
	uint32_t *asked;             /* [n_logit_rows] */
	struct abi_row *rows;        /* [n_rows] */
	uint32_t *spans;             /* of n_span_rows, see op_attention_fill_spans */
	const struct abi_best *best; /* [n_logit_rows][ABI_BEST_N] */
	uint32_t n_span_rows;
	uint32_t n_tile_rows; /* 0: nobody reads the spans */
	uint64_t best_address;
	uint64_t logits_address; /* in device memory, [n_logit_rows][n_vocab] */
	struct vk_command *body[LANE_MAX_BUCKETS];
	struct vk_command *spread[LANE_MAX_BUCKETS]; /* the body of steps that are */
	struct vk_command *head[LANE_MAX_BUCKETS];
	bool may_spread; /* those are others than the body */
	/* of the step that was written last */
	uint32_t n_rows;
	uint32_t n_want;
	bool is_spread;   /* as op_attention_params has it, and may_spread */
	uint64_t ticket;  /* of the last of it that was submitted */
	uint64_t turn_ns; /* that it waited for before start_ns, see workerd/baton.h */
	uint64_t start_ns;
	uint64_t record_ns;
	uint64_t submit_ns;
};

/* The bucket of a step of n_rows rows. */
uint32_t lane_find_bucket(uint32_t n_rows);

/* Rows and wanted rows, checked by the caller. */
void lane_write(struct lane *l, const struct plan_row *rows, uint32_t n_rows, const uint32_t *want,
	uint32_t n_want);

/* Of the rows that are there, after others than lane_write have written them. */
void lane_fill_spans(struct lane *l, uint32_t n_rows);

struct lane_recorder {
	struct vk_device *device;
	struct op_pool *pool;
	const struct graph *graph;
	const struct record_addresses *addresses; /* best and logits are the lane's */
};

/*
 * What the head of a bucket, or all else of it, is computed with: of rows as those that were
 * written last, see is_spread. Errors of record_graph.
 */
int must_check lane_get_command(struct lane *l, const struct lane_recorder *recorder,
	uint32_t bucket, bool is_head, struct err *ret_err, struct vk_command **ret_command);

/* None of them is under way. */
void lane_drop_commands(struct lane *l);

#endif
