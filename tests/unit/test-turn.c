/* SPDX-License-Identifier: Apache-2.0 */
/* Random claims against what is promised of every division, one promise at a time. */
#include "workerd/turn.h"

#include <string.h>

#include "tests/case.h"

enum { MAX_CLAIMS = 12, N_ROUNDS = 100000 };

static uint32_t draw(uint32_t n)
{
	return (uint32_t)random() % n;
}

static int64_t rank_of(const struct turn_claim *c)
{
	return c->priority + (int64_t)c->n_waited / TURN_AGE_STEPS;
}

static void draw_claims(struct turn_claim *claims, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t kind = draw(4);

		claims[i] = (struct turn_claim){
			.n_due = kind == 0   ? 0
				 : kind == 1 ? 1
					     : 1 + draw(100),
			.priority = (int32_t)draw(3) - 1,
			.n_waited = draw(2) ? 0 : draw(12),
		};
	}
}

static void keeps_its_promises(void **state)
{
	struct turn_claim claims[MAX_CLAIMS];
	uint32_t n_take[MAX_CLAIMS];

	(void)state;
	srandom(3);
	for (unsigned round = 0; round < N_ROUNDS; round++) {
		uint32_t n = 1 + draw(MAX_CLAIMS);
		uint32_t n_rows = n + draw(120);
		uint32_t n_shared = 1 + draw(n_rows);
		uint32_t n_decoding = 0, n_all = 0, n_unmet = 0, n_limit = n_rows;

		draw_claims(claims, n);
		turn_share(claims, n, n_rows, n_shared, draw(n), n_take);
		for (uint32_t i = 0; i < n; i++) {
			assert_true(n_take[i] <= claims[i].n_due);
			n_all += n_take[i];
			n_decoding += claims[i].n_due == 1;
			n_unmet += n_take[i] < claims[i].n_due;
			/* Who decodes does, whatever the ranks. */
			assert_true(claims[i].n_due != 1 || n_take[i] == 1);
		}
		if (n_decoding)
			n_limit = n_shared > n_decoding ? n_shared : n_decoding + 1;
		if (n_limit > n_rows)
			n_limit = n_rows;
		/* Nothing is left over while somebody wants it. */
		assert_true(n_all <= n_limit);
		assert_true(!n_unmet || n_all == n_limit);
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < n; k++) {
				if (n_take[i] == claims[i].n_due || claims[k].n_due <= 1)
					continue;
				/* Nobody has rows that one of a higher rank wants; of one
				 * rank nobody has more than one row more. */
				if (rank_of(&claims[i]) > rank_of(&claims[k]))
					assert_int_equal(n_take[k], 0);
				if (rank_of(&claims[i]) == rank_of(&claims[k]))
					assert_true(n_take[k] <= n_take[i] + 1);
			}
	}
}

/* Prompts of the highest priority without an end: the lowest has its share in time. */
static void starves_nobody(void **state)
{
	enum { N = 5, N_ROWS = 8, N_STEPS = 20000 };
	const unsigned n_bound = TURN_AGE_STEPS * (2 * TURN_MAX_PRIORITY + 1) + N;
	struct turn_claim claims[N];
	uint32_t n_take[N];
	unsigned n_longest = 0, n_shares = 0;

	(void)state;
	for (uint32_t i = 0; i < N; i++)
		claims[i] = (struct turn_claim){
			.n_due = 1000,
			.priority = i ? TURN_MAX_PRIORITY : -TURN_MAX_PRIORITY,
		};
	for (uint32_t step = 0; step < N_STEPS; step++) {
		turn_share(claims, N, N_ROWS, N_ROWS, step % N, n_take);
		for (uint32_t i = 0; i < N; i++)
			claims[i].n_waited = n_take[i] ? 0 : claims[i].n_waited + 1;
		n_shares += n_take[0] > 0;
		if (claims[0].n_waited > n_longest)
			n_longest = claims[0].n_waited;
	}
	print_message("# %u shares, %u steps at most without\n", n_shares, n_longest);
	assert_in_range(n_longest, TURN_AGE_STEPS * 2 * TURN_MAX_PRIORITY - 1, n_bound);
	assert_true(n_shares >= N_STEPS / n_bound - 1);
}

/* More prompts than rows: each has its turn. */
static void takes_turns(void **state)
{
	enum { N = 7 };
	struct turn_claim claims[N];
	uint32_t n_take[N], n_got[N] = {0};

	(void)state;
	for (uint32_t i = 0; i < N; i++)
		claims[i] = (struct turn_claim){.n_due = 50};
	claims[6].n_due = 1;
	for (uint32_t step = 0; step < 60; step++) {
		/* A step of two rows beside a stream: one is left. */
		turn_share(claims, N, N, 2, step % N, n_take);
		for (uint32_t i = 0; i < N; i++) {
			n_got[i] += n_take[i];
			claims[i].n_waited = n_take[i] ? 0 : claims[i].n_waited + 1;
		}
	}
	assert_int_equal(n_got[6], 60);
	for (uint32_t i = 0; i < 6; i++)
		assert_in_range(n_got[i], 8, 12);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(keeps_its_promises),
		CASE(starves_nobody),
		CASE(takes_turns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
