/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The embed kernels of every block format against the scalar reference: exact, for rows of any
 * length that the format allows, of tokens anywhere in the table, given or picked.
 */
#include "tests/ref/ref-ops.h"
#include "tests/vulkan/op-arena.h"
#include "workerd/ops/embed.h"

static uint64_t seed;

static void run_shape(struct op_arena *a, uint32_t dtype, uint32_t k, uint32_t skew)
{
	uint32_t n_vocab = op_arena_random(a, 1, 50);
	uint32_t n_rows = op_arena_random(a, 1, 20);
	uint32_t m = op_arena_random(a, 1, n_rows);
	struct abi_row rows[20] = {0};
	struct err e = ERR_NULL;

	op_arena_reset(a);
	struct op_embed_params p = {
		.w = op_arena_take_matrix(a, dtype, n_vocab, k, skew), .n_rows = n_rows};
	uint64_t rows_at = op_arena_take(a, sizeof(rows), 0);
	uint64_t y = op_arena_take(a, sizeof(float) * m * k, 0);
	for (uint32_t i = 0; i < m; i++)
		rows[i].token = op_arena_random(a, 0, n_vocab - 1);
	memcpy(a->map + rows_at, rows, sizeof(rows[0]) * m);
	/* Some are those of another row's pick, in any order. */
	uint64_t picked = op_arena_take(a, sizeof(uint32_t) * m, 0);
	struct abi_row *given = (struct abi_row *)(a->map + rows_at);
	for (uint32_t i = 0; i < m; i++) {
		((uint32_t *)(a->map + picked))[m - 1 - i] = rows[i].token;
		if (op_arena_random(a, 0, 1))
			given[i].token = ABI_ROW_PICKED | (m - 1 - i);
	}
	p.picked = op_arena_address(a, picked);
	p.rows = op_arena_address(a, rows_at);
	p.y = op_arena_address(a, y);
	p.m = op_arena_address(a, op_arena_take_u32(a, m));

	op_arena_expect(a, y, sizeof(float) * m * k);
	on_device_check(op_embed_record(a->pool, op_arena_begin(a), &p, &e), &e, "record");
	op_arena_run(a);

	float *w = op_arena_dequantize(a, &p.w);
	for (uint32_t i = 0; i < m; i++)
		for (uint32_t j = 0; j < k; j++)
			op_arena_check_near(a, op_arena_floats(a, y)[i * k + j],
				w[rows[i].token * k + j], 0.0f, "output", i * k + j);
	free(w);
}

static void run_format(uint32_t dtype, uint32_t unit, uint32_t skew)
{
	struct op_arena a;

	op_arena_init(&a, 4 << 20, seed);
	run_shape(&a, dtype, unit, skew);
	for (int i = 0; i < 20; i++)
		run_shape(&a, dtype, unit * op_arena_random(&a, 1, 1280 / unit), skew);
	op_arena_fini(&a);
}

static void test_f32(void **state)
{
	(void)state;
	run_format(DTYPE_F32, 1, 0);
}

static void test_f16(void **state)
{
	(void)state;
	run_format(DTYPE_F16, 1, 2);
}

static void test_f16_x2(void **state)
{
	(void)state;
	run_format(DTYPE_F16, 2, 0);
}

static void test_q8_0(void **state)
{
	(void)state;
	run_format(DTYPE_Q8_0, 32, 2);
}

static void test_q8_0_x2(void **state)
{
	(void)state;
	run_format(DTYPE_Q8_0, 64, 0);
}

static void test_bf16(void **state)
{
	(void)state;
	run_format(DTYPE_BF16, 1, 2);
}

static void test_bf16_x2(void **state)
{
	(void)state;
	run_format(DTYPE_BF16, 2, 0);
}

static void test_q4_0(void **state)
{
	(void)state;
	run_format(DTYPE_Q4_0, 32, 2);
}

static void test_q4_0_x2(void **state)
{
	(void)state;
	run_format(DTYPE_Q4_0, 64, 0);
}

static void test_q4_k(void **state)
{
	(void)state;
	run_format(DTYPE_Q4_K, 256, 16);
}

static void test_q5_k(void **state)
{
	(void)state;
	run_format(DTYPE_Q5_K, 256, 16);
}

static void test_q6_k(void **state)
{
	(void)state;
	run_format(DTYPE_Q6_K, 256, 2);
}

static void test_tq2_0(void **state)
{
	(void)state;
	run_format(DTYPE_TQ2_0, 256, 2);
}

static void test_q2_0(void **state)
{
	(void)state;
	run_format(DTYPE_Q2_0, 64, 2);
}

static void test_q1_0(void **state)
{
	(void)state;
	run_format(DTYPE_Q1_0, 128, 2);
}

static void test_refused(void **state)
{
	struct op_arena a;
	struct err e = ERR_NULL;

	(void)state;
	op_arena_init(&a, 1 << 16, seed);
	struct op_embed_params p = {.w = op_arena_take_matrix(&a, DTYPE_Q8_0, 1, 32, 0)};
	p.w.ne[0] = 33;
	assert_int_equal(op_embed_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	p.w.ne[0] = 32;
	p.w.n_bytes--;
	assert_int_equal(op_embed_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	p.w.n_bytes = 64;
	p.w.dtype = 10; /* q2_K */
	assert_int_equal(op_embed_record(a.pool, op_arena_begin(&a), &p, &e), -ENOTSUP);
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_f32),
		CASE(test_f16),
		CASE(test_f16_x2),
		CASE(test_q8_0),
		CASE(test_q8_0_x2),
		CASE(test_bf16),
		CASE(test_bf16_x2),
		CASE(test_q4_0),
		CASE(test_q4_0_x2),
		CASE(test_q4_k),
		CASE(test_q5_k),
		CASE(test_q6_k),
		CASE(test_tq2_0),
		CASE(test_q2_0),
		CASE(test_q1_0),
		CASE(test_refused),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
