/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/sampler.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "workerd/candidates.h"

enum { DEFAULT_LAST_N = 64, MAX_PENALTY = 100, MASK_BITS = 32 };

struct sampler {
	struct sampler_params params;
	uint32_t n_vocab;
	uint64_t random[4];
	float *logits;    /* [n_vocab] with mask, bias and penalties */
	uint32_t *counts; /* [n_vocab] in the history's end; 0 between calls */
	struct dry *dry;  /* NULL: off */
	struct candidates candidates;
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
	if (high == FLT_MAX)
		return err_set(ret_err, EINVAL,
			"%s: expected a finite number of at least %g, found %g", name, (double)low,
			(double)value);
	return err_set(ret_err, EINVAL, "%s: expected a number from %g to %g, found %g", name,
		(double)low, (double)high, (double)value);
}

static int check_biases(const struct sampler_params *p, uint32_t n_vocab, struct err *ret_err)
{
	for (uint32_t i = 0; i < p->n_biases; i++) {
		const struct sampler_bias *b = &p->biases[i];

		if (b->id >= n_vocab)
			return err_set(ret_err, EINVAL,
				"logit_bias[%" PRIu32 "]: expected an id below %" PRIu32
				", found %" PRIu32,
				i, n_vocab, b->id);
		if (!isfinite(b->bias) && b->bias != -INFINITY)
			return err_set(ret_err, EINVAL,
				"logit_bias[%" PRIu32
				"]: expected a finite number or -inf, found %g",
				i, (double)b->bias);
	}
	return 0;
}

static int check_params(const struct sampler_params *p, uint32_t n_vocab, struct err *ret_err)
{
	const struct {
		const char *name;
		float value, low, high;
	} rows[] = {
		{"temperature", p->temperature, 0, FLT_MAX},
		{"top_p", p->top_p, 0, 1},
		{"min_p", p->min_p, 0, 1},
		{"typical_p", p->typical_p, 0, 1},
		{"repeat_penalty", p->repeat_penalty, 0, FLT_MAX},
		{"frequency_penalty", p->frequency_penalty, -MAX_PENALTY, MAX_PENALTY},
		{"presence_penalty", p->presence_penalty, -MAX_PENALTY, MAX_PENALTY},
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		int r = check(rows[i].name, rows[i].value, rows[i].low, rows[i].high, ret_err);
		if (r)
			return r;
	}
	if (n_vocab == 0)
		return err_set(ret_err, EINVAL, "vocabulary: expected at least 1 token, found 0");
	return check_biases(p, n_vocab, ret_err);
}

/* DRY's parameters are judged where it is off, too. */
static int init_dry(
	struct sampler *s, uint32_t n_ctx, const struct dry_text *text, struct err *ret_err)
{
	int r = dry_new(&s->params.dry, s->n_vocab, n_ctx, text, ret_err, &s->dry);

	if (r == 0 && s->params.dry.multiplier == 0)
		s->dry = dry_free(s->dry);
	return r;
}

int sampler_new(const struct sampler_params *params, uint32_t n_vocab, uint32_t n_ctx,
	const struct dry_text *text, struct err *ret_err, struct sampler **ret_sampler)
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
	s->counts = calloc(n_vocab, sizeof(*s->counts));
	r = s->logits && s->counts ? candidates_init(&s->candidates, n_vocab) : -ENOMEM;
	if (r == 0)
		r = init_dry(s, n_ctx, text, ret_err);
	if (r < 0) {
		sampler_free(s);
		return r;
	}
	*ret_sampler = s;
	return 0;
}

struct sampler *sampler_free(struct sampler *s)
{
	if (s) {
		free(s->logits);
		free(s->counts);
		dry_free(s->dry);
		candidates_fini(&s->candidates);
		free(s);
	}
	return NULL;
}

/*
 * The repeat penalty is CTRL's (Keskar et al., 2019, https://arxiv.org/abs/1909.05858), frequency
 * and presence penalties are those of OpenAI's API. Each token is penalised where it is met first.
 */
static void penalise(struct sampler *s, const uint32_t *history, uint64_t n_history)
{
	const struct sampler_params *p = &s->params;
	float repeat = p->repeat_penalty == 0 ? 1 : p->repeat_penalty;
	uint64_t first = n_history > p->repeat_last_n ? n_history - p->repeat_last_n : 0;

	if (repeat == 1 && p->frequency_penalty == 0 && p->presence_penalty == 0)
		return;
	for (uint64_t i = first; i < n_history; i++)
		if (history[i] < s->n_vocab)
			s->counts[history[i]]++;
	for (uint64_t i = first; i < n_history; i++) {
		uint32_t id = history[i];

		if (id >= s->n_vocab || !s->counts[id])
			continue;
		float *logit = &s->logits[id];
		*logit = *logit > 0 ? *logit / repeat : *logit * repeat;
		*logit -= (float)s->counts[id] * p->frequency_penalty + p->presence_penalty;
		s->counts[id] = 0;
	}
}

