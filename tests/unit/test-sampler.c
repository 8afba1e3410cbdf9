/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/sampler.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"

enum { N_VOCAB = 1024, N_DRAWS = 6000 };

static struct sampler *make(struct sampler_params params, uint32_t n_vocab)
{
	struct sampler *s = NULL;
	struct err err = ERR_NULL;
	int r = sampler_new(&params, n_vocab, &err, &s);

	if (r < 0)
		fail_msg("%d: %s", r, err.text);
	return s;
}

static uint32_t pick(struct sampler *s, const float *logits)
{
	uint32_t token = UINT32_MAX;

	assert_int_equal(sampler_pick(s, logits, NULL, 0, &token), 0);
	return token;
}

static uint32_t pick_once(struct sampler_params params, const float *logits, uint32_t n_vocab,
	const uint32_t *history, uint64_t n_history)
{
	struct sampler *s = make(params, n_vocab);
	uint32_t token = UINT32_MAX;

	assert_int_equal(sampler_pick(s, logits, history, n_history, &token), 0);
	sampler_free(s);
	return token;
}

static void test_greedy(void **state)
{
	(void)state;
	const struct sampler_params greedy = {.seed = 1};
	const float plain[] = {-3, 2, 7, 7, 1};
	const float odd[] = {NAN, INFINITY, -8, -INFINITY, -7, -7, NAN};
	const float lowest[] = {-3e38f, -3.2e38f};

	assert_int_equal(pick_once(greedy, plain, 5, NULL, 0), 2); /* the lowest id of equals */
	assert_int_equal(pick_once(greedy, odd, 7, NULL, 0), 4);
	assert_int_equal(pick_once(greedy, lowest, 2, NULL, 0), 0);
	/* One candidate, by any filter, is greedy too. */
	assert_int_equal(
		pick_once((struct sampler_params){.temperature = 2, .top_k = 1}, plain, 5, NULL, 0),
		2);
	assert_int_equal(pick_once((struct sampler_params){.temperature = 2, .top_p = 1e-6f}, plain,
				 5, NULL, 0),
		2);
	assert_int_equal(
		pick_once((struct sampler_params){.temperature = 1e-30f}, lowest, 2, NULL, 0), 0);
}

static void test_not_finite(void **state)
{
	(void)state;
	const float none[] = {NAN, INFINITY, -INFINITY};
	const float one[] = {NAN, INFINITY, -90, -INFINITY};
	const struct sampler_params rows[] = {
		{.temperature = 0},
		{.temperature = 1},
		{.temperature = 1, .top_k = 2},
		{.temperature = 1, .top_p = 0.9f},
		{.temperature = 1, .min_p = 1},
		{.temperature = 1, .top_k = 9, .top_p = 0.5f, .min_p = 0.1f},
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct sampler *s = make(rows[i], 3);
		uint32_t token = 99;

		assert_int_equal(sampler_pick(s, none, NULL, 0, &token), -ERANGE);
		assert_int_equal(token, 99);
		sampler_free(s);
		assert_int_equal(pick_once(rows[i], one, 4, NULL, 0), 2);
	}
}

static void test_penalty(void **state)
{
	(void)state;
	const float logits[] = {4, 3, -1, -2};
	const float low[] = {-1, -1.5f, NAN, 0};
	const uint32_t history[] = {3, 0, 0, 0}, low_history[] = {0, 3, 77, 3};
	struct sampler_params p = {.repeat_penalty = 1.5f};

	/* 4 / 1.5 < 3, and only once although seen thrice: 4 / 1.5 > 2. */
	assert_int_equal(pick_once(p, logits, 4, history, 4), 1);
	assert_int_equal(pick_once(p, (const float[]){4, 2, -1, -2}, 4, history, 4), 0);
	/* A negative logit is multiplied; zero stays; an id outside the vocabulary is passed over.
	 */
	assert_int_equal(pick_once(p, low, 4, low_history, 4), 3);
	assert_int_equal(pick_once((struct sampler_params){.repeat_penalty = 2},
				 (const float[]){-1, -1.5f}, 2, low_history, 1),
		1);
	/* Looks back repeat_last_n tokens, 64 unless told. */
	uint32_t many[65] = {0};
	for (int i = 1; i < 65; i++)
		many[i] = 3;
	assert_int_equal(pick_once(p, logits, 4, many, 65), 0);
	assert_int_equal(pick_once(p, logits, 4, many, 64), 1);
	p.repeat_last_n = 65;
	assert_int_equal(pick_once(p, logits, 4, many, 65), 1);
	/* The logits given are unchanged. */
	assert_true(logits[0] == 4);
}

