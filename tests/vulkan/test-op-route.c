/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The routing kernel against the scalar reference: any number of experts, equal logits, logits far
 * apart and of both signs; and that a row's choice is the same bits whatever rows are beside it.
 */
#include <inttypes.h>

#include "tests/ref/ref-ops.h"
#include "tests/vulkan/op-arena.h"
#include "workerd/ops/route.h"

enum { MAX_M = 65 };

static uint64_t seed;

struct shape {
	uint32_t n_expert;
	uint32_t n_used;
	uint32_t m;
	uint32_t n_rows;
	float span;       /* of the logits */
	uint32_t n_equal; /* values that a logit can have; 0: any */
};

static void fill_logits(struct op_arena *a, const struct shape *s, float *logits)
{
	for (uint32_t i = 0; i < s->m * s->n_expert; i++) {
		float v = op_arena_random_float(a);
		if (s->n_equal)
			v = (float)op_arena_random(a, 0, s->n_equal - 1) - 1.0f;
		/* Both zeroes are one. */
		logits[i] = v == 0.0f && i % 2 ? -0.0f : v * s->span;
	}
}

static void check_rows(const struct op_arena *a, const struct shape *s, const float *logits,
	const struct abi_choice *choice)
{
	uint32_t ids[ABI_MAX_EXPERTS_USED];
	float weights[ABI_MAX_EXPERTS_USED];

	for (uint32_t i = 0; i < s->m; i++) {
		float sum = 0.0f;
		ref_ops_route(logits + i * s->n_expert, s->n_expert, s->n_used, ids, weights);
		for (uint32_t r = 0; r < s->n_used; r++) {
			const struct abi_choice *c = &choice[i * s->n_used + r];
			if (c->expert != ids[r])
				fail_msg("seed %" PRIu64 ": row %u, rank %u: expected expert %u, "
					 "found %u",
					a->seed, i, r, ids[r], c->expert);
			/* exp of a difference d may be off by (3 + 2 |d|) 2^-24. */
			op_arena_check_near(
				a, c->weight, weights[r], 4e-5f * weights[r] + 1e-30f, "weight", r);
			sum += c->weight;
		}
		op_arena_check_near(a, sum, 1.0f, 4e-6f, "sum of row", i);
	}
}

static void run_shape(struct op_arena *a, const struct shape *s)
{
	uint64_t n_choice_bytes = sizeof(struct abi_choice) * s->m * s->n_used;
	struct err e = ERR_NULL;

	op_arena_reset(a);
	uint64_t logits = op_arena_take_floats(a, (uint64_t)s->m * s->n_expert);
	uint64_t choice = op_arena_take(a, n_choice_bytes, 0);
	fill_logits(a, s, op_arena_floats(a, logits));
	struct op_route_params p = {.logits = op_arena_address(a, logits),
		.choice = op_arena_address(a, choice),
		.m = op_arena_address(a, op_arena_take_u32(a, s->m)),
		.n_expert = s->n_expert,
		.n_used = s->n_used,
		.n_rows = s->n_rows};
	op_arena_expect(a, choice, n_choice_bytes);
	on_device_check(op_route_record(a->pool, op_arena_begin(a), &p, &e), &e, "record");
	op_arena_run(a);
	check_rows(a, s, op_arena_floats(a, logits), (struct abi_choice *)(a->map + choice));
}

static void test_shapes(void **state)
{
	static const uint32_t n_experts[] = {1, 2, 7, 8, 9, 31, 64, 65, 128, 160, 511, 512};
	static const float spans[] = {1.0f, 0.01f, 20.0f, 80.0f};
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 1 << 20, seed);
	for (uint32_t i = 0; i < 96; i++) {
		struct shape s = {.n_expert = n_experts[i % ARRAY_SIZE(n_experts)],
			.n_rows = op_arena_random(&a, 1, MAX_M),
			.span = spans[i / 12 % ARRAY_SIZE(spans)],
			.n_equal = i / 48 ? op_arena_random(&a, 1, 5) : 0};
		uint32_t most =
			s.n_expert < ABI_MAX_EXPERTS_USED ? s.n_expert : ABI_MAX_EXPERTS_USED;
		s.m = op_arena_random(&a, 1, s.n_rows);
		s.n_used = i % 5 == 0 ? most : op_arena_random(&a, 1, most);
		run_shape(&a, &s);
	}
	op_arena_fini(&a);
}

