/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of 2 to 64 rows out of the device's matrices' registers against scalar references: every
 * block format with every finish, rows and columns that fill no tile, k in shares and splits;
 * poison in all that is not to be read or written, staging too. Skips where the device has no
 * matrices that lie in lanes as workerd/ops/fragment.h wants, or the build no kernels for them.
 */
#include "tests/vulkan/matrix-sample.h"
#include "tests/vulkan/product-site.h"
#include "workerd/ops/fragment.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/skinny.h"

static uint64_t seed;

/* Few rows of W a workgroup, so that a small product has several tiles, some of them not full. */
static const struct op_skinny_shape shapes[] = {
	{2, 1, 1, 1},
	{2, 2, 2, 1},
	{2, 1, 3, 2},
	{4, 1, 1, 3},
	{2, 3, 1, 2},
};

static int record(struct op_arena *a, struct vk_command *c, const struct op_matmul_params *p,
	const void *cut, struct err *ret_err)
{
	return cut ? op_skinny_record_shape(a->pool, c, p, cut, ret_err)
		   : op_skinny_record(a->pool, c, p, ret_err);
}

static void init(struct product_site *s)
{
	product_site_init(s, seed, record);
}

/* Rows of W whose bytes are a multiple of 16 together. */
static uint32_t whole(uint32_t dtype, uint32_t k, uint32_t n)
{
	uint64_t n_row_bytes = matrix_sample_row_bytes(dtype, k);

	while (n * n_row_bytes % 16)
		n++;
	return n;
}

/*
 * One format with everything fused in, cut in one way, for one number of sets of rows: a software
 * driver compiles each kernel for seconds. All cuts and numbers meet some format.
 */
static void run_format(uint32_t dtype, uint32_t n_sets, uint32_t cut)
{
	static const enum op_matmul_finish finishes[] = {
		OP_MATMUL_STORE, OP_MATMUL_SWIGLU, OP_MATMUL_ADD};
	bool is_wide = dtype == DTYPE_F16 || dtype == DTYPE_BF16 || dtype == DTYPE_Q8_0;
	struct product_site site;

	init(&site);
	for (uint32_t i = 0; i < 12; i++) {
		struct op_arena *a = &site.a;
		uint32_t n_max = 8 * n_sets, n_min = n_sets == 1 ? 2 : n_max - 7;
		struct product_shape s = {
			.dtypes = {dtype, dtype, dtype},
			.n_rows = i < 6 ? n_max : op_arena_random(a, n_min, n_max),
			.k = is_wide ? 128 * op_arena_random(a, 1, 7)
				     : 256 * op_arena_random(a, 1, 4),
			.has_norm = i / 3 % 2,
			.has_want = i / 6 % 2,
			/* The largest kernels are few: test_rows has another. */
			.finish = n_sets == 8 ? OP_MATMUL_ADD : finishes[i % 3],
			.cut = &shapes[cut],
		};
		/* A step has fewer rows than what was recorded for, once a single one. */
		s.m = i < 3 ? s.n_rows : i == 4 ? 1 : op_arena_random(a, 1, s.n_rows);
		s.n_parts = s.finish == OP_MATMUL_STORE ? 1 + i / 3 % 3 : 1;
		s.n[0] = whole(dtype, s.k, i == 3 ? 1 : op_arena_random(a, 1, 90));
		s.n[1] = whole(dtype, s.k, op_arena_random(a, 1, 40));
		s.n[2] = whole(dtype, s.k, op_arena_random(a, 1, 40));
		if (s.finish == OP_MATMUL_SWIGLU) {
			s.n_parts = 2;
			s.n[1] = s.n[0];
		}
		product_site_run_shape(&site, &s);
	}
	product_site_fini(&site);
}

#define FORMAT(name, dtype, n_sets, cut)        \
	static void test_##name(void **state)   \
	{                                       \
		(void)state;                    \
		run_format(dtype, n_sets, cut); \
	}
FORMAT(f16, DTYPE_F16, 1, 0)
FORMAT(bf16, DTYPE_BF16, 2, 1)
FORMAT(q8_0, DTYPE_Q8_0, 4, 2)
FORMAT(q4_0, DTYPE_Q4_0, 1, 3)
FORMAT(q4_k, DTYPE_Q4_K, 4, 0)
FORMAT(q4_k_few, DTYPE_Q4_K, 1, 1)
FORMAT(q4_k_many, DTYPE_Q4_K, 8, 2)
FORMAT(q6_k, DTYPE_Q6_K, 4, 3)
FORMAT(q6_k_few, DTYPE_Q6_K, 1, 4)
FORMAT(tq2_0, DTYPE_TQ2_0, 2, 0)
FORMAT(q2_0, DTYPE_Q2_0, 3, 1)
FORMAT(q1_0, DTYPE_Q1_0, 2, 2)

