/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines that are gathered, made beforehand by several threads, and used as those of ever. */
#include "tests/vulkan/op-arena.h"

enum { N_UNITS = 64, UNIT_BYTES = 16, N_KINDS = 6 };

static uint64_t seed;

/* Copies N_UNITS of 16 bytes with workgroups of so many subgroups: each is a pipeline of its own.
 */
static void copy(struct op_arena *a, struct vk_command *c, uint64_t to, uint64_t from, uint32_t n)
{
	const struct op_pool_kernel kernel = {.id = KERNELS_MEMORY_COPY, .n_subgroups = n};
	const struct abi_memory push = {
		.src = op_arena_address(a, from), .dst = op_arena_address(a, to), .n = N_UNITS};
	struct err e = ERR_NULL;

	on_device_check(op_pool_dispatch(a->pool, c, &kernel, &push, n, 1, &e), &e, "dispatch");
}

static void test_gather(void **state)
{
	struct op_arena a;
	uint64_t from[N_KINDS], to[N_KINDS];

	(void)state;
	op_arena_init(&a, 1 << 16, seed);
	op_arena_reset(&a);
	for (uint32_t i = 0; i < N_KINDS; i++) {
		from[i] = op_arena_take_floats(&a, N_UNITS * UNIT_BYTES / 4);
		to[i] = op_arena_take(&a, N_UNITS * UNIT_BYTES, 0);
	}
	/* One is there already, one is asked for twice; and nothing is copied. */
	assert_int_equal(op_pool_count(a.pool), 0);
	struct vk_command *c = op_arena_begin(&a);
	copy(&a, c, to[0], from[0], 1);
	op_arena_expect(&a, to[0], N_UNITS * UNIT_BYTES);
	assert_int_equal(op_pool_count(a.pool), 1);
	op_pool_gather(a.pool);
	for (uint32_t i = 0; i < N_KINDS; i++)
		copy(&a, c, to[i], from[i], 1 + i);
	copy(&a, c, to[1], from[1], N_KINDS);
	op_pool_make(a.pool);
	assert_int_equal(op_pool_count(a.pool), N_KINDS);
	op_arena_run(&a);
	for (uint32_t i = 1; i < N_KINDS; i++)
		op_arena_expect(&a, to[i], N_UNITS * UNIT_BYTES);
	memcpy(a.before, a.map, a.n_bytes);
	memset(a.is_written + to[0], 0, N_UNITS * UNIT_BYTES);
	c = op_arena_begin(&a);
	for (uint32_t i = 1; i < N_KINDS; i++)
		copy(&a, c, to[i], from[i], 1 + i);
	op_arena_run(&a);
	for (uint32_t i = 0; i < N_KINDS; i++)
		assert_memory_equal(a.map + to[i], a.map + from[i], N_UNITS * UNIT_BYTES);
	assert_int_equal(op_pool_count(a.pool), N_KINDS);
	op_arena_fini(&a);
}

/* A workgroup that is too large is refused by the dispatch that wants it, each time. */
static void test_refused(void **state)
{
	struct op_arena a;
	struct err e = ERR_NULL;

	(void)state;
	op_arena_init(&a, 1 << 16, seed);
	const struct op_pool_kernel kernel = {
		.id = KERNELS_MEMORY_COPY, .n_subgroups = vk_device_get_info(a.d)->max_invocations};
	const struct abi_memory push = {.n = 0};
	struct vk_command *c = op_arena_begin(&a);
	op_pool_gather(a.pool);
	assert_int_equal(op_pool_dispatch(a.pool, c, &kernel, &push, 1, 1, &e), 0);
	op_pool_make(a.pool);
	for (int i = 0; i < 2; i++) {
		e = ERR_NULL;
		assert_int_equal(op_pool_dispatch(a.pool, c, &kernel, &push, 1, 1, &e), -EINVAL);
		assert_non_null(strstr(e.text, "MEMORY_COPY"));
	}
	op_arena_run(&a);
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_gather),
		CASE(test_refused),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
