/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_TOP_SAMPLE_H
#define WEIGHTCTL_TOP_SAMPLE_H

/*
 * What top shows: weightd and its workers as they were when they last answered, and how fast they
 * are. Pure: who asks them is weightctl/top-reader. One thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/weights-client.h"
#include "proto/worker-client.h"

struct top_reader;

/* Nobody who has not answered for so long is waited for. */
enum { TOP_SAMPLE_SILENT_MS = 2000 };

/* By the worker's clock, between its last two answers; less than 0: not known. */
struct top_sample_rates {
	double prompt;    /* tokens a second that were computed */
	double generated; /* tokens a second */
	double found;     /* of the experts that steps wanted, the share that was in the cache */
};

/* How somebody who is asked again and again is doing. */
struct top_sample_contact {
	uint64_t asked_ns; /* clock_now_ns of the oldest question without an answer; 0: there is
			      none */
	char trouble[256]; /* why the last one that came to an end has no answer; empty: it has */
};

enum top_sample_state {
	TOP_SAMPLE_NEW,   /* weightd knows it, and not yet where to ask */
	TOP_SAMPLE_ASKED, /* no answer yet, it is early */
	TOP_SAMPLE_READY,
	TOP_SAMPLE_PARKED,
	TOP_SAMPLE_SILENT, /* asked, and no answer for TOP_SAMPLE_SILENT_MS */
	TOP_SAMPLE_FAILED, /* trouble says why */
};

struct top_sample_worker {
	int32_t pid;               /* as weightd knows it; 0: weightd was not asked */
	char *socket;              /* owned; empty: it has not told weightd; NULL: the default */
	struct top_reader *reader; /* the collector's */
	struct top_sample_contact contact;
	bool has_status;
	struct worker_client_status status; /* the last one */
	struct top_sample_rates rates;
};

struct top_sample {
	bool has_weightd; /* it is asked at all */
	bool is_fixed;    /* the workers are those that were added, whoever weightd names */
	struct top_sample_contact contact;
	struct weights_client_status weightd; /* what it said last */
	uint32_t n_workers;
	struct top_sample_worker **workers;
};

void top_sample_fini(struct top_sample *s);

/* A worker of this socket. -ENOMEM. */
int must_check top_sample_add(struct top_sample *s, int32_t pid, const char *socket);

/*
 * weightd has answered; takes *status. Workers that it names and that are there already stay what
 * they are. *ret_gone: those that it names no more, [*ret_n_gone], which are the caller's
 * (top_sample_free_worker), as is the array. -ENOMEM: then all is as it was, *status too.
 */
int must_check top_sample_set_weightd(struct top_sample *s, struct weights_client_status *status,
	struct top_sample_worker ***ret_gone, uint32_t *ret_n_gone);

struct top_sample_worker *top_sample_free_worker(struct top_sample_worker *w);

/* The worker has answered: its rates are those since the answer before. */
void top_sample_set_status(struct top_sample_worker *w, const struct worker_client_status *status);

/*
 * Between two answers of one worker. Not known: the second is not of a later time, or the worker
 * was started anew in between.
 */
struct top_sample_rates top_sample_get_rates(
	const struct worker_client_status *before, const struct worker_client_status *now);

enum top_sample_state top_sample_judge(const struct top_sample_worker *w, uint64_t now_ns);

void top_sample_ask(struct top_sample_contact *c, uint64_t now_ns);

/* r: 0, or -errno with its text. That it timed out is no end of waiting: it is asked again. */
void top_sample_hear(struct top_sample_contact *c, int r, const char *text);

/* Asked, no answer for TOP_SAMPLE_SILENT_MS; *ret_silent_ns: for how long. */
bool top_sample_is_silent(
	const struct top_sample_contact *c, uint64_t now_ns, uint64_t *ret_silent_ns);

/* Sessions with a generation, and completions beside theirs. */
uint32_t top_sample_count_generating(const struct worker_client_status *status);

/* Allocations outside the memory where they belong, of all roles. */
uint64_t top_sample_count_spills(const struct worker_client_status *status);

#endif
