/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/sampler.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "proto/util/err.h"

enum { DEFAULT_LAST_N = 64, FIRST_NUCLEUS = 128 };

struct candidate {
	float logit;
	float weight; /* softmax without its divisor */
	uint32_t id;
};

struct sampler {
	struct sampler_params params;
	uint32_t n_vocab;
	uint64_t random[4];
	float *logits;                /* [n_vocab] with the penalty */
	struct candidate *candidates; /* [n_vocab], n_candidates in use */
	uint32_t n_candidates;
};

/*
 * xoshiro256** 1.0, seeded by splitmix64; written after the public-domain algorithms of David
 * Blackman and Sebastiano Vigna, https://prng.di.unimi.it
 */
static uint64_t splitmix(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static uint64_t rotate_left(uint64_t x, int n)
{
	return x << n | x >> (64 - n);
}

static uint64_t xoshiro(uint64_t s[4])
{
	uint64_t result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotate_left(s[3], 45);
	return result;
}

/* [0, 1), 53 bits. */
static double draw_unit(struct sampler *s)
{
	return (double)(xoshiro(s->random) >> 11) * 0x1p-53;
}

/* low <= value <= high; a NaN is outside. */
static int check(const char *name, float value, float low, float high, struct err *ret_err)
{
	if (value >= low && value <= high)
		return 0;
	if (high == INFINITY)
		return err_set(ret_err, EINVAL, "%s: expected a number of at least %g, found %g",
			name, (double)low, (double)value);
	return err_set(ret_err, EINVAL, "%s: expected a number from %g to %g, found %g", name,
		(double)low, (double)high, (double)value);
}

static int check_params(const struct sampler_params *p, uint32_t n_vocab, struct err *ret_err)
{
	int r = check("temperature", p->temperature, 0, INFINITY, ret_err);

	if (r == 0)
		r = check("top_p", p->top_p, 0, 1, ret_err);
	if (r == 0)
		r = check("min_p", p->min_p, 0, 1, ret_err);
	if (r == 0)
		r = check("repeat_penalty", p->repeat_penalty, 0, INFINITY, ret_err);
	if (r == 0 && (isinf(p->temperature) || isinf(p->repeat_penalty)))
		r = err_set(ret_err, EINVAL, "%s: expected a finite number, found inf",
			isinf(p->temperature) ? "temperature" : "repeat_penalty");
	if (r == 0 && n_vocab == 0)
		r = err_set(ret_err, EINVAL, "vocabulary: expected at least 1 token, found 0");
	return r;
}

int sampler_new(const struct sampler_params *params, uint32_t n_vocab, struct err *ret_err,
	struct sampler **ret_sampler)
{
	int r = check_params(params, n_vocab, ret_err);

	if (r < 0)
		return r;
	struct sampler *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->params = *params;
	if (s->params.repeat_last_n == 0)
		s->params.repeat_last_n = DEFAULT_LAST_N;
	s->n_vocab = n_vocab;
	uint64_t seed = params->seed;
	for (int i = 0; i < 4; i++)
		s->random[i] = splitmix(&seed);
	s->logits = calloc(n_vocab, sizeof(*s->logits));
	s->candidates = calloc(n_vocab, sizeof(*s->candidates));
	if (!s->logits || !s->candidates) {
		sampler_free(s);
		return -ENOMEM;
	}
	*ret_sampler = s;
	return 0;
}

struct sampler *sampler_free(struct sampler *s)
{
	if (s) {
		free(s->logits);
		free(s->candidates);
		free(s);
	}
	return NULL;
}

/*
 * Positive logits of tokens seen lately are divided, negative ones multiplied (CTRL, Keskar et al.
 * 2019, as Hugging Face's RepetitionPenaltyLogitsProcessor has it); once a token, however often it
 * was seen. The logits to go on with: the given ones when nothing is penalised.
 */
static const float *penalise(
	struct sampler *s, const float *logits, const uint32_t *history, uint64_t n_history)
{
	float penalty = s->params.repeat_penalty;
	uint64_t n_last = s->params.repeat_last_n;

	if (penalty == 0 || penalty == 1 || n_history == 0)
		return logits;
	memcpy(s->logits, logits, s->n_vocab * sizeof(*logits));
	for (uint64_t i = n_history > n_last ? n_history - n_last : 0; i < n_history; i++) {
		uint32_t id = history[i];

		if (id < s->n_vocab)
			s->logits[id] =
				logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
	}
	return s->logits;
}

static int pick_largest(const float *logits, uint32_t n_vocab, uint32_t *ret_token)
{
	uint32_t best = UINT32_MAX;

	for (uint32_t i = 0; i < n_vocab; i++)
		if (isfinite(logits[i]) && (best == UINT32_MAX || logits[i] > logits[best]))
			best = i;
	if (best == UINT32_MAX)
		return -ERANGE;
	*ret_token = best;
	return 0;
}

/* Does a come behind b? No two candidates are equal. */
static bool is_worse(const struct candidate *a, const struct candidate *b)
{
	return a->logit != b->logit ? a->logit < b->logit : a->id > b->id;
}

/* Lets c sink from the top of heap[0..n), whose top is the worst. */
static void sink(struct candidate *heap, uint32_t n, struct candidate c)
{
	uint64_t at = 0, child;

	while ((child = 2 * at + 1) < n) {
		if (child + 1 < n && is_worse(&heap[child + 1], &heap[child]))
			child++;
		if (!is_worse(&heap[child], &c))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = c;
}

static void rise(struct candidate *heap, uint64_t at, struct candidate c)
{
	for (; at && is_worse(&c, &heap[(at - 1) / 2]); at = (at - 1) / 2)
		heap[at] = heap[(at - 1) / 2];
	heap[at] = c;
}

/* The n best candidates, best first: a heap of n with the worst on top, then sorted in place. */
static void select_best(struct sampler *s, const float *logits, uint32_t n)
{
	struct candidate *heap = s->candidates;
	uint32_t n_heap = 0;

	for (uint32_t i = 0; i < s->n_vocab; i++) {
		struct candidate c = {.logit = logits[i], .id = i};

		/* Most logits lose against the worst that was kept, and end here. */
		if (n_heap == n && !(c.logit > heap[0].logit))
			continue;
		if (!isfinite(c.logit))
			continue;
		if (n_heap < n)
			rise(heap, n_heap++, c);
		else
			sink(heap, n, c);
	}
	s->n_candidates = n_heap;
	while (n_heap > 1) {
		struct candidate last = heap[--n_heap];
		heap[n_heap] = heap[0];
		sink(heap, n_heap, last);
	}
}

/* All finite logits in the order of ids. */
static void select_all(struct sampler *s, const float *logits)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n_vocab; i++)
		if (isfinite(logits[i]))
			s->candidates[n++] = (struct candidate){.logit = logits[i], .id = i};
	s->n_candidates = n;
}

