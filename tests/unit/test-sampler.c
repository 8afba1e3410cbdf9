/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/sampler.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"
#include "tests/unit/sampler-slow.h"

enum { N_VOCAB = 300, N_CTX = 200, N_DRAWS = 6000 };

static struct sampler *make(struct sampler_params params, uint32_t n_vocab)
{
	struct sampler *s = NULL;
	struct err err = ERR_NULL;
	int r = sampler_new(&params, n_vocab, N_CTX, NULL, &err, &s);

	if (r < 0)
		fail_msg("%d: %s", r, err.text);
	return s;
}

static uint32_t pick(struct sampler *s, const float *logits)
{
	uint32_t token = UINT32_MAX;

	assert_int_equal(sampler_pick(s, logits, NULL, NULL, 0, &token), 0);
	return token;
}

static uint32_t pick_once(struct sampler_params params, const float *logits, uint32_t n_vocab,
	const uint32_t *history, uint64_t n_history)
{
	struct sampler *s = make(params, n_vocab);
	uint32_t token = UINT32_MAX;

	assert_int_equal(sampler_pick(s, logits, NULL, history, n_history, &token), 0);
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

		assert_int_equal(sampler_pick(s, none, NULL, NULL, 0, &token), -ERANGE);
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

/*
 * Pearson's chi-square over tokens of at least 20 expected draws, the rest in one bin. Its mean is
 * the degrees of freedom f and its deviation sqrt(2 f): six of those are exceeded once in 10^8, and
 * the seed is fixed. A token of probability 0 is never drawn.
 */
static void assert_distribution(struct sampler *s, const struct slow *slow, const float *logits,
	const uint32_t *allowed, const uint32_t *history, uint64_t n_history, size_t row)
{
	static uint32_t n_drawn[N_VOCAB];
	double chi = 0, rest = 0, n_rest = 0;
	uint32_t n_bins = 0;

	memset(n_drawn, 0, sizeof(n_drawn));
	for (uint32_t i = 0; i < N_DRAWS; i++) {
		uint32_t token = UINT32_MAX;

		assert_int_equal(sampler_pick(s, logits, allowed, history, n_history, &token), 0);
		n_drawn[token]++;
	}
	for (uint32_t i = 0; i < N_VOCAB; i++) {
		double expected = slow->p[i] * N_DRAWS;

		if (slow->p[i] == 0)
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
		fail_msg("row %zu: chi-square %g of %g degrees of freedom", row, chi, f);
}

static const struct sampler_bias biases[] = {
	{7, 3}, {7, 0.5f}, {30, -INFINITY}, {31, 6}, {32, -2}, {31, -INFINITY}};

static const struct sampler_params mixed_rows[] = {
	{.temperature = 1},
	{.temperature = 0.8f, .top_k = 30, .top_p = 0.95f, .seed = 5},
	{.temperature = 1, .frequency_penalty = 0.7f, .repeat_last_n = 100},
	{.temperature = 1.1f, .presence_penalty = -1.5f, .repeat_last_n = 60, .top_k = 90},
	{.temperature = 1,
		.repeat_penalty = 1.4f,
		.frequency_penalty = 0.1f,
		.presence_penalty = 0.4f,
		.repeat_last_n = 20,
		.typical_p = 0.81f},
	{.temperature = 0.9f, .biases = biases, .n_biases = ARRAY_SIZE(biases), .min_p = 0.02f},
	{.temperature = 1,
		.dry = {.multiplier = 0.8f, .base = 1.5f, .allowed_length = 1},
		.repeat_last_n = 1,
		.top_p = 0.9f},
	{.temperature = 1.3f,
		.biases = biases,
		.n_biases = ARRAY_SIZE(biases),
		.repeat_penalty = 1.1f,
		.frequency_penalty = 0.2f,
		.presence_penalty = 0.3f,
		.repeat_last_n = 150,
		.top_k = 80,
		.typical_p = 0.93f,
		.top_p = 0.87f,
		.min_p = 0.01f,
		.dry = {.multiplier = 0.5f, .base = 1.75f, .allowed_length = 2, .last_n = 90}},
};

/* All the steps, one after the other, against their definitions; with a mask and without. */
static void test_distributions(void **state)
{
	const char *texts[N_VOCAB];
	struct slow_text text = {.texts = texts};
	static float logits[N_VOCAB];
	static struct slow slow;
	uint32_t history[N_CTX], allowed[(N_VOCAB + 31) / 32];

	(void)state;
	for (uint32_t i = 0; i < N_VOCAB; i++)
		texts[i] = "";
	for (size_t i = 0; i < 2 * ARRAY_SIZE(mixed_rows); i++) {
		const struct sampler_params *p = &mixed_rows[i / 2];
		const uint32_t *mask = i % 2 ? allowed : NULL;
		uint32_t random = (uint32_t)i;
		struct sampler *s = make(*p, N_VOCAB);

		slow_make_logits(&random, i % 3 ? 8 : 12, N_VOCAB, logits);
		for (uint32_t k = 0; k < N_CTX; k++)
			history[k] = slow_random(&random) % (k < 100 ? N_VOCAB : 3);
		for (size_t k = 0; k < ARRAY_SIZE(allowed); k++)
			allowed[k] = slow_random(&random) * 2654435761u;
		slow_init(&slow, logits, N_VOCAB);
		for (uint32_t k = 0; k < N_VOCAB; k++)
			if (mask && !(mask[k / 32] & 1u << k % 32))
				slow.logits[k] = -INFINITY;
		for (uint32_t k = 0; k < p->n_biases; k++)
			slow.logits[p->biases[k].id] += (double)p->biases[k].bias;
		slow_penalise(&slow, p, history, N_CTX);
		if (p->dry.multiplier > 0)
			slow_dry(&slow, &p->dry, &text, history, N_CTX);
		slow_filter(&slow, p);
		slow_softmax(&slow, (double)p->temperature);
		assert_distribution(s, &slow, logits, mask, history, N_CTX, i);
		sampler_free(s);
	}
}

/* Greedy is the largest logit behind bias and penalties, whatever the filters are. */
static void test_greedy_is_adjusted(void **state)
{
	static float logits[N_VOCAB];
	static struct slow slow;
	uint32_t history[N_CTX];

	(void)state;
	for (uint32_t seed = 0; seed < 200; seed++) {
		uint32_t random = seed, best = 0;
		struct sampler_params p = mixed_rows[seed % ARRAY_SIZE(mixed_rows)];

		p.temperature = 0;
		p.dry.multiplier = 0;
		slow_make_logits(&random, 5, N_VOCAB, logits);
		for (uint32_t k = 0; k < N_CTX; k++)
			history[k] = slow_random(&random) % N_VOCAB;
		slow_init(&slow, logits, N_VOCAB);
		for (uint32_t k = 0; k < p.n_biases; k++)
			slow.logits[p.biases[k].id] += (double)p.biases[k].bias;
		if (p.repeat_last_n == 0)
			p.repeat_last_n = 64;
		slow_penalise(&slow, &p, history, N_CTX);
		for (uint32_t i = 0; i < N_VOCAB; i++)
			if (slow.logits[i] > slow.logits[best])
				best = i;
		assert_int_equal(pick_once(p, logits, N_VOCAB, history, N_CTX), best);
	}
}

/* A token that is not allowed never comes, and nothing that is: -ENOENT. */
static void test_mask(void **state)
{
	(void)state;
	const float logits[40] = {[3] = 9, [33] = 8, [39] = NAN, [38] = INFINITY};
	const struct sampler_bias ban = {3, -INFINITY};
	uint32_t allowed[2] = {1u << 5, 1u << 1};
	struct sampler_params p = {.temperature = 0};
	struct sampler *s = make(p, 40);
	uint32_t token = 99;

	assert_int_equal(sampler_pick(s, logits, NULL, NULL, 0, &token), 0);
	assert_int_equal(token, 3);
	assert_int_equal(sampler_pick(s, logits, allowed, NULL, 0, &token), 0);
	assert_int_equal(token, 33);
	allowed[1] = 0;
	assert_int_equal(sampler_pick(s, logits, allowed, NULL, 0, &token), 0);
	assert_int_equal(token, 5);
	allowed[0] = 0;
	token = 99;
	assert_int_equal(sampler_pick(s, logits, allowed, NULL, 0, &token), -ENOENT);
	/* Logits that are no numbers are nothing, and neither are bits behind the vocabulary. */
	allowed[1] = 1u << 7 | 1u << 6 | 1u << 8;
	assert_int_equal(sampler_pick(s, logits, allowed, NULL, 0, &token), -ENOENT);
	assert_int_equal(token, 99);
	sampler_free(s);

	p = (struct sampler_params){.temperature = 1, .biases = &ban, .n_biases = 1};
	s = make(p, 40);
	allowed[0] = 1u << 3;
	allowed[1] = 0;
	assert_int_equal(sampler_pick(s, logits, allowed, NULL, 0, &token), -ENOENT);
	sampler_free(s);
	/* What DRY has pushed far down is still there when nothing else is allowed. */
	const uint32_t same[] = {3, 3, 3, 3, 3, 3, 3, 3};
	p = (struct sampler_params){.temperature = 1, .dry = {.multiplier = 3e38f, .base = 9e9f}};
	s = make(p, 40);
	assert_int_equal(sampler_pick(s, logits, allowed, same, ARRAY_SIZE(same), &token), 0);
	assert_int_equal(token, 3);
	sampler_free(s);
}

/* Biases add up, and however large they are the token still counts; -inf alone takes it out. */
static void test_large_biases(void **state)
{
	(void)state;
	const float logits[4] = {1, 2, INFINITY, 3};
	const struct sampler_bias up[] = {{0, FLT_MAX}, {0, FLT_MAX}, {2, 1}};
	const struct sampler_bias down[] = {{0, -FLT_MAX}, {0, -FLT_MAX}};
	const struct sampler_bias never[] = {{0, FLT_MAX}, {0, FLT_MAX}, {0, -INFINITY}};
	const struct {
		const struct sampler_bias *biases;
		uint32_t n_biases, allowed;
		int r;
		uint32_t token;
	} rows[] = {{up, ARRAY_SIZE(up), 15, 0, 0}, {down, ARRAY_SIZE(down), 15, 0, 3},
		{down, ARRAY_SIZE(down), 1, 0, 0}, {never, ARRAY_SIZE(never), 15, 0, 3},
		{never, ARRAY_SIZE(never), 1, -ENOENT, 9}};

	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++)
		for (int temperature = 0; temperature < 2; temperature++) {
			struct sampler *s = make(
				(struct sampler_params){.temperature = 1e-3f * (float)temperature,
					.typical_p = 0.9f,
					.min_p = 0.1f,
					.biases = rows[i].biases,
					.n_biases = rows[i].n_biases},
				4);
			uint32_t token = 9;

			assert_int_equal(sampler_pick(s, logits, &rows[i].allowed, NULL, 0, &token),
				rows[i].r);
			assert_int_equal(token, rows[i].token);
			sampler_free(s);
		}
}

/* Equal logits at the edge of top-k: the lowest ids stay. */
static void test_ties(void **state)
{
	(void)state;
	static float logits[N_VOCAB];
	struct sampler *s = make((struct sampler_params){.temperature = 1, .top_k = 3}, N_VOCAB);
	uint32_t seen = 0;

	logits[250] = 1;
	for (int i = 0; i < 200; i++) {
		uint32_t token = pick(s, logits);
		assert_true(token == 0 || token == 1 || token == 250);
		seen |= token == 250 ? 4 : 1u << token;
	}
	assert_int_equal(seen, 7);
	sampler_free(s);
}

static void test_seeds(void **state)
{
	(void)state;
	static float logits[N_VOCAB];
	struct sampler *s[3];
	uint32_t n_same = 0, random = 1;

	slow_make_logits(&random, 4, N_VOCAB, logits);
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
	static const struct sampler_bias foreign = {10, 1};
	static const struct sampler_bias odd[] = {{9, -INFINITY}, {1, INFINITY}, {1, NAN}};
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
		{{.typical_p = 1.01f}, "typical_p"},
		{{.typical_p = NAN}, "typical_p"},
		{{.frequency_penalty = 101}, "frequency_penalty"},
		{{.frequency_penalty = NAN}, "frequency_penalty"},
		{{.presence_penalty = -INFINITY}, "presence_penalty"},
		{{.dry = {.multiplier = -1}}, "dry_multiplier"},
		{{.dry = {.base = 0.9f}}, "dry_base"},
		{{.biases = &foreign, .n_biases = 1}, "logit_bias[0]"},
		{{.biases = odd, .n_biases = 2}, "logit_bias[1]"},
		{{.biases = odd + 2, .n_biases = 1}, "logit_bias[0]"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct sampler *s = NULL;
		struct err err = ERR_NULL;

		assert_int_equal(sampler_new(&rows[i].params, 10, N_CTX, NULL, &err, &s), -EINVAL);
		assert_null(s);
		assert_ptr_equal(strstr(err.text, rows[i].name), err.text);
	}
	struct sampler *s = NULL;
	assert_int_equal(sampler_new(&(struct sampler_params){.seed = 0}, 0, N_CTX, NULL, NULL, &s),
		-EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_greedy),
		CASE(test_not_finite),
		CASE(test_penalty),
		CASE(test_distributions),
		CASE(test_greedy_is_adjusted),
		CASE(test_mask),
		CASE(test_large_biases),
		CASE(test_ties),
		CASE(test_seeds),
		CASE(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
