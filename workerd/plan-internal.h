/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PLAN_INTERNAL_H
#define WORKERD_PLAN_INTERNAL_H

/* The plan, for workerd/plan, plan-check and plan-sample alone. Engine thread. */
#include <stdbool.h>
#include <stdint.h>

#include "workerd/graph.h"
#include "workerd/lane.h"
#include "workerd/plan-layout.h"
#include "workerd/plan.h"
#include "workerd/record.h"

struct expert_cache;
struct gather;
struct mirror;
struct op_pool;
struct profile;
struct stream;
struct tuning;
struct vk_command;
struct vk_memory;

struct plan {
	struct vk_device *d;
	const struct weights *weights;
	struct kv *kv;
	struct plan_params params;
	uint32_t n_vocab;
	struct graph graph;
	struct op_pool *pool;
	struct mirror *mirror;
	struct tuning *tuning; /* that the pool has; NULL: none */
	struct vk_memory
		*scratch;     /* values, then constants: turns [n_rot / 2] u64, plan_constants */
	struct vk_memory *io; /* lanes, constants on their way, best, logits */
	struct lane lanes[PLAN_LAYOUT_LANES];
	uint32_t n_flight;       /* steps under way: from first on, each in the lane behind */
	uint32_t first;          /* lane of the oldest step that is under way */
	const struct lane *done; /* of the step that was finished last; NULL: it failed */
	const float *logits;     /* mapped, [n_logit_rows][n_vocab] */
	uint64_t logits_at;      /* in io memory */
	bool has_logits;         /* those of the last step are there */
	struct vk_command *copy; /* of logits */
	struct record_addresses addresses; /* of lane 0 */
	struct gather *gather;             /* NULL: the embedding can be read where it is */
	struct stream *stream;             /* NULL: every weight can, and is */
	struct expert_cache *experts;      /* NULL: none is cached */
	struct plan_counters counters;
	uint64_t usual_ns[LANE_MAX_BUCKETS]; /* that a step takes; 0: none was made */
	uint64_t end_ns;                     /* when the last step was seen to be done */
	struct plan_times times;             /* of the last step */
	struct profile *profile;             /* borrowed; NULL: none */
};

#endif
