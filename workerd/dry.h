/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_DRY_H
#define WORKERD_DRY_H

/*
 * DRY ("don't repeat yourself"), a penalty on tokens that would prolong a repetition, by p-e-w,
 * https://github.com/oobabooga/text-generation-webui/pull/5677, as llama.cpp has it. Where the
 * newest r tokens of the history stood before, followed by token t, and r >= allowed_length for the
 * largest such r,
 *
 *	logit[t] -= multiplier * base ^ (r - allowed_length)
 *
 * A sequence breaker is a string at which repetitions begin anew: r counts no token up to the one
 * in which the newest breaker of the history's text ends, and a token whose own text has one is not
 * penalised. Breakers are looked for in the text itself, however it was cut into tokens.
 *
 * Linear in the history (the Z-algorithm, Gusfield 1997, section 1.4). Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct dry;

enum { DRY_MAX_BREAKERS = 16, DRY_MAX_BREAKER_BYTES = 40 };

struct dry_breaker {
	const char *bytes;
	uint32_t n_bytes; /* 1 to DRY_MAX_BREAKER_BYTES */
};

struct dry_params {
	float multiplier;        /* 0: off, llama.cpp's default */
	float base;              /* at least 1; 0: 1.75 */
	uint32_t allowed_length; /* tokens; 0: 2 */
	uint32_t last_n;         /* tokens of the history it looks back on; 0: all */
	/* [n_breakers], borrowed. None and not has_breakers: "\n", ":", "\"" and "*". */
	const struct dry_breaker *breakers;
	uint32_t n_breakers;
	bool has_breakers;
};

/* The text of a token, borrowed until the next call; what it returns is not looked at. */
struct dry_text {
	void *userdata;
	bool (*get)(void *userdata, uint32_t token, const char **ret_bytes, uint32_t *ret_n_bytes);
};

/*
 * n_ctx: tokens that a history has at most. text may be NULL: then no token has any. -EINVAL with
 * the parameter, its range and what was found; -ENOMEM.
 */
int must_check dry_new(const struct dry_params *params, uint32_t n_vocab, uint32_t n_ctx,
	const struct dry_text *text, struct err *ret_err, struct dry **ret_dry);
struct dry *dry_free(struct dry *d);

/*
 * Lowers logits, [n_vocab]. history: oldest first. Where it has the last token of the call before
 * in the same place, all before that is taken to be the same; else the breakers are looked for
 * anew. Penalties are finite, 1e30 at most. No allocation.
 */
void dry_apply(struct dry *d, const uint32_t *history, uint64_t n_history, float *logits);

#endif
