/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/candidates.h"

#include "tests/case.h"
#include "tests/unit/sampler-slow.h"

enum { N_VOCAB = 300, N_SEEDS = 40, N_UNITS = 3001 };

static float logits[N_VOCAB];

static void filter(struct candidates *c, const struct sampler_params *p)
{
	if (p->top_k)
		candidates_take_best(c, logits, p->top_k < N_VOCAB ? p->top_k : N_VOCAB);
	else
		candidates_take_all(c, logits);
	if (p->typical_p > 0 && p->typical_p < 1)
		candidates_cut_typical(c, p->typical_p);
	if (p->top_p > 0 && p->top_p < 1)
		candidates_cut_top_p(c, p->top_p);
	if (p->min_p > 0)
		candidates_cut_min_p(c, p->min_p);
}

/*
 * A token of probability p is drawn for an interval of units that is p long: of N evenly spaced
 * ones, p N and at most one more or less fall into it.
 */
static void expect_draws(struct candidates *c, const struct slow *slow, float temperature)
{
	uint32_t n_drawn[N_VOCAB] = {0};

	for (uint32_t i = 0; i < N_UNITS; i++)
		n_drawn[candidates_draw(c, temperature, (double)i / N_UNITS)]++;
	for (uint32_t i = 0; i < N_VOCAB; i++) {
		if (fabs(n_drawn[i] - slow->p[i] * N_UNITS) > 1.01)
			fail_msg("token %u: %u draws, expected %g", i, n_drawn[i],
				slow->p[i] * N_UNITS);
		if (slow->p[i] == 0)
			assert_int_equal(n_drawn[i], 0);
	}
}

static void expect_like_slow(
	struct candidates *c, const struct sampler_params *p, unsigned row, unsigned seed)
{
	static struct slow slow;
	bool is_left[N_VOCAB] = {false};

	slow_init(&slow, logits, N_VOCAB);
	slow_filter(&slow, p);
	filter(c, p);
	for (uint32_t i = 0; i < c->n; i++) {
		assert_false(is_left[c->list[i].id]);
		is_left[c->list[i].id] = true;
	}
	for (uint32_t i = 0; i < N_VOCAB; i++)
		if (is_left[i] != !isinf(slow.logits[i]))
			fail_msg("row %u, seed %u: token %u is%s left, of %u", row, seed, i,
				is_left[i] ? "" : " not", c->n);
	slow_softmax(&slow, (double)p->temperature);
	expect_draws(c, &slow, p->temperature);
}

static const struct sampler_params rows[] = {
	{.temperature = 1},
	{.temperature = 0.5f, .top_k = 1},
	{.temperature = 1.5f, .top_k = 10},
	{.temperature = 1, .top_k = 5000},
	{.temperature = 1, .top_p = 0.53f},
	{.temperature = 0.8f, .top_p = 0.957f},
	{.temperature = 2, .top_p = 0.9999f},
	{.temperature = 1, .min_p = 0.1f},
	{.temperature = 3, .min_p = 1},
	{.temperature = 1, .typical_p = 0.21f},
	{.temperature = 0.6f, .typical_p = 0.93f},
	{.temperature = 1, .typical_p = 1e-6f},
	{.temperature = 1, .typical_p = 0.47f, .top_p = 0.71f},
	{.temperature = 1.2f, .top_k = 50, .typical_p = 0.83f, .min_p = 0.05f},
	{.temperature = 0.7f, .top_k = 40, .top_p = 0.91f, .min_p = 0.05f},
	{.temperature = 1.3f, .top_k = 200, .typical_p = 0.97f, .top_p = 0.99f, .min_p = 0.001f},
};

static void test_filters(void **state)
{
	struct candidates c = {0};

	(void)state;
	assert_int_equal(candidates_init(&c, N_VOCAB), 0);
	for (unsigned seed = 0; seed < N_SEEDS; seed++) {
		uint32_t random = seed;

		slow_make_logits(&random, seed % 3 ? 9 : 2, N_VOCAB, logits);
		expect_like_slow(&c, &rows[seed % ARRAY_SIZE(rows)], seed % ARRAY_SIZE(rows), seed);
		for (unsigned i = 0; i < ARRAY_SIZE(rows) && seed < 3; i++)
			expect_like_slow(&c, &rows[i], i, seed);
	}
	candidates_fini(&c);
}

/* Many equal logits, and some that are no numbers. */
static void test_ties(void **state)
{
	static const float odd[] = {NAN, INFINITY, -INFINITY};
	struct candidates c = {0};

	(void)state;
	assert_int_equal(candidates_init(&c, N_VOCAB), 0);
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		uint32_t random = i;

		slow_make_logits(&random, 6, N_VOCAB, logits);
		for (uint32_t k = 0; k < N_VOCAB; k++)
			logits[k] = k % 17 == 3 ? odd[k % 3] : roundf(logits[k]);
		expect_like_slow(&c, &rows[i], i, i);
	}
	candidates_fini(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_filters),
		CASE(test_ties),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
