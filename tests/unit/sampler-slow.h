/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_SAMPLER_SLOW_H
#define TESTS_UNIT_SAMPLER_SLOW_H

/*
 * The sampler's steps by their definitions: full sorts, doubles, every pair compared. A token that
 * is out has a logit of -INFINITY.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "workerd/sampler.h"

enum { SLOW_MAX_VOCAB = 1024, SLOW_MAX_TEXT = 8192 };

struct slow {
	uint32_t n_vocab;
	double logits[SLOW_MAX_VOCAB];
	double p[SLOW_MAX_VOCAB]; /* softmax of logits */
};

static inline uint32_t slow_random(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

/* [0, 1) */
static inline float slow_unit(uint32_t *state)
{
	return (float)slow_random(state) * 0x1p-24f;
}

/* Gaussian-like logits, as models have: a few likely tokens and a long tail. */
static inline void slow_make_logits(uint32_t *state, float spread, uint32_t n, float *ret_logits)
{
	for (uint32_t i = 0; i < n; i++) {
		ret_logits[i] = 0;
		for (int k = 0; k < 4; k++)
			ret_logits[i] += spread * (slow_unit(state) - 0.5f);
	}
}

static inline void slow_init(struct slow *s, const float *logits, uint32_t n_vocab)
{
	s->n_vocab = n_vocab;
	for (uint32_t i = 0; i < n_vocab; i++)
		s->logits[i] = isfinite(logits[i]) ? (double)logits[i] : -INFINITY;
}

static inline void slow_softmax(struct slow *s, double temperature)
{
	double largest = -INFINITY, sum = 0;

	for (uint32_t i = 0; i < s->n_vocab; i++)
		largest = fmax(largest, s->logits[i]);
	for (uint32_t i = 0; i < s->n_vocab; i++)
		sum += s->p[i] =
			isinf(s->logits[i]) ? 0 : exp((s->logits[i] - largest) / temperature);
	for (uint32_t i = 0; i < s->n_vocab; i++)
		s->p[i] /= sum;
}

/* Leaves the n best by score, more being better; of equals the lowest id. */
static inline void slow_leave(struct slow *s, const double *score, uint32_t n)
{
	static bool is_left[SLOW_MAX_VOCAB];

	memset(is_left, 0, sizeof(is_left));
	for (; n; n--) {
		uint32_t best = UINT32_MAX;

		for (uint32_t i = 0; i < s->n_vocab; i++)
			if (!is_left[i] && !isinf(s->logits[i]) &&
				(best == UINT32_MAX || score[i] > score[best]))
				best = i;
		if (best == UINT32_MAX)
			break;
		is_left[best] = true;
	}
	for (uint32_t i = 0; i < s->n_vocab; i++)
		if (!is_left[i])
			s->logits[i] = -INFINITY;
}

/* The least n whose n best by score hold the share of p. */
static inline uint32_t slow_count_share(const struct slow *s, const double *score, double share)
{
	for (uint32_t n = 1; n < s->n_vocab; n++) {
		struct slow left = *s;
		double sum = 0;

		slow_leave(&left, score, n);
		for (uint32_t i = 0; i < s->n_vocab; i++)
			sum += isinf(left.logits[i]) ? 0 : s->p[i];
		if (sum >= share)
			return n;
	}
	return s->n_vocab;
}

static inline void slow_filter(struct slow *s, const struct sampler_params *p)
{
	double score[SLOW_MAX_VOCAB], entropy = 0;

	if (p->top_k)
		slow_leave(s, s->logits, p->top_k);
	slow_softmax(s, 1);
	if (p->typical_p > 0 && p->typical_p < 1) {
		for (uint32_t i = 0; i < s->n_vocab; i++)
			entropy -= s->p[i] > 0 ? s->p[i] * log(s->p[i]) : 0;
		for (uint32_t i = 0; i < s->n_vocab; i++)
			score[i] = -fabs(-log(s->p[i]) - entropy);
		slow_leave(s, score, slow_count_share(s, score, (double)p->typical_p));
		slow_softmax(s, 1);
	}
	if (p->top_p > 0 && p->top_p < 1) {
		slow_leave(s, s->p, slow_count_share(s, s->p, (double)p->top_p));
		slow_softmax(s, 1);
	}
	double most = 0;
	for (uint32_t i = 0; i < s->n_vocab; i++)
		most = fmax(most, s->p[i]);
	for (uint32_t i = 0; i < s->n_vocab; i++)
		if (s->p[i] < (double)p->min_p * most)
			s->logits[i] = -INFINITY;
}

/* The text of tokens in a test. */
struct slow_text {
	const char *const *texts; /* [n_vocab] */
};

static inline bool slow_get_text(
	void *userdata, uint32_t token, const char **ret_bytes, uint32_t *ret_n_bytes)
{
	const struct slow_text *t = userdata;

	*ret_bytes = t->texts[token];
	*ret_n_bytes = (uint32_t)strlen(t->texts[token]);
	return false;
}

/* How many tokens stand behind the one in which the newest breaker of the text ends. */
static inline uint64_t slow_unbroken(const struct dry_params *p, const struct slow_text *t,
	const uint32_t *history, uint64_t n_history)
{
	char text[SLOW_MAX_TEXT] = "";
	size_t end[SLOW_MAX_TEXT], newest = 0;

	for (uint64_t i = 0; i < n_history; i++) {
		strcat(text, t->texts[history[i]]);
		end[i] = strlen(text);
	}
	for (uint32_t b = 0; b < p->n_breakers; b++)
		for (size_t at = 0; at + p->breakers[b].n_bytes <= strlen(text); at++)
			if (memcmp(text + at, p->breakers[b].bytes, p->breakers[b].n_bytes) == 0 &&
				at + p->breakers[b].n_bytes > newest)
				newest = at + p->breakers[b].n_bytes;
	for (uint64_t i = 0; i < n_history && newest; i++)
		if (end[i] >= newest)
			return n_history - i - 1;
	return n_history;
}

/* For every token, how much of the end of the history, at most n_most, stood before it already. */
static inline void slow_dry(struct slow *s, const struct dry_params *p, const struct slow_text *t,
	const uint32_t *history, uint64_t n_history)
{
	uint64_t n_most = slow_unbroken(p, t, history, n_history);
	uint64_t first = p->last_n && n_history > p->last_n ? n_history - p->last_n : 0;

	for (uint32_t id = 0; id < s->n_vocab; id++) {
		uint64_t longest = 0;
		bool is_breaker = false;

		for (uint64_t at = first + 1; at < n_history; at++) {
			uint64_t n = 0;

			if (history[at] != id)
				continue;
			while (n < n_most && at - n > first &&
				history[at - 1 - n] == history[n_history - 1 - n])
				n++;
			if (n > longest)
				longest = n;
		}
		for (uint32_t b = 0; b < p->n_breakers; b++)
			is_breaker |= strstr(t->texts[id], p->breakers[b].bytes) != NULL;
		if (longest >= p->allowed_length && !is_breaker)
			s->logits[id] -=
				fmin(1e30, (double)p->multiplier *
						   pow((double)p->base,
							   (double)(longest - p->allowed_length)));
	}
}

static inline void slow_penalise(
	struct slow *s, const struct sampler_params *p, const uint32_t *history, uint64_t n_history)
{
	uint64_t first = n_history > p->repeat_last_n ? n_history - p->repeat_last_n : 0;

	for (uint32_t id = 0; id < s->n_vocab; id++) {
		double n = 0, repeat = p->repeat_penalty == 0 ? 1 : (double)p->repeat_penalty;

		for (uint64_t i = first; i < n_history; i++)
			n += history[i] == id;
		if (n == 0)
			continue;
		s->logits[id] *= s->logits[id] > 0 ? 1 / repeat : repeat;
		s->logits[id] -= n * (double)p->frequency_penalty + (double)p->presence_penalty;
	}
}

#endif
