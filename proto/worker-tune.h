/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WORKER_TUNE_H
#define PROTO_WORKER_TUNE_H

/*
 * Having a worker measure how its products are best cut, as a client of it asks for that
 * (proto/worker-client.h). One thread at a time a client.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct worker_client;

enum { WORKER_TUNE_TEXT_BYTES = 256, WORKER_TUNE_MAX_ROWS = 4096 };

/* See TuneRow in workerd.proto. */
struct worker_tune_row {
	char op[WORKER_TUNE_TEXT_BYTES];
	char choice[WORKER_TUNE_TEXT_BYTES];
	uint32_t n_rows;
	uint64_t default_ns;
	uint64_t best_ns;
};

struct worker_tune_result {
	uint64_t ns;
	bool is_saved;
	uint32_t n_products;
	uint32_t n_rows;
	struct worker_tune_row *rows; /* [n_rows], the result's */
};

/* n_done of n_products have been measured, row is the last of them; borrowed. */
typedef void (*worker_tune_progress_fn)(
	void *userdata, const struct worker_tune_row *row, uint32_t n_done, uint32_t n_products);

/*
 * Blocks while it measures, for max_seconds of that (0: what the worker thinks right); progress
 * (may be NULL) is called meanwhile. The worker's refusal.
 */
int must_check worker_tune_run(struct worker_client *c, uint32_t max_seconds,
	worker_tune_progress_fn progress, void *userdata, struct err *ret_err,
	struct worker_tune_result *ret_result);
void worker_tune_fini(struct worker_tune_result *result);

#endif
