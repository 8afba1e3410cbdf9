/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PLAN_H
#define WORKERD_PLAN_H

/*
 * A model made executable: every kernel, fusion and scratch offset decided once, the commands of
 * each shape bucket recorded once, at its first use, and re-submitted. What changes from step to
 * step (tokens, positions, slots, pages, which rows want logits) is read from io memory. Engine
 * thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/expert-cache.h"
#include "workerd/bench-memory.h"
#include "workerd/ops/attention.h"

struct abi_best;
struct baton;
struct cuts;
struct err;
struct kv;
struct plan;
struct profile;
struct profile_params;
struct tuning;
struct vk_device;
struct vk_slice;
struct weights;

/* Which kernels a plan has. */
enum plan_kernels {
	PLAN_KERNELS_AUTO, /* see plan_choose_kernels */
	/* A row's bits depend on its own session alone, not on the rows beside it. */
	PLAN_KERNELS_EXACT,
	PLAN_KERNELS_FAST,
};

struct plan_params {
	uint32_t n_rows;       /* most rows a step */
	uint32_t n_logit_rows; /* most rows with logits a step */
	/*
	 * From so many rows on, weights in host memory are copied ahead of their use; below they
	 * are read where they are. 0: measured.
	 */
	uint32_t stream_rows;
	uint64_t n_expert_cache_bytes; /* or EXPERT_CACHE_AUTO; 0: none */
	enum plan_kernels kernels;
	enum op_attention_kind attention; /* AUTO with EXACT: that of a row */
	uint64_t n_table_bytes; /* of kv_measure, for plan_layout_measure; plan_new asks its kv */
	bool may_spill;         /* scratch, into host memory; else plan_new is -ENOMEM */
	struct baton *baton;    /* borrowed for the plan's life; NULL: it computes when it likes */
};

enum { PLAN_NEVER_STREAM = UINT32_MAX };

/* The values of a step of n_rows, which take each other's places. */
struct plan_scratch {
	uint32_t n_rows;
	uint32_t n_values;
	uint64_t peak_bytes; /* what they take */
	uint64_t sum_bytes;  /* if each had a place of its own */
};

/* Of scratch; and of the weights in host memory, since the start. */
struct plan_counters {
	struct plan_scratch scratch;
	uint32_t stream_rows;  /* as above; PLAN_NEVER_STREAM */
	uint64_t stream_steps; /* whose body was streamed */
	uint64_t stream_ns;    /* from the first enqueued to the last done */
	uint64_t stream_bytes; /* copied by the device */
	uint64_t paged_bytes;  /* copied by the processor */
	struct expert_cache_counters experts;
};

/*
 * As a token, PLAN_PICKED | i: that which the device has picked, or will have, for wanted row i of
 * the step that was submitted before: the best of its logits, the first of plan_get_best.
 */
#define PLAN_PICKED UINT32_C(0x80000000)

/* As a wanted row, PLAN_FIRST | row: of its best logits the first alone is looked at. */
#define PLAN_FIRST UINT32_C(0x80000000)

/* One token of one session in a step. */
struct plan_row {
	uint32_t token;
	uint32_t position; /* in its session; its KV entry is written, and all up to it are read */
	uint32_t slot;     /* of kv */
};

/*
 * What AUTO comes to: the fast ones; in software the exact ones, which cost it little and whose
 * rows have the same bits beside whatever other rows.
 */
enum plan_kernels plan_choose_kernels(const struct vk_device *d);

/* w and kv are borrowed for the plan's life. -ENOTSUP: no such architecture; -ENOMEM. */
int must_check plan_new(struct vk_device *d, const struct weights *w, struct kv *kv,
	const struct plan_params *params, struct err *ret_err, struct plan **ret_plan);
struct plan *plan_free(struct plan *p);

