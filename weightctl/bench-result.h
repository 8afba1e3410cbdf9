/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_BENCH_RESULT_H
#define WEIGHTCTL_BENCH_RESULT_H

/*
 * One test's samples: a phase of each worker for each run.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/worker-bench.h"
#include "weightctl/bench-options.h"

struct bench_crew;

/* Strings are borrowed. */
struct bench_result_model {
	const char *name;
	const char *device;
	bool software;
	uint64_t weights_bytes;
};

struct bench_result {
	struct bench_result_model model;
	uint32_t n_prompt;   /* of each session; 0: it is a test of generation */
	uint32_t n_generate; /* likewise; one of the two */
	uint32_t n_depth;
	uint32_t n_sessions; /* of each worker */
	uint32_t n_workers;
	uint64_t seed;
	struct worker_bench_ready ready;
	uint32_t n_samples;
	double rates[BENCH_OPTIONS_MAX_REPEATS]; /* tokens a second, of all workers */
	uint64_t starts[BENCH_OPTIONS_MAX_REPEATS];
	struct worker_bench_phase *phases;   /* [n_samples][n_workers], owned */
	struct worker_bench_result *profile; /* owned; NULL: none */
};

/* Of a run of all workers, the next sample; at most BENCH_OPTIONS_MAX_REPEATS. -ENOMEM. */
int must_check bench_result_add(struct bench_result *r, const struct bench_crew *crew);

/* The profile, of the crew's last run. -ENOMEM. */
int must_check bench_result_set_profile(struct bench_result *r, const struct bench_crew *crew);

void bench_result_fini(struct bench_result *r);

const struct worker_bench_phase *bench_result_get_phase(
	const struct bench_result *r, uint32_t sample, uint32_t worker);

/* Tokens a second of one worker in one run, by its own time. */
double bench_result_get_rate(const struct bench_result *r, uint32_t sample, uint32_t worker);

/*
 * Of all workers in one run: one's own time, or what passes from the first start to the last end.
 * phases [n].
 */
double bench_result_join(
	const struct worker_bench_phase *phases, const uint64_t *starts, uint32_t n);

/* "pp512", "tg128 @ d1024" */
struct bench_result_label {
	char text[48];
};
struct bench_result_label bench_result_label(const struct bench_result *r);

#endif