/* Numbers stay a number: beyond the largest the token that is wanted most would not count. */
static float add_bias(float logit, float bias)
{
	float sum = logit + bias;

	return isfinite(logit) && isfinite(bias) ? fmaxf(fminf(sum, FLT_MAX), -FLT_MAX) : sum;
}

/* The logits with all that changes them: mask, bias, penalties, DRY. */
static const float *adjust(struct sampler *s, const float *logits, const uint32_t *allowed,
	const uint32_t *history, uint64_t n_history)
{
	const struct sampler_params *p = &s->params;

	memcpy(s->logits, logits, s->n_vocab * sizeof(*logits));
	for (uint32_t i = 0; allowed && i < s->n_vocab; i++)
		if (!(allowed[i / MASK_BITS] >> i % MASK_BITS & 1))
			s->logits[i] = -INFINITY;
	for (uint32_t i = 0; i < p->n_biases; i++)
		s->logits[p->biases[i].id] =
			add_bias(s->logits[p->biases[i].id], p->biases[i].bias);
	penalise(s, history, n_history);
	if (s->dry)
		dry_apply(s->dry, history, n_history, s->logits);
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

/* Draws one of those that were taken. */
static uint32_t draw(struct sampler *s)
{
	const struct sampler_params *p = &s->params;
	struct candidates *c = &s->candidates;

	if (p->typical_p > 0 && p->typical_p < 1)
		candidates_cut_typical(c, p->typical_p);
	if (p->top_p > 0 && p->top_p < 1)
		candidates_cut_top_p(c, p->top_p);
	if (p->min_p > 0)
		candidates_cut_min_p(c, p->min_p);
	return candidates_draw(c, p->temperature, draw_unit(s));
}

bool sampler_is_greedy(const struct sampler *s)
{
	const struct sampler_params *p = &s->params;
	bool has_penalties = p->frequency_penalty != 0 || p->presence_penalty != 0 ||
			     (p->repeat_penalty != 0 && p->repeat_penalty != 1);

	return p->temperature == 0 && p->n_biases == 0 && !has_penalties && !s->dry;
}

int sampler_pick(struct sampler *s, const float *logits, const uint32_t *allowed,
	const uint32_t *history, uint64_t n_history, uint32_t *ret_token)
{
	const struct sampler_params *p = &s->params;
	struct candidates *c = &s->candidates;
	uint32_t best;

	logits = adjust(s, logits, allowed, history, n_history);
	int r = pick_largest(logits, s->n_vocab, &best);
	if (r < 0)
		return allowed ? -ENOENT : r;
	if (p->temperature == 0) {
		*ret_token = best;
		return 0;
	}
	if (p->top_k)
		candidates_take_best(c, logits, p->top_k < s->n_vocab ? p->top_k : s->n_vocab);
	else
		candidates_take_all(c, logits);
	*ret_token = draw(s);
	return 0;
}

/* How many of the best decide; 0: all logits do, or some may come up that are none of the best. */
static uint32_t count_deciding(const struct sampler_params *p)
{
	bool only_lowers = p->n_biases == 0 && p->frequency_penalty >= 0 &&
			   p->presence_penalty >= 0 &&
			   (p->repeat_penalty == 0 || p->repeat_penalty >= 1);

	if (!only_lowers)
		return 0;
	return p->temperature == 0 ? 1 : p->top_k;
}

static int compare_ids(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

int sampler_pick_best(struct sampler *s, const struct abi_best *best, const uint32_t *history,
	uint64_t n_history, uint32_t *ret_token)
{
	uint32_t ids[ABI_BEST_N], n = 0, n_above = 0, n_deciding = count_deciding(&s->params);

	if (!n_deciding)
		return -EAGAIN;
	for (; n < ABI_BEST_N && best[n].index < s->n_vocab; n++) {
		ids[n] = best[n].index;
		s->logits[ids[n]] = best[n].logit;
	}
	if (n == 0)
		return -ERANGE;
	/* What stands in s->logits of other tokens is nobody's, before and behind these. */
	penalise(s, history, n_history);
	if (s->dry)
		dry_apply(s->dry, history, n_history, s->logits);
	/* All others were at most the last of these, and have not been raised. */
	for (uint32_t i = 0; i < n; i++)
		n_above += s->logits[ids[i]] > best[n - 1].logit;
	if (n == ABI_BEST_N && n_above < n_deciding)
		return -EAGAIN;
	qsort(ids, n, sizeof(*ids), compare_ids);
	candidates_take_best_of(&s->candidates, s->logits, ids, n, n_deciding);
	if (s->candidates.n == 0)
		return -ERANGE;
	*ret_token = s->params.temperature == 0 ? s->candidates.list[0].id : draw(s);
	return 0;
}
