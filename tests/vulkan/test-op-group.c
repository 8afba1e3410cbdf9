/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairs sorted by expert: each pair is there once, groups are of one expert and cover all pairs in
 * order, and every slot of the rows is written, used or not. Choices are even, all of one expert,
 * or of few among many.
 */
#include <inttypes.h>

#include "tests/vulkan/op-arena.h"
#include "workerd/ops/group.h"

enum { MAX_M = 80 };

static uint64_t seed;

struct shape {
	uint32_t n_expert;
	uint32_t n_used;
	uint32_t m;
	uint32_t n_rows;
	uint32_t n_liked;   /* experts that rows begin their choice with */
	uint32_t wide_rows; /* 0: no wide groups are wanted */
};

/* n_used experts a row, no two the same. */
static void fill_choice(struct op_arena *a, const struct shape *s, struct abi_choice *choice)
{
	for (uint32_t i = 0; i < s->m; i++) {
		uint32_t first = op_arena_random(a, 0, s->n_liked - 1);
		for (uint32_t r = 0; r < s->n_used; r++)
			choice[i * s->n_used + r] =
				(struct abi_choice){.expert = (first + r) % s->n_expert};
	}
}

static void check_groups(const struct op_arena *a, const struct shape *s,
	const struct abi_choice *choice, const uint32_t *pairs, const struct abi_group *groups,
	uint32_t n_slots, uint32_t n_most)
{
	uint32_t n = s->m * s->n_used, n_found = 0, last = 0, n_before = 0;
	uint8_t *is_found = calloc(1, n);

	assert_non_null(is_found);
	for (uint32_t slot = 0; slot < n_slots; slot++) {
		const struct abi_group *g = &groups[slot];
		if (g->n == 0)
			continue;
		if (g->n > n_most || g->first != n_found || g->expert < last)
			fail_msg("seed %" PRIu64 ": slot %u: expert %u, [%u, %u)", a->seed, slot,
				g->expert, g->first, g->first + g->n);
		for (uint32_t i = g->first; i < g->first + g->n; i++) {
			assert_true(i < n && pairs[i] < n);
			assert_int_equal(choice[pairs[i]].expert, g->expert);
			assert_false(is_found[pairs[i]]++);
		}
		/* Only the last group of an expert is short. */
		assert_true(n_found == 0 || g->expert != last || n_before == n_most);
		last = g->expert;
		n_before = g->n;
		n_found += g->n;
	}
	assert_int_equal(n_found, n);
	free(is_found);
}

static void run_shape(struct op_arena *a, const struct shape *s)
{
	uint32_t n = s->m * s->n_used;
	uint32_t n_slots = op_group_count_slots(s->m, s->n_expert, s->n_used), n_wide = 0;
	struct err e = ERR_NULL;

	op_arena_reset(a);
	uint64_t choice = op_arena_take(a, sizeof(struct abi_choice) * n, 0);
	uint64_t pairs = op_arena_take(a, sizeof(uint32_t) * n, 0);
	uint64_t groups = op_arena_take(a, sizeof(struct abi_group) * n_slots, 0);
	if (s->wide_rows)
		n_wide = op_group_count_wide(s->m, s->n_expert, s->n_used, s->wide_rows);
	uint64_t wide = op_arena_take(a, sizeof(struct abi_group) * (n_wide + 1), 0);
	fill_choice(a, s, (struct abi_choice *)(a->map + choice));
	struct op_group_params p = {.choice = op_arena_address(a, choice),
		.pairs = op_arena_address(a, pairs),
		.groups = op_arena_address(a, groups),
		.m = op_arena_address(a, op_arena_take_u32(a, s->m)),
		.wide = s->wide_rows ? op_arena_address(a, wide) : 0,
		.wide_rows = s->wide_rows,
		.n_expert = s->n_expert,
		.n_used = s->n_used,
		.n_rows = s->n_rows};
	op_arena_expect(a, wide, sizeof(struct abi_group) * n_wide);
	op_arena_expect(a, pairs, sizeof(uint32_t) * n);
	op_arena_expect(a, groups, sizeof(struct abi_group) * n_slots);
	on_device_check(op_group_record(a->pool, op_arena_begin(a), &p, &e), &e, "record");
	op_arena_run(a);
	check_groups(a, s, (struct abi_choice *)(a->map + choice), (uint32_t *)(a->map + pairs),
		(struct abi_group *)(a->map + groups), n_slots, ABI_GROUP_ROWS);
	if (s->wide_rows)
		check_groups(a, s, (struct abi_choice *)(a->map + choice),
			(uint32_t *)(a->map + pairs), (struct abi_group *)(a->map + wide), n_wide,
			s->wide_rows);
}

static void test_shapes(void **state)
{
	static const uint32_t n_experts[] = {1, 2, 7, 8, 33, 64, 128, 512};
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 1 << 20, seed);
	for (uint32_t i = 0; i < 64; i++) {
		struct shape s = {.n_expert = n_experts[i % ARRAY_SIZE(n_experts)],
			.n_rows = i % 3 ? op_arena_random(&a, 1, MAX_M) : 1};
		uint32_t most =
			s.n_expert < ABI_MAX_EXPERTS_USED ? s.n_expert : ABI_MAX_EXPERTS_USED;
		s.m = op_arena_random(&a, 1, s.n_rows);
		s.n_used = i % 5 == 0 ? most : op_arena_random(&a, 1, most);
		s.wide_rows = i % 4 ? 8u << i % 4 : 0;
		s.n_liked = i % 7 == 0 ? 1 : op_arena_random(&a, 1, s.n_expert);
		run_shape(&a, &s);
	}
	op_arena_fini(&a);
}

/* The most that a step can have: loops of the software driver end before 65,536 rounds. */
static void test_most(void **state)
{
	struct shape s = {.n_expert = 64,
		.n_used = 32,
		.m = 8192,
		.n_rows = 8192,
		.n_liked = 64,
		.wide_rows = 64};
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 8 << 20, seed);
	run_shape(&a, &s);
	op_arena_fini(&a);
}

static void test_refused(void **state)
{
	struct op_group_params p = {.n_expert = 64, .n_used = 32, .n_rows = 8193};
	struct op_arena a;
	struct err e = ERR_NULL;

	(void)state;
	op_arena_init(&a, 1 << 16, seed);
	assert_int_equal(op_group_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	p = (struct op_group_params){
		.n_expert = 64, .n_used = 2, .n_rows = 1, .wide = 16, .wide_rows = 8};
	assert_int_equal(op_group_record(a.pool, a.command, &p, &e), -EINVAL);
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_shapes),
		CASE(test_most),
		CASE(test_refused),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
