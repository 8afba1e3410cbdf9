/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_BENCHER_H
#define WORKERD_BENCHER_H

/*
 * Measures prompts and generation (proto/workerd.proto, Bench): slots of its own in the KV cache,
 * filled with random tokens by the plan's steps, one at a time between those of the scheduler. So
 * whoever generates goes on meanwhile, a step of theirs after each of these, and what is timed is
 * the steps alone. Where nobody does, steps of generation run ahead as the scheduler's do. One
 * bench at a time; all of it is freed with the connection, at the end, at an error, and when the
 * stack goes.
 *
 * Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/ceiling.h"
#include "workerd/profile.h"

struct bencher;
struct engine;
struct err;
struct message;

struct bencher_phase {
	uint64_t n_tokens;
	uint32_t n_steps;
	uint64_t ns;
	uint64_t median_ns; /* of a step */
	uint64_t p99_ns;
	uint64_t record_ns; /* of all steps, as what follows */
	uint64_t submit_ns;
	uint64_t wait_ns;
	uint64_t end_ns;     /* CLOCK_MONOTONIC */
	uint64_t busy_ns;    /* the device's; of a profile */
	uint64_t stamped_ns; /* likewise, with a timestamp behind each kernel */
};

/* The answer to MESSAGE_BENCH_RUN. */
struct bencher_result {
	uint64_t start_ns; /* CLOCK_MONOTONIC */
	struct bencher_phase prompt;
	struct bencher_phase generate; /* n_steps 0: there was none */
	uint32_t n_kernels;            /* 0: no profile */
	struct profile_kernel kernels[PROFILE_MAX_KERNELS];
	struct ceiling_rates ceilings;
};

/* Farthest that a run may be told to begin. */
#define BENCHER_MAX_WAIT_NS (UINT64_C(60) * 1000 * 1000 * 1000)

/*
 * MESSAGE_BENCH, MESSAGE_BENCH_RUN: takes m on success and sends it when it is done. -EBUSY:
 * another connection's is under way; -EINVAL, -ENOSPC with the figures; -ENOENT: a run without a
 * bench; errors of kv_open and profile_new.
 */
int must_check bencher_begin(struct engine *e, struct message *m, struct err *ret_err);
int must_check bencher_run(struct engine *e, struct message *m, struct err *ret_err);

/* Of this client, if there is one: what it waits for is refused, and all of it goes. */
void bencher_end(struct engine *e, uint64_t client);

/* A step, if it is time for one. Another may be under way then, until bencher_settle. */
void bencher_attend(struct engine *e);

/* Before anything else is done with the device. */
void bencher_settle(struct engine *e);

/* Is there a step to be computed now, and when will there be? */
bool bencher_is_due(const struct engine *e);
uint64_t bencher_get_deadline(const struct engine *e);

/* The stack is about to go, or the engine: all of it goes. */
void bencher_stop(struct engine *e, const char *why);

#endif
