/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/logprob.h"

#include "tests/case.h"
#include "tests/unit/sampler-slow.h"

enum { N_VOCAB = 500 };

/* Against the softmax in doubles and a full sort. */
static void test_like_slow(void **state)
{
	static float logits[N_VOCAB];
	static struct slow slow;

	(void)state;
	for (uint32_t seed = 0; seed < 50; seed++) {
		uint32_t random = seed, n_top = seed % (LOGPROB_MAX_TOP + 1);
		uint32_t token = slow_random(&random) % N_VOCAB;
		struct logprob_list list;

		slow_make_logits(&random, 20, N_VOCAB, logits);
		for (uint32_t i = 0; i < N_VOCAB && seed % 2; i++)
			logits[i] = i % 9 == 4 ? INFINITY : roundf(logits[i]); /* ties */
		slow_init(&slow, logits, N_VOCAB);
		slow_softmax(&slow, 1);
		logprob_find(logits, N_VOCAB, token, n_top, &list);
		assert_int_equal(list.own.id, token);
		if (slow.p[token] == 0)
			assert_true(list.own.logprob == -INFINITY);
		else
			assert_true(fabs((double)list.own.logprob - log(slow.p[token])) < 1e-5);
		assert_int_equal(list.n_top, n_top);
		for (uint32_t k = 0; k < n_top; k++) {
			uint32_t best = 0;

			for (uint32_t i = 0; i < N_VOCAB; i++)
				if (slow.p[i] > slow.p[best])
					best = i;
			assert_int_equal(list.top[k].id, best);
			assert_true(fabs((double)list.top[k].logprob - log(slow.p[best])) < 1e-5);
			slow.p[best] = -1;
		}
	}
}

static void test_few(void **state)
{
	const float two[] = {NAN, 1, -INFINITY, 1};
	struct logprob_list list;

	(void)state;
	logprob_find(two, 4, 1, LOGPROB_MAX_TOP, &list);
	assert_int_equal(list.n_top, 2);
	assert_int_equal(list.top[0].id, 1);
	assert_int_equal(list.top[1].id, 3);
	assert_true(fabsf(list.own.logprob + 0.69314718f) < 1e-6f);
	logprob_find(two, 4, 0, 1, &list);
	assert_true(list.own.logprob == -INFINITY);
	assert_int_equal(list.n_top, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_like_slow),
		CASE(test_few),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
