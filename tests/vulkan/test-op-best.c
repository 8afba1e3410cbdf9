/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The best logits of a row against a sort of all of them: fewer than are asked for, many that are
 * equal, both zeros, what is no number, the largest numbers; rows that are not there are not
 * written.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tests/vulkan/op-arena.h"
#include "workerd/ops/best.h"

enum { MAX_N = 40000, MAX_M = 5 };

static uint64_t seed;

static int compare_best(const void *a, const void *b)
{
	const struct abi_best *x = a, *y = b;

	if (x->logit != y->logit)
		return x->logit < y->logit ? 1 : -1;
	return x->index < y->index ? -1 : 1;
}

/* Of a row by sorting it; the rest is none. */
static void find_best(const float *logits, uint32_t n, struct abi_best *all)
{
	uint32_t n_found = 0;

	for (uint32_t i = 0; i < n; i++)
		if (isfinite(logits[i]))
			all[n_found++] = (struct abi_best){.logit = logits[i], .index = i};
	qsort(all, n_found, sizeof(*all), compare_best);
	for (; n_found < ABI_BEST_N; n_found++)
		all[n_found] = (struct abi_best){.index = ABI_BEST_NONE};
}

enum fill { ANY, FEW_VALUES, ONE_VALUE, RISING, SPECIAL, NONE, N_FILLS };

static float fill_one(struct op_arena *a, enum fill fill, uint32_t i)
{
	static const float special[] = {
		0.0f, -0.0f, NAN, INFINITY, -INFINITY, 3.4e38f, -3.4e38f, 1e-40f, -1e-40f, 1.0f};

	switch (fill) {
	case FEW_VALUES: return (float)op_arena_random(a, 0, 3) - 1.0f;
	case ONE_VALUE: return -7.5f;
	case RISING: return (float)i - 100.0f;
	case SPECIAL: return special[op_arena_random(a, 0, ARRAY_SIZE(special) - 1)];
	case NONE: return i % 2 ? NAN : -INFINITY;
	default: return 20.0f * op_arena_random_float(a);
	}
}

static void run(struct op_arena *a, uint32_t n, uint32_t m, uint32_t n_rows, enum fill fill)
{
	uint64_t n_bytes = sizeof(struct abi_best) * ABI_BEST_N * m;
	static struct abi_best expected[MAX_N + ABI_BEST_N];
	struct err e = ERR_NULL;

	op_arena_reset(a);
	uint64_t logits = op_arena_take_floats(a, (uint64_t)m * n);
	uint64_t parts = op_arena_take(a, OP_BEST_PARTS_BYTES * m, 0);
	uint64_t y = op_arena_take(a, n_bytes, 0);
	bool has_asked = op_arena_random(a, 0, 3) > 0;
	uint64_t asked = op_arena_take(a, sizeof(uint32_t) * m, 0);
	bool has_picked = op_arena_random(a, 0, 3) > 0;
	uint64_t picked = op_arena_take(a, sizeof(uint32_t) * m, 0);
	for (uint32_t i = 0; i < m * n; i++)
		op_arena_floats(a, logits)[i] = fill_one(a, fill, i);
	uint32_t *n_asked = (uint32_t *)(a->map + asked);
	for (uint32_t i = 0; i < m; i++)
		n_asked[i] = op_arena_random(a, 0, 1) ? 1 : ABI_BEST_N;
	const struct op_best_params p = {.logits = op_arena_address(a, logits),
		.parts = op_arena_address(a, parts),
		.y = op_arena_address(a, y),
		.picked = has_picked ? op_arena_address(a, picked) : 0,
		.asked = has_asked ? op_arena_address(a, asked) : 0,
		.m = op_arena_address(a, op_arena_take_u32(a, m)),
		.n = n,
		.n_rows = n_rows};
	op_arena_expect(a, parts, n_bytes * op_best_count_parts(n));
	op_arena_expect(a, y, n_bytes);
	if (has_picked)
		op_arena_expect(a, picked, sizeof(uint32_t) * m);
	on_device_check(op_best_record(a->pool, op_arena_begin(a), &p, &e), &e, "record");
	op_arena_run(a);
	for (uint32_t i = 0; i < m; i++) {
		const struct abi_best *found =
			(const struct abi_best *)(a->map + y) + (uint64_t)i * ABI_BEST_N;
		find_best(op_arena_floats(a, logits) + (uint64_t)i * n, n, expected);
		for (uint32_t k = 1; has_asked && n_asked[i] == 1 && k < ABI_BEST_N; k++)
			expected[k] = (struct abi_best){.index = ABI_BEST_NONE};
		/* A token that there is, whatever the logits. */
		uint32_t best = expected[0].index == ABI_BEST_NONE ? 0 : expected[0].index;
		if (has_picked && ((const uint32_t *)(a->map + picked))[i] != best)
			fail_msg("seed %" PRIu64 ", n %u, fill %d, row %u: expected %u, picked %u",
				a->seed, n, (int)fill, i, best,
				((const uint32_t *)(a->map + picked))[i]);
		for (uint32_t k = 0; k < ABI_BEST_N; k++)
			if (found[k].index != expected[k].index ||
				(found[k].index != ABI_BEST_NONE &&
					found[k].logit != expected[k].logit))
				fail_msg("seed %" PRIu64 ", n %u, fill %d, row %u, place %u: "
					 "expected %u (%g), found %u (%g)",
					a->seed, n, (int)fill, i, k, expected[k].index,
					(double)expected[k].logit, found[k].index,
					(double)found[k].logit);
	}
}

static void test_against_a_sort(void **state)
{
	static const uint32_t ns[] = {
		1, 2, 31, 32, 33, 63, 64, 65, 1000, 2048, 2049, 4096, 32 * 64, 32 * 65 + 1, MAX_N};
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 8 << 20, seed);
	for (uint32_t i = 0; i < ARRAY_SIZE(ns); i++)
		for (int fill = 0; fill < N_FILLS; fill++) {
			uint32_t m = op_arena_random(&a, 1, MAX_M);
			run(&a, ns[i], m, op_arena_random(&a, m, MAX_M), (enum fill)fill);
		}
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_against_a_sort),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
