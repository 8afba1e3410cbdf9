/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_BENCH_OPTIONS_H
#define WEIGHTCTL_BENCH_OPTIONS_H

/*
 * What `weightctl bench` is to measure: lists of numbers, as llama-bench has them, of which every
 * combination is a test.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct options;

enum {
	BENCH_OPTIONS_MAX_VALUES = 32, /* of a list */
	BENCH_OPTIONS_MAX_WORKERS = 64,
	BENCH_OPTIONS_MAX_SESSIONS = 256, /* a worker's */
	BENCH_OPTIONS_MAX_REPEATS = 100,
	BENCH_OPTIONS_MAX_TOKENS = 1 << 24,
};

struct bench_options_list {
	uint32_t n;
	uint32_t values[BENCH_OPTIONS_MAX_VALUES];
};

/* So many workers at once. */
struct bench_options_split {
	uint32_t n_workers;
	uint32_t n_sessions; /* of each; 0: those of the list */
};

struct bench_options {
	const char *model;     /* a file's path, or a name that weightd has; NULL: not said */
	const char *synthetic; /* NULL: none */
	const char *device;    /* of a private weightd, as what follows NULL: not said */
	const char *kv_type;
	const char *chunk;
	const char *kernels;
	struct bench_options_list prompts; /* tokens; no 0 */
	struct bench_options_list generates;
	struct bench_options_list sessions;
	struct bench_options_list depths;
	uint32_t n_repeats;
	uint32_t n_splits;
	struct bench_options_split splits[BENCH_OPTIONS_MAX_VALUES];
	bool has_workers; /* they were asked for */
	bool profile;
	uint64_t seed;
};

/* OPTIONS_USAGE with one line in ret_err. Strings are borrowed from o. */
int must_check bench_options_parse(
	const struct options *o, struct err *ret_err, struct bench_options *ret_options);

/* Most sessions of one worker, and most tokens of one session, that a test of this split has. */
uint32_t bench_options_get_sessions(
	const struct bench_options *o, const struct bench_options_split *split);
uint32_t bench_options_get_ctx(const struct bench_options *o);

#endif
