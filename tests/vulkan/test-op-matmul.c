/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matmul kernels of every block format against a scalar reference: random shapes, one row and
 * one column, one past a tile, every tile height, all that is fused in; and that a row's result is
 * the same bits whatever rows are computed beside it.
 */
#include <math.h>

#include "tests/ref/ref-ops.h"
#include "tests/vulkan/op-arena.h"
#include "workerd/ops/matmul.h"

static uint64_t seed;

struct shape {
	uint32_t dtypes[ABI_MATMUL_MAX_PARTS];
	uint32_t n[ABI_MATMUL_MAX_PARTS];
	uint32_t n_parts;
	uint32_t k;
	uint32_t m;      /* rows of the step */
	uint32_t n_rows; /* what is recorded for */
	bool has_norm;
	bool has_want;
	enum op_matmul_finish finish;
	uint32_t skew; /* of the matrices */
};

enum { MAX_X_ROWS = 80, ARENA_BYTES = 8 << 20 };
static const float eps = 1e-5f;

/* The rows of the matrices one below the other: y before finish, and its error scale. */
struct expected {
	float *y;     /* [m][width] */
	float *scale; /* [m][width] */
	uint32_t width;
};

static void compute(const struct op_arena *a, const struct shape *s,
	const struct op_matmul_params *p, const float *x, const float *gain, const uint32_t *want,
	struct expected *ret)
{
	float *h = malloc(sizeof(float) * s->k);
	uint32_t at = 0;

	*ret = (struct expected){0};
	for (uint32_t i = 0; i < s->n_parts; i++)
		ret->width += s->n[i];
	ret->y = malloc(sizeof(float) * s->m * ret->width);
	ret->scale = malloc(sizeof(float) * s->m * ret->width);
	for (uint32_t part = 0; part < s->n_parts; part++) {
		float *w = op_arena_dequantize(a, &p->w[part]);
		for (uint32_t i = 0; i < s->m; i++) {
			const float *row = x + (uint64_t)(s->has_want ? want[i] : i) * s->k;
			memcpy(h, row, sizeof(float) * s->k);
			if (s->has_norm)
				ref_ops_rms_norm(row, gain, s->k, eps, h);
			ref_ops_matvec(w, h, s->n[part], s->k, ret->y + i * ret->width + at,
				ret->scale + i * ret->width + at);
		}
		at += s->n[part];
		free(w);
	}
	free(h);
}

static void check_output(const struct op_arena *a, const struct shape *s, const struct expected *e,
	const float *y, const float *r, uint32_t y_width)
{
	for (uint32_t i = 0; i < s->m; i++) {
		for (uint32_t j = 0; j < y_width; j++) {
			float v = e->y[i * e->width + j];
			float tolerance = 4e-6f * e->scale[i * e->width + j] + 1e-6f;
			if (s->finish == OP_MATMUL_ADD)
				v += r[i * y_width + j];
			if (s->finish == OP_MATMUL_SWIGLU) {
				float up = e->y[i * e->width + y_width + j];
				float up_scale = e->scale[i * e->width + y_width + j];
				/* |silu'| is at most 1.1. */
				tolerance = 1.1f * tolerance * fabsf(up) +
					    fabsf(ref_ops_silu(v)) * (4e-6f * up_scale + 1e-6f) +
					    1e-6f;
				v = ref_ops_silu(v) * up;
			}
			op_arena_check_near(
				a, y[i * y_width + j], v, tolerance, "output", i * y_width + j);
		}
	}
}

