/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WORKER_BENCH_H
#define PROTO_WORKER_BENCH_H

/*
 * Measuring a worker's prompts and generation, as a client of it asks for that
 * (proto/worker-client.h). What the members mean stands in workerd.proto. One thread at a time a
 * client; several clients may be asked at once, each by a thread of its own.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct worker_client;

/* See Bench. */
struct worker_bench_params {
	uint32_t n_sessions;
	uint32_t n_depth;
	uint32_t n_prompt;
	uint32_t n_generate;
	uint64_t seed;
};

struct worker_bench_ready {
	uint32_t n_rows;
	uint32_t n_dispatches;
};

/* See BenchPhase; n_steps is 0 where there was none. */
struct worker_bench_phase {
	uint64_t n_tokens;
	uint32_t n_steps;
	uint64_t ns;
	uint64_t median_ns;
	uint64_t p99_ns;
	uint64_t record_ns;
	uint64_t submit_ns;
	uint64_t wait_ns;
	uint64_t end_ns;
	uint64_t busy_ns;
	uint64_t stamped_ns;
};

/* See BenchKernel. */
struct worker_bench_kernel {
	char name[48];
	char shape[64];
	bool is_prompt;
	uint64_t n_calls;
	uint64_t ns;
	uint64_t weight_bytes;
	uint64_t kv_bytes;
	uint64_t flops;
};

/* See BenchCeilings; a second. */
struct worker_bench_ceilings {
	double read_bytes;
	double fma_flops;
	double matrix_flops;
};

enum { WORKER_BENCH_MAX_KERNELS = 256 };

struct worker_bench_result {
	uint64_t start_ns;
	struct worker_bench_phase prompt;
	struct worker_bench_phase generate;
	uint32_t n_kernels; /* 0: no profile */
	struct worker_bench_kernel kernels[WORKER_BENCH_MAX_KERNELS];
	struct worker_bench_ceilings ceilings;
};

/* Blocks while depth and the run that nobody counts are computed. The worker's refusal. */
int must_check worker_bench_begin(struct worker_client *c, const struct worker_bench_params *params,
	struct err *ret_err, struct worker_bench_ready *ret_ready);

/*
 * Blocks for a run; start_ns of CLOCK_MONOTONIC, 0: now. The sessions of the last go with the
 * connection, or with another worker_bench_begin.
 */
int must_check worker_bench_run(struct worker_client *c, uint64_t start_ns, bool is_profile,
	struct err *ret_err, struct worker_bench_result *ret_result);

#endif