/*
 * Has the device compute rows[0..n_rows) behind the step that is under way, if there is one. Rows
 * of one session are consecutive and in order of position, and kv_reserve has been called for them.
 * want[0..n_want) are indices into rows whose logits are wanted, ascending. What the table of pages
 * has for their slots stays until the step is done (plan_wait). -EINVAL for a token or position out
 * of range; -EBUSY behind PLAN_LAYOUT_LANES steps, and behind one, or as one, that cannot run
 * ahead; VK_DEVICE_LOST.
 */
int must_check plan_submit(struct plan *p, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err);

/* May a step of so many rows be under way behind another, just now? Not where it needs the host. */
bool plan_can_run_ahead(const struct plan *p, uint32_t n_rows);

/* Waits for the oldest step that is under way. -EINVAL: none is; VK_DEVICE_LOST. */
int must_check plan_finish(struct plan *p, struct err *ret_err);

/* Waits for all of them, which stay to be finished. */
int must_check plan_wait(struct plan *p, struct err *ret_err);

uint32_t plan_get_n_flight(const struct plan *p);

/* Would a step that is submitted now wait for other workers first? */
bool plan_would_wait(const struct plan *p);

/* No step follows soon: other workers need not wait for one. */
void plan_rest(struct plan *p);

/*
 * One step, from submit to finish, with none under way. *ret_logits: as plan_get_logits, NULL when
 * n_want is 0; ret_logits is NULL where the best are enough. Errors of both.
 */
int must_check plan_step(struct plan *p, const struct plan_row *rows, uint32_t n_rows,
	const uint32_t *want, uint32_t n_want, struct err *ret_err, const float **ret_logits);

/*
 * Of the wanted rows of the step that was finished last, until the next plan_submit: the best of
 * each, [n_want][ABI_BEST_N], best first (of equal ones the lowest id, finite ones alone); NULL:
 * none was wanted. Costs nothing.
 */
const struct abi_best *plan_get_best(const struct plan *p);

/*
 * And all of them, [n_want][n_vocab] f32, which the device copies to the host at the first call,
 * behind what is under way. As long. -EINVAL: none was wanted; VK_DEVICE_LOST.
 */
int must_check plan_get_logits(struct plan *p, struct err *ret_err, const float **ret_logits);

uint32_t plan_get_n_dispatches(const struct plan *p); /* of a step of one row with logits */
bool plan_is_software(const struct plan *p);          /* the device is a processor */
uint32_t plan_get_n_vocab(const struct plan *p);

/* The processor's time of the last step. */
struct plan_times {
	uint64_t record_ns; /* rows are written, commands recorded where they are not yet */
	uint64_t submit_ns;
	uint64_t wait_ns;
};

void plan_get_times(const struct plan *p, struct plan_times *ret_times);

/* What profile_new needs; borrowed for the plan's life. */
void plan_get_profile_params(struct plan *p, struct profile_params *ret_params);

/*
 * The steps from here on go through profile (borrowed; NULL: as ever), and are -ENOTSUP where they
 * copy weights ahead of their use.
 */
void plan_set_profile(struct plan *p, struct profile *profile);

/* See bench-memory.h; between two steps. */
int must_check plan_bench_memory(struct plan *p, struct err *ret_err,
	struct bench_memory_rate ret_rates[BENCH_MEMORY_MAX_RATES], uint32_t *ret_n);

/*
 * Where the values of a step lie. Nothing in it outlives a step: between two steps it may hold
 * anything.
 */
void plan_get_values(const struct plan *p, struct vk_slice *ret_values);

/*
 * For measuring how the plan's products are best cut (workerd/cuts.h), between two steps; to be
 * freed before the plan. -ENOTSUP: its kernels are the exact ones, or weights are outside device
 * memory.
 */
int must_check plan_make_cuts(struct plan *p, struct err *ret_err, struct cuts **ret_cuts);

/*
 * The steps from here on are cut as t says, which is the plan's from now on, also after an error.
 * A plan begins with what tuning_file_load finds.
 */
int must_check plan_set_tuning(struct plan *p, struct tuning *t, struct err *ret_err);

void plan_get_counters(const struct plan *p, struct plan_counters *ret_counters);

#endif