/* Weights relative to the largest logit, whose weight is 1; returns their sum. */
static double weigh(struct sampler *s, float largest, float temperature)
{
	double sum = 0;

	for (uint32_t i = 0; i < s->n_candidates; i++) {
		struct candidate *c = &s->candidates[i];

		c->weight = expf((c->logit - largest) / temperature);
		sum += (double)c->weight;
	}
	return sum;
}

/* How many of the candidates, best first, hold the share top_p of the sum; 0: all do not. */
static uint32_t count_nucleus(const struct sampler *s, double sum)
{
	double reached = 0, wanted = (double)s->params.top_p * sum;

	for (uint32_t i = 0; i < s->n_candidates; i++) {
		reached += (double)s->candidates[i].weight;
		if (reached >= wanted)
			return i + 1;
	}
	return 0;
}

/* Leaves the smallest set of best candidates that holds the share top_p of the probability. */
static void cut_top_p(struct sampler *s, const float *logits, float largest)
{
	double sum = weigh(s, largest, 1);
	uint32_t n_all = s->n_candidates;
	uint64_t n_best = FIRST_NUCLEUS;
	uint32_t n = 0;

	/* Top-k left them sorted; else the nucleus, mostly small, is looked for in ever more. */
	if (s->params.top_k)
		n = count_nucleus(s, sum);
	for (; n == 0 && n_best < n_all; n_best *= 8) {
		select_best(s, logits, (uint32_t)n_best);
		(void)weigh(s, largest, 1);
		n = count_nucleus(s, sum);
	}
	if (n == 0) {
		select_best(s, logits, n_all);
		(void)weigh(s, largest, 1);
		n = count_nucleus(s, sum);
	}
	if (n)
		s->n_candidates = n;
}

/* Drops what is less probable than min_p of the most probable; that one stays. */
static void cut_min_p(struct sampler *s, float largest)
{
	float least = largest + logf(s->params.min_p);
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n_candidates; i++)
		if (s->candidates[i].logit >= least || s->candidates[i].logit == largest)
			s->candidates[n++] = s->candidates[i];
	s->n_candidates = n;
}

static uint32_t draw(struct sampler *s, double sum)
{
	double left = draw_unit(s) * sum;
	uint32_t last = 0;

	for (uint32_t i = 0; i < s->n_candidates; i++) {
		if (s->candidates[i].weight == 0)
			continue;
		last = i;
		left -= (double)s->candidates[i].weight;
		if (left < 0)
			break;
	}
	return s->candidates[last].id;
}

int sampler_pick(struct sampler *s, const float *logits, const uint32_t *history,
	uint64_t n_history, uint32_t *ret_token)
{
	const struct sampler_params *p = &s->params;
	uint32_t best;

	logits = penalise(s, logits, history, n_history);
	int r = pick_largest(logits, s->n_vocab, &best);
	if (r < 0)
		return r;
	if (p->temperature == 0) {
		*ret_token = best;
		return 0;
	}
	if (p->top_k)
		select_best(s, logits, p->top_k < s->n_vocab ? p->top_k : s->n_vocab);
	else
		select_all(s, logits);
	if (p->top_p > 0 && p->top_p < 1)
		cut_top_p(s, logits, logits[best]);
	if (p->min_p > 0)
		cut_min_p(s, logits[best]);
	*ret_token = draw(s, weigh(s, logits[best], p->temperature));
	return 0;
}
