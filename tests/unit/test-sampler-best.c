/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A token out of the best logits is the one that all of them give: two samplers of one seed, one of
 * which sees the best first and the rest only when it asks, write the same text.
 */
#include "tests/case.h"

#include <errno.h>
#include <math.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "tests/unit/sampler-slow.h"

enum { N_VOCAB = 700, N_STEPS = 60 };

static const float *sorted_logits;

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	if (sorted_logits[x] != sorted_logits[y])
		return sorted_logits[x] < sorted_logits[y] ? 1 : -1;
	return x < y ? -1 : 1;
}

/* As the device finds them. */
static void find_best(const float *logits, uint32_t n, struct abi_best *best)
{
	uint32_t ids[N_VOCAB], n_finite = 0;

	for (uint32_t i = 0; i < n; i++)
		if (isfinite(logits[i]))
			ids[n_finite++] = i;
	sorted_logits = logits;
	qsort(ids, n_finite, sizeof(*ids), compare);
	for (uint32_t i = 0; i < ABI_BEST_N; i++)
		best[i] = i < n_finite ? (struct abi_best){logits[ids[i]], ids[i]}
				       : (struct abi_best){0, ABI_BEST_NONE};
}

static struct sampler *make(const struct sampler_params *params, uint32_t n_vocab)
{
	struct err e = ERR_NULL;
	struct sampler *s = NULL;

	if (sampler_new(params, n_vocab, N_STEPS + 1, NULL, &e, &s))
		fail_msg("%s", e.text);
	return s;
}

/* Returns how many of the steps the best were enough for. */
static uint32_t write_both(
	const struct sampler_params *params, uint32_t n_vocab, uint32_t *random, float grain)
{
	struct sampler *all = make(params, n_vocab), *few = make(params, n_vocab);
	uint32_t history[N_STEPS], n_enough = 0;
	struct abi_best best[ABI_BEST_N];
	static float logits[N_VOCAB];

	for (uint32_t i = 0; i < N_STEPS; i++) {
		uint32_t expected = 0, found = 0;

		slow_make_logits(random, 8, n_vocab, logits);
		/* The same few tokens come up again and again; and with a grain many are equal. */
		for (uint32_t t = 0; t < n_vocab; t++) {
			logits[t] += t < 5 ? 4 : 0;
			if (grain > 0)
				logits[t] = roundf(logits[t] / grain) * grain;
			if (slow_random(random) % 50 == 0)
				logits[t] = t % 2 ? -INFINITY : NAN;
		}
		find_best(logits, n_vocab, best);
		int r = sampler_pick(all, logits, NULL, history, i, &expected);
		int r_few = sampler_pick_best(few, best, history, i, &found);
		n_enough += r_few != -EAGAIN;
		if (r_few == -EAGAIN)
			r_few = sampler_pick(few, logits, NULL, history, i, &found);
		assert_int_equal(r_few, r);
		if (r == 0 && found != expected)
			fail_msg("step %u: expected %u, found %u", i, expected, found);
		history[i] = r ? 0 : expected;
	}
	sampler_free(all);
	sampler_free(few);
	return n_enough;
}

static void test_same_text(void **state)
{
	static const struct sampler_bias bias = {3, 2};
	static const struct {
		struct sampler_params params;
		uint32_t n_enough; /* at least, of N_STEPS, without a grain */
		bool is_never;
	} rows[] = {
		{{.temperature = 0}, N_STEPS, false},
		{{.temperature = 0, .repeat_penalty = 1.3f, .presence_penalty = 1}, N_STEPS, false},
		{{.temperature = 0, .frequency_penalty = 100}, N_STEPS, false},
		{{.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f}, N_STEPS,
			false},
		{{.temperature = 1.5f, .top_k = 50, .typical_p = 0.7f}, N_STEPS, false},
		{{.temperature = 1, .top_k = 40, .repeat_penalty = 1.5f}, N_STEPS, false},
		/* As many as there are: one that is penalised leaves a place for an unknown one. */
		{{.temperature = 1, .top_k = ABI_BEST_N, .presence_penalty = 50}, 0, false},
		{{.temperature = 1, .top_k = 5, .dry = {.multiplier = 1, .base = 1.75f}}, N_STEPS,
			false},
		{{.temperature = 1, .top_p = 0.9f}, 0, true},
		{{.temperature = 1, .top_k = ABI_BEST_N + 1}, 0, true},
		{{.temperature = 0, .frequency_penalty = -1}, 0, true},
		{{.temperature = 0, .presence_penalty = -1}, 0, true},
		{{.temperature = 0, .repeat_penalty = 0.9f}, 0, true},
		{{.temperature = 0, .biases = &bias, .n_biases = 1}, 0, true},
	};
	static const uint32_t n_vocabs[] = {N_VOCAB, ABI_BEST_N + 1, ABI_BEST_N, 20};
	uint32_t random = 1;

	(void)state;
	for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct sampler_params params = rows[i].params;
		params.seed = i;
		uint32_t n = write_both(&params, N_VOCAB, &random, 0);
		if (n < rows[i].n_enough || (rows[i].is_never && n > 0))
			fail_msg("row %u: the best were enough %u times", i, n);
		for (uint32_t k = 0; k < ARRAY_SIZE(n_vocabs); k++) {
			params.seed = 100 + k;
			(void)write_both(&params, n_vocabs[k], &random, 0.5f);
		}
	}
}

/* Nothing is finite; every logit is the same. */
static void test_edges(void **state)
{
	const struct sampler_params params = {.temperature = 0};
	struct sampler *s = make(&params, N_VOCAB);
	struct abi_best best[ABI_BEST_N];
	static float logits[N_VOCAB];
	uint32_t token = 0;

	(void)state;
	find_best(logits, N_VOCAB, best);
	assert_int_equal(sampler_pick_best(s, best, NULL, 0, &token), -EAGAIN);
	for (uint32_t i = 0; i < N_VOCAB; i++)
		logits[i] = NAN;
	find_best(logits, N_VOCAB, best);
	assert_int_equal(sampler_pick_best(s, best, NULL, 0, &token), -ERANGE);
	sampler_free(s);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_same_text),
		CASE(test_edges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