static void run_shape(struct op_arena *a, const struct shape *s)
{
	struct op_matmul_params p = {
		.n_parts = s->n_parts, .finish = s->finish, .eps = eps, .n_rows = s->n_rows};
	struct err e = ERR_NULL;
	uint32_t want[MAX_X_ROWS];
	uint32_t y_width = 0;

	op_arena_reset(a);
	for (uint32_t i = 0; i < s->n_parts; i++) {
		p.w[i] = op_arena_take_matrix(a, s->dtypes[i], s->n[i], s->k, s->skew);
		y_width += s->n[i];
	}
	if (s->finish == OP_MATMUL_SWIGLU)
		y_width = s->n[0];
	uint64_t n_y_bytes = sizeof(float) * s->m * y_width;
	uint64_t x = op_arena_take_floats(a, (uint64_t)MAX_X_ROWS * s->k);
	uint64_t gain = op_arena_take_floats(a, s->k);
	uint64_t y = op_arena_take(a, n_y_bytes, 0);
	uint64_t r = op_arena_take_floats(a, (uint64_t)s->m * y_width);
	uint64_t want_at = op_arena_take(a, sizeof(want), 0);
	for (uint32_t i = 0; i < s->m; i++)
		want[i] = op_arena_random(a, 0, MAX_X_ROWS - 1);
	memcpy(a->map + want_at, want, sizeof(want[0]) * s->m);
	p.x = op_arena_address(a, x);
	p.y = op_arena_address(a, y);
	p.r = s->finish == OP_MATMUL_ADD ? op_arena_address(a, r) : 0;
	p.gain = s->has_norm ? op_arena_address(a, gain) : 0;
	p.want = s->has_want ? op_arena_address(a, want_at) : 0;
	p.m = op_arena_address(a, op_arena_take_u32(a, s->m));

	op_arena_expect(a, y, n_y_bytes);
	struct vk_command *c = op_arena_begin(a);
	on_device_check(op_matmul_record(a->pool, c, &p, &e), &e, "record");
	op_arena_run(a);

	struct expected expected;
	compute(a, s, &p, op_arena_floats(a, x), op_arena_floats(a, gain), want, &expected);
	check_output(a, s, &expected, op_arena_floats(a, y), op_arena_floats(a, r), y_width);
	free(expected.y);
	free(expected.scale);
}

/* Row lengths that the block format allows: tiny, odd, past a subgroup's stride, ordinary. */
static uint32_t random_k(struct op_arena *a, uint32_t dtype, uint32_t unit)
{
	uint32_t n = op_arena_random(a, 0, 3);
	uint32_t units = n == 0 ? 1 : n == 1 ? op_arena_random(a, 2, 9) : op_arena_random(a, 2, 20);

	if (dtype_find(dtype)->n_block == 1)
		return n == 2 ? unit * op_arena_random(a, 16, 150) : unit * units;
	return unit * units;
}

/* Number i of 24: every tile height with every fusion, sizes at random. */
static void run_shape_number(
	struct op_arena *a, uint32_t dtype, uint32_t unit, uint32_t skew, uint32_t i)
{
	static const uint32_t rows[] = {1, 2, 5, 64};
	uint32_t n_rows = rows[i % ARRAY_SIZE(rows)];
	struct shape s = {
		.dtypes = {dtype, dtype, dtype},
		.n_rows = n_rows,
		.m = i < 4 ? n_rows : op_arena_random(a, 1, n_rows),
		.k = random_k(a, dtype, unit),
		.has_norm = i / 4 % 2,
		.has_want = i / 8 == 1,
		.skew = skew,
	};
	s.n[0] = i % 3 == 0 ? 1 : op_arena_random(a, 1, 70);
	s.n[1] = op_arena_random(a, 1, 40);
	s.n[2] = i % 5 == 0 ? 17 : op_arena_random(a, 1, 40);
	s.finish = i / 8 == 0 ? OP_MATMUL_STORE : i / 8 == 1 ? OP_MATMUL_SWIGLU : OP_MATMUL_ADD;
	s.n_parts = s.finish == OP_MATMUL_STORE ? 1 + i % 3 : 1;
	if (s.finish == OP_MATMUL_SWIGLU) {
		s.n_parts = 2;
		s.n[1] = s.n[0];
	}
	run_shape(a, &s);
}

/* One format and reading of it. */
static void run_format(uint32_t dtype, uint32_t unit, uint32_t skew)
{
	struct op_arena a;

	op_arena_init(&a, ARENA_BYTES, seed);
	for (uint32_t i = 0; i < 24; i++)
		run_shape_number(&a, dtype, unit, skew, i);
	op_arena_fini(&a);
}