/* Row 0 among m rows, and the last of 65 alone. */
static void test_bits_do_not_depend_on_rows(void **state)
{
	static const uint32_t ms[] = {1, 2, 15, 16, 17, 64, 65};
	enum { N_EXPERT = 60, N_USED = 9 };
	struct abi_choice first[N_USED], last[N_USED];
	struct err e = ERR_NULL;
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 1 << 20, seed);
	uint64_t logits = op_arena_take_floats(&a, MAX_M * N_EXPERT);
	uint64_t choice = op_arena_take(&a, sizeof(first) * MAX_M, 0);
	uint64_t m = op_arena_take_u32(&a, 0);
	struct op_route_params p = {.logits = op_arena_address(&a, logits),
		.choice = op_arena_address(&a, choice),
		.m = op_arena_address(&a, m),
		.n_expert = N_EXPERT,
		.n_used = N_USED};
	for (uint32_t i = 0; i <= ARRAY_SIZE(ms); i++) {
		p.n_rows = i < ARRAY_SIZE(ms) ? ms[i] : 1;
		memcpy(a.map + m, &p.n_rows, sizeof(p.n_rows));
		if (i == ARRAY_SIZE(ms)) {
			memcpy(last, a.map + choice + sizeof(last) * (MAX_M - 1), sizeof(last));
			memcpy(op_arena_floats(&a, logits),
				op_arena_floats(&a, logits) + (MAX_M - 1) * N_EXPERT,
				sizeof(float) * N_EXPERT);
		}
		op_arena_expect(&a, choice, sizeof(first) * p.n_rows);
		on_device_check(op_route_record(a.pool, op_arena_begin(&a), &p, &e), &e, "record");
		op_arena_run(&a);
		if (i == 0)
			memcpy(first, a.map + choice, sizeof(first));
		assert_memory_equal(
			a.map + choice, i < ARRAY_SIZE(ms) ? first : last, sizeof(first));
	}
	op_arena_fini(&a);
}

/* Logits that are no numbers choose something, and never what is no expert. */
static void test_not_a_number(void **state)
{
	static const uint32_t bits[] = {0x7fc00000, 0xffffffff, 0x7fffffff, 0xffc00000, 0x7f800000};
	enum { N_EXPERT = 40, N_USED = 32 };
	struct err e = ERR_NULL;
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 1 << 16, seed);
	for (uint32_t i = 0; i < ARRAY_SIZE(bits); i++) {
		op_arena_reset(&a);
		uint64_t logits = op_arena_take_floats(&a, N_EXPERT);
		uint64_t choice = op_arena_take(&a, sizeof(struct abi_choice) * N_USED, 0);
		struct op_route_params p = {.logits = op_arena_address(&a, logits),
			.choice = op_arena_address(&a, choice),
			.m = op_arena_address(&a, op_arena_take_u32(&a, 1)),
			.n_expert = N_EXPERT,
			.n_used = N_USED,
			.n_rows = 1};
		for (uint32_t j = 0; j < N_EXPERT; j++)
			if (i % 2 || op_arena_random(&a, 0, 1))
				memcpy(a.map + logits + 4 * j, &bits[i], sizeof(bits[i]));
		op_arena_expect(&a, choice, sizeof(struct abi_choice) * N_USED);
		on_device_check(op_route_record(a.pool, op_arena_begin(&a), &p, &e), &e, "record");
		op_arena_run(&a);
		for (uint32_t r = 0; r < N_USED; r++)
			assert_true(((struct abi_choice *)(a.map + choice))[r].expert < N_EXPERT);
	}
	op_arena_fini(&a);
}

static void test_refused(void **state)
{
	struct op_arena a;
	struct err e = ERR_NULL;
	struct op_route_params p = {.n_expert = 8, .n_used = 9, .n_rows = 1};

	(void)state;
	op_arena_init(&a, 1 << 16, seed);
	assert_int_equal(op_route_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	p.n_used = 0;
	assert_int_equal(op_route_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	p = (struct op_route_params){.n_expert = ABI_MAX_EXPERTS + 1, .n_used = 1, .n_rows = 1};
	assert_int_equal(op_route_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	p = (struct op_route_params){.n_expert = 64, .n_used = 33, .n_rows = 1};
	assert_int_equal(op_route_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	op_arena_fini(&a);
}

/* Logits of any bits: whoever reads the choice reads an expert's matrices, so there is one. */
static void test_any_bits(void **state)
{
	enum { N_EXPERT = 67, N_USED = 32 };
	struct err e = ERR_NULL;
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 1 << 20, seed);
	uint64_t logits = op_arena_take_floats(&a, MAX_M * N_EXPERT);
	uint64_t choice = op_arena_take(&a, sizeof(struct abi_choice) * MAX_M * N_USED, 0);
	uint32_t *bits = (uint32_t *)(a.map + logits);
	for (uint32_t i = 0; i < MAX_M * N_EXPERT; i++)
		bits[i] = i % 3 ? op_arena_random(&a, 0, UINT32_MAX) : UINT32_MAX;
	struct op_route_params p = {.logits = op_arena_address(&a, logits),
		.choice = op_arena_address(&a, choice),
		.m = op_arena_address(&a, op_arena_take_u32(&a, MAX_M)),
		.n_expert = N_EXPERT,
		.n_used = N_USED,
		.n_rows = MAX_M};
	op_arena_expect(&a, choice, sizeof(struct abi_choice) * MAX_M * N_USED);
	on_device_check(op_route_record(a.pool, op_arena_begin(&a), &p, &e), &e, "record");
	op_arena_run(&a);
	const struct abi_choice *found = (const struct abi_choice *)(a.map + choice);
	for (uint32_t i = 0; i < MAX_M; i++) {
		bool is_taken[N_EXPERT] = {false};
		for (uint32_t r = 0; r < N_USED; r++) {
			uint32_t id = found[i * N_USED + r].expert;
			assert_true(id < N_EXPERT && !is_taken[id]);
			is_taken[id] = true;
		}
	}
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_shapes),
		CASE(test_bits_do_not_depend_on_rows),
		CASE(test_not_a_number),
		CASE(test_any_bits),
		CASE(test_refused),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