/* Numbers of rows that begin, fill and pass a set. */
static void test_rows(void **state)
{
	static const uint32_t rows[] = {2, 7, 9, 15, 17, 33, 63, 64};
	struct product_site site;

	(void)state;
	init(&site);
	for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct product_shape s = {.dtypes = {DTYPE_Q4_K},
			.n = {37},
			.n_parts = 1,
			.k = 512,
			.m = rows[i],
			.n_rows = rows[i],
			.finish = OP_MATMUL_STORE};
		product_site_run_shape(&site, &s);
	}
	product_site_fini(&site);
}

/* Matrices of formats that want x in different orders, side by side and in a SwiGLU. */
static void test_mixed_formats(void **state)
{
	struct product_site site;

	(void)state;
	init(&site);
	for (uint32_t i = 0; i < 2; i++) {
		struct product_shape s = {.dtypes = {DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K},
			.n = {120, 8, 16},
			.n_parts = 3,
			.k = 768,
			.m = 13,
			.n_rows = 16,
			.has_norm = i % 2,
			.cut = &shapes[2 * i],
			.finish = i == 1 ? OP_MATMUL_ADD : OP_MATMUL_STORE};
		product_site_run_shape(&site, &s);
		s.dtypes[1] = DTYPE_Q8_0;
		s.n[1] = s.n[0];
		s.n_parts = 2;
		s.finish = OP_MATMUL_SWIGLU;
		product_site_run_shape(&site, &s);
	}
	product_site_fini(&site);
}

/* The same recording gives the same bits, whichever workgroup of a tile ends last. */
static void test_bits_repeat(void **state)
{
	const struct op_skinny_shape cut = {2, 2, 1, 3};
	struct product_site site;

	(void)state;
	init(&site);
	product_site_check_repeats(
		&site, product_site_take_product(&site, DTYPE_Q4_K, 70, 1024, 30), &cut, 4);
	product_site_fini(&site);
}

/* Outputs that go to the next product as its x: the same bits as by way of y. */
static void run_chain(uint32_t n_rows, uint32_t m, uint32_t next_dtype)
{
	enum { N = 256, K = 512, N_NEXT = 24 };
	const struct op_skinny_shape cut = {2, 1, 1, 2};
	struct err e = ERR_NULL;
	struct product_site site;

	init(&site);
	struct op_arena *a = &site.a;
	uint64_t z[2] = {op_arena_take(a, sizeof(float) * m * N_NEXT, 0),
		op_arena_take(a, sizeof(float) * m * N_NEXT, 0)};
	struct op_matmul_params p = product_site_take_product(&site, DTYPE_Q4_K, N, K, n_rows);
	p.n_parts = 2;
	p.w[1] = product_site_take_matrix(&site, DTYPE_Q4_K, N, K);
	p.finish = OP_MATMUL_SWIGLU;
	p.m = op_arena_address(a, op_arena_take_u32(a, m));
	p.n_staging_bytes /= 2;
	p.y = p.staging + p.n_staging_bytes;
	struct op_matmul_params next = product_site_get_params(&site, n_rows);
	next.n_parts = 1;
	next.w[0] = product_site_take_matrix(&site, next_dtype, N_NEXT, N);
	next.x = p.y;
	next.m = p.m;
	next.n_staging_bytes = p.n_staging_bytes;
	for (uint32_t i = 0; i < 2; i++) {
		next.y = op_arena_address(a, z[i]);
		if (i == 1)
			assert_true(op_skinny_chain(a->pool, &p, &next));
		op_arena_expect(a, z[i], sizeof(float) * m * N_NEXT);
		struct vk_command *c = op_arena_begin(a);
		product_site_poison_staging(&site, c);
		on_device_check(op_skinny_record_shape(a->pool, c, &p, &cut, &e), &e, "first");
		vk_command_barrier(c);
		on_device_check(op_skinny_record_shape(a->pool, c, &next, &cut, &e), &e, "next");
		op_arena_run(a);
	}
	assert_memory_equal(
		op_arena_floats(a, z[0]), op_arena_floats(a, z[1]), sizeof(float) * m * N_NEXT);
	product_site_fini(&site);
}

static void test_chain(void **state)
{
	(void)state;
	run_chain(16, 11, DTYPE_Q6_K);
	run_chain(4, 4, DTYPE_Q4_K);
}

