/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_SAMPLER_H
#define WORKERD_SAMPLER_H

/*
 * One token out of the logits. The steps, in the order and with the formulas of llama.cpp's sampler
 * chain (common/sampling.cpp, src/llama-sampling.cpp of https://github.com/ggml-org/llama.cpp):
 *
 *	allowed     tokens outside the mask are out
 *	bias        logit += bias
 *	penalties   of a token that is c > 0 times among the last repeat_last_n of the history:
 *	            logit = logit > 0 ? logit / repeat : logit * repeat
 *	            logit -= c * frequency + presence
 *	DRY         workerd/dry.h
 *	top-k       the k best
 *	typical, top-p, min-p
 *	            workerd/candidates.h
 *	temperature softmax(logit / temperature), then a draw from a seeded generator
 *
 * Temperature 0 is the largest logit behind DRY (the lowest id of equals), whatever the filters
 * are. Each step is off by default; llama.cpp turns top-k 40, top-p 0.95, min-p 0.05 and
 * temperature 0.8 on. Logits that are not finite never win. One thread at a time.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/dry.h"

struct abi_best;
struct err;
struct sampler;

enum { SAMPLER_MAX_BIASES = 1024 };

struct sampler_bias {
	uint32_t id;
	float bias; /* -INFINITY: never this token; those of one id add up */
};

struct sampler_params {
	float temperature;       /* >= 0; 0: greedy */
	uint32_t top_k;          /* 0: off */
	float top_p;             /* (0, 1]; 0 or 1: off */
	float min_p;             /* [0, 1]; 0: off */
	float typical_p;         /* (0, 1]; 0 or 1: off */
	float repeat_penalty;    /* > 0; 0 or 1: off */
	float frequency_penalty; /* -100 to 100 */
	float presence_penalty;  /* likewise */
	uint32_t repeat_last_n;  /* tokens that the three count in; 0: 64 */
	struct dry_params dry;
	const struct sampler_bias *biases; /* [n_biases], borrowed for the sampler's life */
	uint32_t n_biases;
	uint64_t seed;
};

/*
 * n_ctx: tokens that a history has at most; text: of tokens, for DRY, may be NULL. -EINVAL with the
 * parameter, its range and what was found (NaN included); -ENOMEM.
 */
int must_check sampler_new(const struct sampler_params *params, uint32_t n_vocab, uint32_t n_ctx,
	const struct dry_text *text, struct err *ret_err, struct sampler **ret_sampler);
struct sampler *sampler_free(struct sampler *s);

/* Is the largest logit's token picked always (the lowest id of equals), whatever the history? */
bool sampler_is_greedy(const struct sampler *s);

/*
 * logits: [n_vocab] f32, unchanged. allowed: [(n_vocab + 31) / 32], token t is bit t % 32 of word
 * t / 32, set where it may be picked; NULL: every one may. history: the session's tokens, oldest
 * first. -ENOENT: there is a mask, and no finite logit is among what it allows; -ERANGE: there is
 * none, and no logit is finite. Logits are judged behind bias and penalties. No allocation.
 */
int must_check sampler_pick(struct sampler *s, const float *logits, const uint32_t *allowed,
	const uint32_t *history, uint64_t n_history, uint32_t *ret_token);

/*
 * The same token, out of the best logits alone, without a mask: [ABI_BEST_N], as plan_get_best has
 * them. -EAGAIN: they do not say which, for a filter looks at all logits or what was best has been
 * penalised; nothing is drawn, and sampler_pick is to be called. -ERANGE.
 */
int must_check sampler_pick_best(struct sampler *s, const struct abi_best *best,
	const uint32_t *history, uint64_t n_history, uint32_t *ret_token);

#endif
