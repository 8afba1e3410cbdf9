/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ceilings of a profile: the kernel of matrices does all of the multiplications that it is
 * counted for, and what a device has is measured, what it has not is not.
 */
#include "tests/vulkan/op-arena.h"
#include "workerd/ceiling.h"

enum { N_SUBGROUPS = 4, MAX_SIDE = 32, MAX_NUMBERS = MAX_SIDE * MAX_SIDE };

static uint64_t seed;

/* As matrix-peak.comp says. */
static float number(uint32_t matrix, uint32_t at)
{
	uint32_t v = (matrix * 8192 + at) * ABI_MATRIX_PEAK_FACTOR;

	return (float)((int32_t)(v >> 22) - 512) / 512.0f;
}

/* Of all numbers of A_i B_j: column sums of A by row sums of B. */
static double sum_products(const struct vk_device_matrix *shape, uint32_t i, uint32_t j)
{
	double sum = 0;

	for (uint32_t k = 0; k < shape->k; k++) {
		double a = 0, b = 0;

		for (uint32_t r = 0; r < shape->m; r++)
			a += (double)number(i, r * shape->k + k);
		for (uint32_t c = 0; c < shape->n; c++)
			b += (double)number(ABI_MATRIX_PEAK_SIDE + j, c * shape->k + k);
		sum += a * b;
	}
	return sum;
}

static void run_peak(struct op_arena *a, const struct vk_device_matrix *shape, uint32_t n_groups,
	uint32_t n_rounds)
{
	const struct op_pool_kernel kernel = {.id = KERNELS_MATRIX_PEAK_F16,
		.n_subgroups = N_SUBGROUPS,
		.n_spec = 3,
		.spec = {shape->m, shape->n, shape->k}};
	uint32_t n_words = n_groups * N_SUBGROUPS;
	double expected = 0;
	struct err e = ERR_NULL;

	op_arena_reset(a);
	uint64_t y = op_arena_take(a, 4ull * n_words, 0);
	struct abi_matrix_peak push = {.y = op_arena_address(a, y), .n_rounds = n_rounds};
	for (uint32_t i = 0; i < ABI_MATRIX_PEAK_SIDE; i++)
		for (uint32_t j = 0; j < ABI_MATRIX_PEAK_SIDE; j++)
			expected += n_rounds * sum_products(shape, i, j);
	op_arena_expect(a, y, 4ull * n_words);
	on_device_check(
		op_pool_dispatch(a->pool, op_arena_begin(a), &kernel, &push, n_words, 1, &e), &e,
		"dispatch");
	op_arena_run(a);
	for (uint32_t i = 0; i < n_words; i++)
		op_arena_check_near(a, op_arena_floats(a, y)[i], (float)expected,
			1e-3f * (float)n_rounds, "sum of subgroup", i);
}

/* Of every shape that the device has; one round more is one product of all more. */
static void test_matrices(void **state)
{
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 1 << 20, seed);
	const struct vk_device_info *info = vk_device_get_info(a.d);
	if (!info->n_matrices || !kernels_has(KERNELS_MATRIX_PEAK_F16)) {
		op_arena_fini(&a);
		printf("skipped: no matrices, or a build without kernels for them\n");
		skip();
	}
	for (uint32_t i = 0; i < info->n_matrices; i++)
		for (uint32_t n_rounds = 0; n_rounds <= 5; n_rounds++)
			run_peak(&a, &info->matrices[i], 1 + i, n_rounds);
	op_arena_fini(&a);
}

static void test_rates(void **state)
{
	struct op_pool *pool = NULL;
	struct ceiling_rates rates = {0}, again = {0};
	struct err e = ERR_NULL;

	(void)state;
	struct vk_device *d = on_device_new();
	const struct vk_device_info *info = vk_device_get_info(d);
	bool has_matrices = info->n_matrices && kernels_has(KERNELS_MATRIX_PEAK_F16);
	on_device_check(op_pool_new(d, &e, &pool), &e, "pool");
	on_device_check(ceiling_measure(d, pool, &e, &rates), &e, "measure");
	on_device_check(ceiling_measure(d, pool, &e, &again), &e, "measure again");
	printf("%.1f GB/s, %.3f TFLOP/s, matrices %.3f; again %.1f, %.3f, %.3f\n",
		rates.read_bytes / 1e9, rates.fma_flops / 1e12, rates.matrix_flops / 1e12,
		again.read_bytes / 1e9, again.fma_flops / 1e12, again.matrix_flops / 1e12);
	/* No device is outside these. */
	assert_true(rates.read_bytes > 1e8 && rates.read_bytes < 1e14);
	assert_true(rates.fma_flops > 1e8 && rates.fma_flops < 1e15);
	assert_int_equal(rates.matrix_flops > 0, has_matrices);
	if (!info->is_software) {
		/* Of two runs at the full clock. Matrices are there because they are faster. */
		assert_true(again.read_bytes > 0.8 * rates.read_bytes);
		assert_true(again.fma_flops > 0.8 * rates.fma_flops);
		assert_true(again.matrix_flops >= 0.8 * rates.matrix_flops);
		assert_true(!has_matrices || rates.matrix_flops > 1.5 * rates.fma_flops);
	}
	op_pool_free(pool);
	vk_device_free(d);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_matrices),
		CASE(test_rates),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