static void test_what_does_not_fit(void **state)
{
	struct product_site site;

	(void)state;
	init(&site);
	struct op_arena *a = &site.a;
	struct op_matmul_params good = product_site_take_product(&site, DTYPE_Q8_0, 8, 256, 20);
	good.y = op_arena_address(a, op_arena_take_floats(a, 20 * 8));
	good.n_staging_bytes = 8192 + 24 * 256 * 2; /* counters, x */
	product_site_check_fits(&site, op_skinny_fits, &good);
	struct op_matmul_params p;
#define REFUSED(change)                                    \
	do {                                               \
		p = good;                                  \
		change;                                    \
		assert_false(op_skinny_fits(a->pool, &p)); \
	} while (0)
	REFUSED(p.staging += 16);
	REFUSED(p.n_rows = 1);
	REFUSED(p.n_rows = OP_SKINNY_MAX_ROWS + 1);
	REFUSED(p.w[0].dtype = DTYPE_F32);
	REFUSED(p.w[0].ne[0] = 128);
#undef REFUSED
	/* Splits need room behind x. */
	struct vk_command *c = op_arena_begin(a);
	struct err e = ERR_NULL;
	assert_int_equal(op_skinny_record_shape(
				 a->pool, c, &good, &(struct op_skinny_shape){2, 1, 1, 2}, &e),
		-ENOTSUP);
	on_device_check(op_skinny_record(a->pool, c, &good, &e), &e, "record");
	op_arena_expect(a, good.y - vk_memory_get_address(a->memory), 20 * 8 * sizeof(float));
	op_arena_run(a);
	product_site_fini(&site);
}

/* What shaders/fragment.comp would say of lanes that have it otherwise. */
static void test_other_lanes(void **state)
{
	enum { S = 32, N_LANES = 4 };
	static uint32_t words[2 * S * ABI_FRAGMENT_ELEMENTS];
	const struct vk_device_matrix matrix = {.m = 16, .n = 8, .k = 16};

	(void)state;
	memset(words, 0xff, sizeof(words));
	for (uint32_t l = 0; l < S; l++) {
		uint32_t *a = &words[l * ABI_FRAGMENT_ELEMENTS], *b = a + S * ABI_FRAGMENT_ELEMENTS;
		for (uint32_t e = 0; e < 8; e++)
			a[e] = (l / 4 + e / 4 * 8) * 16 + l % 4 * 2 + e % 2 + e / 2 % 2 * 8;
		for (uint32_t e = 0; e < 4; e++)
			b[e] = l / 4 * 16 + l % 4 * 2 + e % 2 + e / 2 * 8;
	}
	assert_true(op_fragment_fits(words, S, &matrix, N_LANES));
	assert_false(op_fragment_fits(words, S, &matrix, 8));
	for (uint32_t at = 0; at < ARRAY_SIZE(words); at++) {
		uint32_t e = at % ABI_FRAGMENT_ELEMENTS, n = at < S * ABI_FRAGMENT_ELEMENTS ? 8 : 4;
		uint32_t was = words[at];
		words[at] = e == n ? 0 : was ^ 1;
		if (e <= n)
			assert_false(op_fragment_fits(words, S, &matrix, N_LANES));
		words[at] = was;
	}
}

static void skip_without_matrices(void)
{
	struct vk_device *d = on_device_new();
	const struct vk_device_info *info = vk_device_get_info(d);
	struct op_pool *pool = NULL;
	struct err e = ERR_NULL;

	on_device_check(op_pool_new(d, &e, &pool), &e, "pool");
	bool has = op_pool_get_fragment(pool)->n_lanes > 0;
	if (!kernels_has(KERNELS_FRAGMENT))
		fprintf(stderr, "skipped: glslc of this build knows no matrices\n");
	else if (!has)
		fprintf(stderr, "skipped: %s, %s has no matrices whose lanes are known\n",
			info->name, info->driver);
	op_pool_free(pool);
	vk_device_free(d);
	if (!has)
		exit(CASE_SKIP);
}

/* An argument: only the cases whose name has this pattern. */
int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_f16),
		CASE(test_bf16),
		CASE(test_q8_0),
		CASE(test_q4_0),
		CASE(test_q4_k),
		CASE(test_q4_k_few),
		CASE(test_q4_k_many),
		CASE(test_q6_k),
		CASE(test_q6_k_few),
		CASE(test_tq2_0),
		CASE(test_q2_0),
		CASE(test_q1_0),
		CASE(test_rows),
		CASE(test_mixed_formats),
		CASE(test_bits_repeat),
		CASE(test_chain),
		CASE(test_what_does_not_fit),
		CASE(test_other_lanes),
	};

	on_device_warm_up();
	skip_without_matrices();
	seed = op_arena_seed();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
