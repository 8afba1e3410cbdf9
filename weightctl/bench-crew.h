/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_BENCH_CREW_H
#define WEIGHTCTL_BENCH_CREW_H

/*
 * Several workers that are measured at the same time: each is asked by a thread of its own, and
 * their runs begin together. One thread calls it.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/worker-bench.h"

struct bench_crew;
struct err;

/* Connects to the sockets [n]; a NULL path is the default worker's. */
int must_check bench_crew_new(
	const char *const *sockets, uint32_t n, struct err *ret_err, struct bench_crew **ret_crew);
struct bench_crew *bench_crew_free(struct bench_crew *c);

/* Every worker is ready for runs of this. The first refusal, by index. */
int must_check bench_crew_begin(struct bench_crew *c, const struct worker_bench_params *params,
	struct err *ret_err, struct worker_bench_ready *ret_ready);

/* One run of each, at the same time. With is_profile the first worker alone. */
int must_check bench_crew_run(struct bench_crew *c, bool is_profile, struct err *ret_err);

/* Of the last run. Borrowed until the next. */
const struct worker_bench_result *bench_crew_get_result(const struct bench_crew *c, uint32_t i);

#endif