struct slow {
	double p[N_VOCAB];
	uint32_t order[N_VOCAB];
};

static const float *sort_logits;

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	float u = sort_logits[x], v = sort_logits[y];

	return u != v ? (u < v) - (u > v) : (x > y) - (x < y);
}

/* The definition, with a full sort and doubles: the probability of every token. */
static void distribute(const struct sampler_params *p, const float *logits, struct slow *slow)
{
	uint32_t n = N_VOCAB, n_kept = 0;
	double sum = 0, reached = 0;

	for (uint32_t i = 0; i < N_VOCAB; i++) {
		slow->order[i] = i;
		slow->p[i] = 0;
	}
	sort_logits = logits;
	qsort(slow->order, N_VOCAB, sizeof(uint32_t), compare);
	double largest = (double)logits[slow->order[0]];
	if (p->top_k && p->top_k < n)
		n = p->top_k;
	for (uint32_t i = 0; i < n; i++)
		sum += exp((double)logits[slow->order[i]] - largest);
	if (p->top_p > 0 && p->top_p < 1) {
		while (reached < (double)p->top_p * sum)
			reached += exp((double)logits[slow->order[n_kept++]] - largest);
		n = n_kept;
	}
	while (p->min_p > 0 && exp((double)logits[slow->order[n - 1]] - largest) < (double)p->min_p)
		n--;
	sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += exp(((double)logits[slow->order[i]] - largest) / (double)p->temperature);
	for (uint32_t i = 0; i < n; i++)
		slow->p[slow->order[i]] =
			exp(((double)logits[slow->order[i]] - largest) / (double)p->temperature) /
			sum;
}

/* Gaussian-like logits, as models have: a few likely tokens and a long tail. */
static void make_logits(float *ret_logits, float spread)
{
	uint32_t x = 12345;

	for (uint32_t i = 0; i < N_VOCAB; i++) {
		float sum = 0;
		for (int k = 0; k < 4; k++) {
			x = x * 1664525u + 1013904223u;
			sum += (float)(x >> 8) * 0x1p-24f - 0.5f;
		}
		ret_logits[i] = sum * spread;
	}
}

/*
 * Pearson's chi-square over tokens of at least 20 expected draws, the rest in one bin. Its mean is
 * the degrees of freedom f and its deviation sqrt(2 f): six of those are exceeded once in 10^8, and
 * the seed is fixed. A token of probability 0 is never drawn.
 */
