/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/dry.h"

#include <errno.h>

#include "proto/util/err.h"
#include "tests/case.h"
#include "tests/unit/sampler-slow.h"

enum { N_VOCAB = 12, N_CTX = 120, N_SEEDS = 400 };

static const char *const texts[N_VOCAB] = {
	"a", "b", "c", "ab", "bc\n", "\n", ":", "x:y", "", "\n\nU", "ser", "stop"};
static const struct slow_text slow_texts = {texts};

static const struct dry_text text = {.userdata = (void *)&slow_texts, .get = slow_get_text};

static struct dry *make(const struct dry_params *p, const struct dry_text *t)
{
	struct dry *d = NULL;
	struct err e = ERR_NULL;
	int r = dry_new(p, N_VOCAB, N_CTX, t, &e, &d);

	if (r)
		fail_msg("%d %s", r, e.text);
	return d;
}

static void expect(const struct dry_params *p, struct dry *d, const uint32_t *history, uint64_t n)
{
	float logits[N_VOCAB];
	struct slow slow;

	for (uint32_t i = 0; i < N_VOCAB; i++)
		logits[i] = (float)i;
	slow_init(&slow, logits, N_VOCAB);
	slow_dry(&slow, p, &slow_texts, history, n);
	dry_apply(d, history, n, logits);
	for (uint32_t i = 0; i < N_VOCAB; i++)
		if (fabs((double)logits[i] - slow.logits[i]) > 1e-5 * fabs(slow.logits[i]) + 1e-5)
			fail_msg("%u tokens, logit %u: expected %g, found %g", (unsigned)n, i,
				slow.logits[i], (double)logits[i]);
}

/* Histories of a few tokens repeat themselves all the time. */
static void test_random(void **state)
{
	static const struct dry_breaker breakers[] = {
		{"\n", 1}, {":", 1}, {"\n\nUser", 6}, {"bca", 3}};
	static const uint32_t alphabets[] = {2, 3, 4, N_VOCAB};

	(void)state;
	for (uint32_t seed = 0; seed < N_SEEDS; seed++) {
		uint32_t random = seed;
		struct dry_params p = {
			.multiplier = 0.25f + slow_unit(&random),
			.base = 1 + slow_unit(&random),
			.allowed_length = 1 + seed % 4,
			.last_n = seed % 3 ? 0 : 20 + seed % 50,
			.breakers = breakers + seed % 3,
			.n_breakers = seed % 7 ? 1 + seed % 2 : 0,
			.has_breakers = true,
		};
		uint32_t history[N_CTX], n_letters = alphabets[seed % 4];
		struct dry *growing = make(&p, &text);

		for (uint32_t n = 0; n < N_CTX; n++) {
			history[n] = slow_random(&random) % n_letters;
			/* A stretch again, so that there are long repetitions too. */
			if (n > 40 && n % 40 > 12)
				history[n] = history[n - 23];
			expect(&p, growing, history, n + 1);
		}
		struct dry *fresh = make(&p, &text);
		expect(&p, fresh, history, N_CTX);
		/* Other tokens than before. */
		expect(&p, fresh, history + 5, 30);
		expect(&p, fresh, history, 0);
		dry_free(fresh);
		dry_free(growing);
	}
}

/* By hand: "a b c a b": c would prolong a repetition of two tokens. */
static void test_by_hand(void **state)
{
	static const uint32_t history[] = {0, 1, 2, 0, 1};
	struct dry_params p = {.multiplier = 0.5f};
	float logits[N_VOCAB] = {0};
	struct dry *d = make(&p, &text);

	(void)state;
	dry_apply(d, history, 5, logits);
	for (uint32_t i = 0; i < N_VOCAB; i++)
		assert_true(logits[i] == (i == 2 ? -0.5f : 0));
	dry_free(d);
	/* The default base is 1.75 and the default length 2: 0.5 * 1.75 ^ (3 - 2). */
	static const uint32_t longer[] = {3, 0, 1, 2, 3, 0, 1};
	logits[2] = 0;
	d = make(&p, &text);
	dry_apply(d, longer, 7, logits);
	assert_true(fabsf(logits[2] + 0.875f) < 1e-6f);
	dry_free(d);
	/* The default breakers; without the tokens' texts there are none. */
	static const uint32_t broken[] = {0, 1, 6, 0, 1};
	float flat[N_VOCAB] = {0};
	d = make(&p, &text);
	dry_apply(d, broken, 5, flat);
	assert_true(flat[6] == 0);
	dry_free(d);
	d = make(&p, NULL);
	dry_apply(d, broken, 5, flat);
	assert_true(flat[6] == -0.5f);
	dry_free(d);
	/* Tokens outside the vocabulary are passed over. */
	static const uint32_t foreign[] = {N_VOCAB, 900, 0, N_VOCAB, 900, 0, N_VOCAB, 900};
	d = make(&p, NULL);
	dry_apply(d, foreign, 8, flat);
	assert_true(flat[0] < 0);
	dry_free(d);
}

/* However long the repetition: a number. */
static void test_stays_finite(void **state)
{
	uint32_t history[N_CTX] = {0};
	float logits[N_VOCAB] = {3};
	struct dry_params p = {.multiplier = 3e38f, .base = 1e30f};
	struct dry *d = make(&p, &text);

	(void)state;
	dry_apply(d, history, N_CTX, logits);
	assert_true(isfinite(logits[0]) && logits[0] < -1e29f);
	assert_true(logits[1] == 0);
	dry_free(d);
}

/* What repeats itself most: comparing every pair of places would take hours. */
static void test_ends(void **state)
{
	enum { N = 1 << 20 };
	uint32_t *history = calloc(N, sizeof(*history));
	float logits[N_VOCAB] = {0};
	const struct dry_params p = {.multiplier = 1, .base = 1, .allowed_length = N - 1};
	struct dry *d = NULL;
	struct err e = ERR_NULL;

	(void)state;
	assert_non_null(history);
	assert_int_equal(dry_new(&p, N_VOCAB, N, &text, &e, &d), 0);
	dry_apply(d, history, N, logits);
	assert_true(logits[0] == -1); /* N - 1 tokens repeat, and no more */
	dry_free(d);
	free(history);
}

static void test_refusals(void **state)
{
	static const struct {
		struct dry_params params;
		const char *name;
	} rows[] = {
		{{.multiplier = -1}, "dry_multiplier"},
		{{.multiplier = NAN}, "dry_multiplier"},
		{{.multiplier = INFINITY}, "dry_multiplier"},
		{{.base = 0.5f}, "dry_base"},
		{{.base = NAN}, "dry_base"},
		{{.base = INFINITY}, "dry_base"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct dry *d = NULL;
		struct err e = ERR_NULL;

		assert_int_equal(dry_new(&rows[i].params, 10, 10, NULL, &e, &d), -EINVAL);
		assert_null(d);
		assert_ptr_equal(strstr(e.text, rows[i].name), e.text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_random),
		CASE(test_by_hand),
		CASE(test_stays_finite),
		CASE(test_ends),
		CASE(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