/*
 * What surrounds the reading of a format is the same text in all of them, and each combination is a
 * kernel to compile: one row, and four at a time with all that is fused in.
 */
static void run_few(uint32_t dtype, uint32_t unit, uint32_t skew)
{
	static const uint32_t numbers[] = {0, 14};
	struct op_arena a;

	op_arena_init(&a, ARENA_BYTES, seed);
	for (uint32_t i = 0; i < 3 * ARRAY_SIZE(numbers); i++)
		run_shape_number(&a, dtype, unit, skew, numbers[i % ARRAY_SIZE(numbers)]);
	op_arena_fini(&a);
}

static void test_f32(void **state)
{
	(void)state;
	run_format(DTYPE_F32, 1, 0);
}

static void test_f32_x4(void **state)
{
	(void)state;
	run_format(DTYPE_F32, 4, 4);
}

/* Rows of odd length, at addresses that are no multiple of 4. */
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
	run_few(DTYPE_BF16, 1, 2);
}

static void test_bf16_x2(void **state)
{
	(void)state;
	run_few(DTYPE_BF16, 2, 0);
}

static void test_q4_0(void **state)
{
	(void)state;
	run_few(DTYPE_Q4_0, 32, 2);
}

static void test_q4_0_x2(void **state)
{
	(void)state;
	run_few(DTYPE_Q4_0, 64, 0);
}

static void test_q4_k(void **state)
{
	(void)state;
	run_few(DTYPE_Q4_K, 256, 16);
}

static void test_q5_k(void **state)
{
	(void)state;
	run_few(DTYPE_Q5_K, 256, 16);
}

static void test_q6_k(void **state)
{
	(void)state;
	run_few(DTYPE_Q6_K, 256, 2);
}

static void test_tq2_0(void **state)
{
	(void)state;
	run_few(DTYPE_TQ2_0, 256, 2);
}

static void test_q2_0(void **state)
{
	(void)state;
	run_few(DTYPE_Q2_0, 64, 2);
}

static void test_q1_0(void **state)
{
	(void)state;
	run_few(DTYPE_Q1_0, 128, 2);
}

/* Parts that no one kernel reads together: a dispatch each, side by side in y. */
static void test_mixed_formats(void **state)
{
	struct op_arena a;
	struct shape s = {.dtypes = {DTYPE_Q8_0, DTYPE_F16, DTYPE_F16},
		.n = {33, 9, 20},
		.n_parts = 3,
		.k = 64,
		.m = 3,
		.n_rows = 4,
		.has_norm = true,
		.finish = OP_MATMUL_STORE};

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	run_shape(&a, &s);
	s.finish = OP_MATMUL_ADD;
	run_shape(&a, &s);
	s.finish = OP_MATMUL_SWIGLU;
	s.n_parts = 2;
	s.n[1] = s.n[0];
	run_shape(&a, &s);
	op_arena_fini(&a);
}

/* Row 0 of m rows, computed by commands for n_rows: its bits, [n]. */
static void compute_rows(struct op_arena *a, const struct op_matmul_params *base, uint64_t m_at,
	uint64_t y, uint32_t m, uint32_t n, float *ret_y)
{
	struct op_matmul_params p = *base;
	struct err e = ERR_NULL;

	p.n_rows = 1;
	while (p.n_rows < m)
		p.n_rows *= 2;
	memcpy(a->map + m_at, &m, sizeof(m));
	op_arena_expect(a, y, sizeof(float) * m * n);
	on_device_check(op_matmul_record(a->pool, op_arena_begin(a), &p, &e), &e, "record");
	op_arena_run(a);
	memcpy(ret_y, op_arena_floats(a, y), sizeof(float) * m * n);
}