static void assert_distribution(struct sampler_params p, const float *logits)
{
	static struct slow slow;
	static uint32_t n_drawn[N_VOCAB];
	double chi = 0, rest = 0, n_rest = 0;
	uint32_t n_bins = 0;
	struct sampler *s = make(p, N_VOCAB);

	distribute(&p, logits, &slow);
	memset(n_drawn, 0, sizeof(n_drawn));
	for (uint32_t i = 0; i < N_DRAWS; i++)
		n_drawn[pick(s, logits)]++;
	for (uint32_t i = 0; i < N_VOCAB; i++) {
		double expected = slow.p[i] * N_DRAWS;

		if (slow.p[i] == 0)
			assert_int_equal(n_drawn[i], 0);
		if (expected < 20) {
			rest += expected;
			n_rest += n_drawn[i];
			continue;
		}
		chi += (n_drawn[i] - expected) * (n_drawn[i] - expected) / expected;
		n_bins++;
	}
	if (rest > 0) {
		chi += (n_rest - rest) * (n_rest - rest) / rest;
		n_bins++;
	}
	assert_true(n_bins > 0);
	double f = n_bins - 1;
	if (chi > f + 6 * sqrt(2 * f) + 1e-6)
		fail_msg("chi-square %g of %g degrees of freedom: temperature %g, top_k %u, top_p "
			 "%g, "
			 "min_p %g",
			chi, f, (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p);
	sampler_free(s);
}

static void test_distributions(void **state)
{
	(void)state;
	static const struct sampler_params rows[] = {
		{.temperature = 1},
		{.temperature = 0.5f},
		{.temperature = 1.5f, .top_k = 10},
		{.temperature = 1, .top_k = 5000},
		{.temperature = 1, .top_p = 0.5f},
		{.temperature = 0.8f, .top_p = 0.95f}, /* a nucleus beyond the first guess */
		{.temperature = 2, .top_p = 0.9999f},
		{.temperature = 1, .min_p = 0.1f},
		{.temperature = 3, .min_p = 1},
		{.temperature = 0.7f, .top_k = 40, .top_p = 0.9f, .min_p = 0.05f},
		{.temperature = 1.3f, .top_k = 1000, .top_p = 0.99f, .min_p = 0.001f, .seed = 3},
	};
	static float logits[N_VOCAB];

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		make_logits(logits, i % 2 ? 8 : 12);
		assert_distribution(rows[i], logits);
	}
}

/* Equal logits at the edge of top-k: the lowest ids stay. */
static void test_ties(void **state)
{
	(void)state;
	static float logits[N_VOCAB];
	struct sampler *s = make((struct sampler_params){.temperature = 1, .top_k = 3}, N_VOCAB);
	uint32_t seen = 0;

	logits[1000] = 1;
	for (int i = 0; i < 200; i++) {
		uint32_t token = pick(s, logits);
		assert_true(token == 0 || token == 1 || token == 1000);
		seen |= token == 1000 ? 4 : 1u << token;
	}
	assert_int_equal(seen, 7);
	sampler_free(s);
}

static void test_seeds(void **state)
{
	(void)state;
	static float logits[N_VOCAB];
	struct sampler *s[3];
	uint32_t n_same = 0;

	make_logits(logits, 4);
	for (uint64_t i = 0; i < 3; i++)
		s[i] = make((struct sampler_params){.temperature = 1, .seed = i / 2}, N_VOCAB);
	for (int i = 0; i < 100; i++) {
		uint32_t token = pick(s[0], logits);
		assert_int_equal(token, pick(s[1], logits));
		n_same += token == pick(s[2], logits);
	}
	assert_true(n_same < 10);
	for (int i = 0; i < 3; i++)
		sampler_free(s[i]);
}

static void test_refusals(void **state)
{
	(void)state;
	static const struct {
		struct sampler_params params;
		const char *name;
	} rows[] = {
		{{.temperature = -1}, "temperature"},
		{{.temperature = NAN}, "temperature"},
		{{.temperature = INFINITY}, "temperature"},
		{{.top_p = 1.5f}, "top_p"},
		{{.top_p = NAN}, "top_p"},
		{{.min_p = -0.1f}, "min_p"},
		{{.repeat_penalty = -2}, "repeat_penalty"},
		{{.repeat_penalty = INFINITY}, "repeat_penalty"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct sampler *s = NULL;
		struct err err = ERR_NULL;

		assert_int_equal(sampler_new(&rows[i].params, 10, &err, &s), -EINVAL);
		assert_null(s);
		assert_ptr_equal(strstr(err.text, rows[i].name), err.text);
	}
	struct sampler *s = NULL;
	assert_int_equal(sampler_new(&(struct sampler_params){.seed = 0}, 0, NULL, &s), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_greedy),
		CASE(test_not_finite),
		CASE(test_penalty),
		CASE(test_distributions),
		CASE(test_ties),
		CASE(test_seeds),
		CASE(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
