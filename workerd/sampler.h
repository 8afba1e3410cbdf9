/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_SAMPLER_H
#define WORKERD_SAMPLER_H

/*
 * One token out of the logits: repeat penalty, then top-k, top-p, min-p, then temperature, then a
 * draw from a seeded generator; temperature 0 is the largest logit (the lowest id of equals).
 * Logits that are not finite never win; if none is finite, -ERANGE. One thread at a time.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct sampler;

struct sampler_params {
	float temperature;      /* >= 0; 0: greedy */
	uint32_t top_k;         /* 0: off */
	float top_p;            /* (0, 1]; 0 or 1: off */
	float min_p;            /* [0, 1]; 0: off */
	float repeat_penalty;   /* > 0; 0 or 1: off */
	uint32_t repeat_last_n; /* tokens; 0: 64 */
	uint64_t seed;
};

/* -EINVAL with the parameter, its range and what was found (NaN included). */
int must_check sampler_new(const struct sampler_params *params, uint32_t n_vocab,
	struct err *ret_err, struct sampler **ret_sampler);
struct sampler *sampler_free(struct sampler *s);

/*
 * logits: [n_vocab] f32, unchanged. history: the session's tokens, oldest first. No allocation.
 */
int must_check sampler_pick(struct sampler *s, const float *logits, const uint32_t *history,
	uint64_t n_history, uint32_t *ret_token);

#endif