static void check_independent(uint32_t dtype, uint32_t k, bool is_swiglu)
{
	static const uint32_t ms[] = {1, 2, 3, 15, 16, 17, 64, 65};
	enum { N = 37, MAX_M = 65 };
	static float found[MAX_M * N], first[MAX_M * N];
	struct op_arena a;

	op_arena_init(&a, ARENA_BYTES, seed);
	struct op_matmul_params p = {.n_parts = is_swiglu ? 2 : 1, .eps = eps};
	p.finish = is_swiglu ? OP_MATMUL_SWIGLU : OP_MATMUL_STORE;
	p.w[0] = op_arena_take_matrix(&a, dtype, N, k, 0);
	p.w[1] = op_arena_take_matrix(&a, dtype, N, k, 0);
	p.gain = op_arena_address(&a, op_arena_take_floats(&a, k));
	uint64_t x = op_arena_take_floats(&a, (uint64_t)MAX_M * k);
	uint64_t y = op_arena_take(&a, sizeof(found), 0);
	uint64_t m_at = op_arena_take_u32(&a, 0);
	p.x = op_arena_address(&a, x);
	p.y = op_arena_address(&a, y);
	p.m = op_arena_address(&a, m_at);
	for (uint32_t i = 0; i < ARRAY_SIZE(ms); i++) {
		compute_rows(&a, &p, m_at, y, ms[i], N, i == 0 ? first : found);
		if (i > 0)
			assert_memory_equal(found, first, sizeof(float) * N);
	}
	/* The last row too, alone and in another place of a tile. */
	memcpy(op_arena_floats(&a, x), op_arena_floats(&a, x) + (MAX_M - 1) * k, sizeof(float) * k);
	compute_rows(&a, &p, m_at, y, 1, N, first);
	assert_memory_equal(found + (MAX_M - 1) * N, first, sizeof(float) * N);
	op_arena_fini(&a);
}

static void test_bits_do_not_depend_on_rows(void **state)
{
	(void)state;
	check_independent(DTYPE_Q8_0, 320, false);
	check_independent(DTYPE_Q8_0, 320, true);
	check_independent(DTYPE_Q8_0, 96, false);
	check_independent(DTYPE_F16, 254, false);
	check_independent(DTYPE_F32, 131, false);
	check_independent(DTYPE_F32, 132, false);
	check_independent(DTYPE_Q4_K, 768, false);
}

static void check_refused(struct op_arena *a, const struct op_matmul_params *p, int expected)
{
	struct err e = ERR_NULL;

	assert_int_equal(op_matmul_record(a->pool, op_arena_begin(a), p, &e), expected);
	assert_string_not_equal(e.text, "");
}

static void test_refused(void **state)
{
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 1 << 16, seed);
	struct op_matmul_params p = {.n_parts = 2, .n_rows = 1};
	p.w[0] = op_arena_take_matrix(&a, DTYPE_F32, 4, 4, 0);
	p.w[1] = op_arena_take_matrix(&a, DTYPE_F32, 4, 5, 0);
	check_refused(&a, &p, -EINVAL);
	p.w[1] = p.w[0];
	p.w[1].dtype = 10; /* q2_K */
	check_refused(&a, &p, -ENOTSUP);
	/* Blocks that are loaded by sixteen bytes. */
	p.w[1] = op_arena_take_matrix(&a, DTYPE_Q4_K, 1, 256, 8);
	p.w[0] = op_arena_take_matrix(&a, DTYPE_Q4_K, 1, 256, 0);
	check_refused(&a, &p, -EINVAL);
	p.w[0] = op_arena_take_matrix(&a, DTYPE_F32, 4, 4, 0);
	p.w[1] = p.w[0];
	p.w[1].layout = 7;
	check_refused(&a, &p, -ENOTSUP);
	p.w[1] = p.w[0];
	p.w[1].ne[0] = 0;
	check_refused(&a, &p, -EINVAL);
	p.n_parts = 0;
	check_refused(&a, &p, -EINVAL);
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_f32),
		CASE(test_f32_x4),
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
		CASE(test_mixed_formats),
		CASE(test_bits_do_not_depend_on_rows),
		CASE(test_refused),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
