/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products on the device's matrices against scalar references: every block format with everything
 * fused in, rows and columns that fill no tile, tiles that are shared, both kinds of steps; poison
 * in all that is not to be read or written, staging too. Skips where the device has no matrices or
 * the build no kernels for them.
 */
#include "proto/manifest.h"
#include "tests/vulkan/product-site.h"
#include "workerd/ops/matrix-tile.h"
#include "workerd/ops/matrix.h"

static uint64_t seed;

/*
 * Small tiles, so that a small shape has several, some of them not full. bn, bm, sn and sm count
 * matrices of the device.
 */
static const struct op_matrix_tile small_tiles[] = {
	{.bn = 4,
		.bm = 4,
		.bk = 32,
		.sn = 2,
		.sm = 1,
		.n_buffers = 1,
		.n_streams = OP_MATRIX_TILE_NO_STREAMS},
	{.bn = 4,
		.bm = 2,
		.bk = 32,
		.sn = 1,
		.sm = 2,
		.n_buffers = 2,
		.n_streams = OP_MATRIX_TILE_NO_STREAMS,
		.is_direct = true},
	{.bn = 4, .bm = 2, .bk = 64, .sn = 2, .sm = 1, .n_buffers = 1, .n_streams = 3},
	{.bn = 2,
		.bm = 4,
		.bk = 32,
		.sn = 2,
		.sm = 2,
		.n_buffers = 2,
		.n_streams = 7,
		.is_ragged = true},
	{.bn = 4,
		.bm = 4,
		.bk = 32,
		.sn = 2,
		.sm = 1,
		.n_buffers = 2,
		.n_streams = 5,
		.is_wide = true},
	{.bn = 4,
		.bm = 2,
		.bk = 64,
		.sn = 1,
		.sm = 1,
		.n_buffers = 2,
		.n_streams = OP_MATRIX_TILE_NO_STREAMS,
		.is_wide = true},
};

static struct op_matrix_tile scale_tile(const struct op_arena *a, struct op_matrix_tile tile)
{
	const struct vk_device_matrix *matrix = vk_device_get_info(a->d)->matrices;

	tile.bn = (uint16_t)(tile.bn * matrix->n);
	tile.sn = (uint16_t)(tile.sn * matrix->n);
	tile.bm = (uint16_t)(tile.bm * matrix->m);
	tile.sm = (uint16_t)(tile.sm * matrix->m);
	return tile;
}

static int record(struct op_arena *a, struct vk_command *c, const struct op_matmul_params *p,
	const void *cut, struct err *ret_err)
{
	const struct op_matrix_tile *tile = cut;

	if (!tile)
		return op_matrix_record(a->pool, c, p, ret_err);
	struct op_matrix_tile scaled = scale_tile(a, *tile);
	return op_matrix_record_tile(a->pool, c, p, &scaled, ret_err);
}

static void init(struct product_site *s)
{
	product_site_init(s, seed, record);
}

/*
 * One format with everything fused in, on one of the tiles: a software driver compiles each kernel
 * for seconds. All tiles meet some format.
 */
static void run_format(uint32_t dtype, const struct op_matrix_tile *tile)
{
	static const enum op_matmul_finish finishes[] = {
		OP_MATMUL_STORE, OP_MATMUL_SWIGLU, OP_MATMUL_ADD};
	static const uint32_t rows[] = {17, 33, 64};
	uint32_t n_block = dtype_find(dtype)->n_block;
	uint32_t k_unit = n_block < 64 ? 64 : n_block;
	struct product_site site;

	init(&site);
	for (uint32_t i = 0; i < 12; i++) {
		struct op_arena *a = &site.a;
		struct op_matrix_tile cut = *tile;
		struct product_shape s = {
			.dtypes = {dtype, dtype, dtype},
			.n_rows = rows[op_arena_random(a, 0, 2)],
			.k = k_unit * op_arena_random(a, 1, k_unit == 64 ? 7 : 3),
			.has_norm = i / 3 % 2,
			.has_want = i / 6 % 2,
			.finish = finishes[i % 3],
			.cut = &cut,
		};
		/* The second STORE, with norm: the rest is the same for f16. */
		cut.is_decoded = i == 3;
		s.m = i < 3 ? s.n_rows : op_arena_random(a, 1, s.n_rows);
		s.n_parts = s.finish == OP_MATMUL_STORE ? 1 + i / 3 % 3 : 1;
		s.n[0] = i == 3 || i == 4 ? 1 : op_arena_random(a, 1, 70);
		s.n[1] = op_arena_random(a, 1, 40);
		s.n[2] = op_arena_random(a, 1, 40);
		if (s.finish == OP_MATMUL_SWIGLU) {
			s.n_parts = 2;
			s.n[1] = s.n[0];
		}
		product_site_run_shape(&site, &s);
	}
	product_site_fini(&site);
}

#define FORMAT(name, dtype, tile)                      \
	static void test_##name(void **state)          \
	{                                              \
		(void)state;                           \
		run_format(dtype, &small_tiles[tile]); \
	}
FORMAT(f32, DTYPE_F32, 0)
FORMAT(f16, DTYPE_F16, 1)
FORMAT(bf16, DTYPE_BF16, 2)
FORMAT(q8_0, DTYPE_Q8_0, 3)
FORMAT(q4_0, DTYPE_Q4_0, 0)
FORMAT(q4_k, DTYPE_Q4_K, 1)
FORMAT(q6_k, DTYPE_Q6_K, 2)
FORMAT(tq2_0, DTYPE_TQ2_0, 3)
FORMAT(q2_0, DTYPE_Q2_0, 0)
FORMAT(q1_0, DTYPE_Q1_0, 1)
FORMAT(wide_f32, DTYPE_F32, 4)
FORMAT(wide_f16, DTYPE_F16, 4)
FORMAT(wide_bf16, DTYPE_BF16, 4)
FORMAT(wide_q8_0, DTYPE_Q8_0, 5)
FORMAT(wide_q4_0, DTYPE_Q4_0, 4)
FORMAT(wide_q4_k, DTYPE_Q4_K, 4)
FORMAT(wide_q6_k, DTYPE_Q6_K, 4)
FORMAT(wide_tq2_0, DTYPE_TQ2_0, 4)
FORMAT(wide_q2_0, DTYPE_Q2_0, 4)
FORMAT(wide_q1_0, DTYPE_Q1_0, 4)

/* Rows of an odd number of 16-bit words, so that every second begins inside a word. */
static void test_odd_rows(void **state)
{
	static const uint32_t dtypes[] = {DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q6_K, DTYPE_TQ2_0};
	struct product_site site;

	(void)state;
	init(&site);
	for (uint32_t i = 0; i < ARRAY_SIZE(dtypes); i++) {
		uint32_t n_block = dtype_find(dtypes[i])->n_block;
		struct product_shape s = {.dtypes = {dtypes[i]},
			.n = {41},
			.n_parts = 1,
			.k = n_block * 3,
			.m = 20,
			.n_rows = 20,
			.finish = OP_MATMUL_STORE,
			.cut = &small_tiles[0]};
		product_site_run_shape(&site, &s);
		s.cut = &small_tiles[4];
		product_site_run_shape(&site, &s);
	}
	product_site_fini(&site);
}

/* What the op itself chooses, and matrices of different formats side by side. */
static void test_chosen_tiles(void **state)
{
	static const uint32_t rows[] = {17, 50, 80};
	struct product_site site;

	(void)state;
	init(&site);
	for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct product_shape s = {.dtypes = {DTYPE_Q8_0, DTYPE_F16, DTYPE_F16},
			.n = {150, 9, 20},
			.n_parts = 3,
			.k = 32 * op_arena_random(&site.a, 1, 20),
			.m = rows[i],
			.n_rows = rows[i],
			.has_norm = true,
			.finish = i == 1 ? OP_MATMUL_ADD : OP_MATMUL_STORE};
		product_site_run_shape(&site, &s);
		s.finish = OP_MATMUL_SWIGLU;
		s.n_parts = 2;
		s.n[1] = s.n[0];
		product_site_run_shape(&site, &s);
		s.dtypes[1] = s.dtypes[0];
		product_site_run_shape(&site, &s);
	}
	product_site_fini(&site);
}

/* f16 has no such numbers: the largest instead, never infinity. */
static void test_values_beyond_f16(void **state)
{
	enum { N = 5, K = 64, M = 17 };
	struct product_site site;

	(void)state;
	init(&site);
	struct op_arena *a = &site.a;
	uint64_t w = op_arena_take(a, N * K * sizeof(float), 0);
	uint64_t x = op_arena_take_floats(a, M * K), y = op_arena_take(a, M * N * sizeof(float), 0);
	for (uint32_t i = 0; i < N * K; i++)
		op_arena_floats(a, w)[i] = i % K == 0 ? 1e9f : 0;
	for (uint32_t i = 0; i < M; i++)
		op_arena_floats(a, x)[i * K] = i % 2 ? -7e4f : 0.5f;
	struct op_matmul_params p = product_site_get_params(&site, M);
	p.n_parts = 1;
	p.w[0] = (struct weights_tensor){.address = op_arena_address(a, w),
		.dtype = DTYPE_F32,
		.layout = MANIFEST_LAYOUT_RAW,
		.ne = {K, N, 1, 1},
		.n_bytes = N * K * sizeof(float)};
	p.x = op_arena_address(a, x);
	p.y = op_arena_address(a, y);
	p.m = op_arena_address(a, op_arena_take_u32(a, M));
	op_arena_expect(a, y, M * N * sizeof(float));
	product_site_run(&site, &p, &small_tiles[0]);
	for (uint32_t i = 0; i < M * N; i++)
		op_arena_check_near(a, op_arena_floats(a, y)[i],
			i / N % 2 ? -65504.0f * 65504.0f : 0.5f * 65504.0f, 1.0f, "clamped", i);
	product_site_fini(&site);
}

/* The same recording gives the same bits, with k in runs too. */
static void test_bits_repeat(void **state)
{
	struct op_matrix_tile tile = small_tiles[3];
	struct product_site site;

	(void)state;
	init(&site);
	tile.n_streams = 5;
	product_site_check_repeats(
		&site, product_site_take_product(&site, DTYPE_Q8_0, 70, 512, 30), &tile, 3);
	product_site_fini(&site);
}

static void test_what_does_not_fit(void **state)
{
	struct product_site site;

	(void)state;
	init(&site);
	struct op_arena *a = &site.a;
	struct op_matmul_params good = product_site_take_product(&site, DTYPE_Q8_0, 8, 96, 20);
	good.y = op_arena_address(a, op_arena_take_floats(a, 20 * 8));
	good.n_staging_bytes = 20 * 96 * 2;
	product_site_check_fits(&site, op_matrix_fits, &good);
	struct op_matmul_params p;
#define REFUSED(change)                                    \
	do {                                               \
		p = good;                                  \
		change;                                    \
		assert_false(op_matrix_fits(a->pool, &p)); \
	} while (0)
	REFUSED(p.n_rows = 8);
	REFUSED(p.w[0].dtype = 10); /* q2_K */
	REFUSED(p.w[0].ne[0] = 64);
#undef REFUSED
	product_site_fini(&site);
}

static void skip_without_matrices(void)
{
	struct vk_device *d = on_device_new();
	const struct vk_device_info *info = vk_device_get_info(d);
	bool has = info->n_matrices > 0;

	if (!has)
		fprintf(stderr, "skipped: %s, %s has no matrices of f16\n", info->name,
			info->driver);
	vk_device_free(d);
	if (!kernels_has(KERNELS_MATRIX_F16)) {
		fprintf(stderr, "skipped: glslc of this build knows no matrices\n");
		has = false;
	}
	if (!has)
		exit(CASE_SKIP);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_f32),
		CASE(test_f16),
		CASE(test_bf16),
		CASE(test_q8_0),
		CASE(test_q4_0),
		CASE(test_q4_k),
		CASE(test_q6_k),
		CASE(test_tq2_0),
		CASE(test_q2_0),
		CASE(test_q1_0),
		CASE(test_wide_f32),
		CASE(test_wide_f16),
		CASE(test_wide_bf16),
		CASE(test_wide_q8_0),
		CASE(test_wide_q4_0),
		CASE(test_wide_q4_k),
		CASE(test_wide_q6_k),
		CASE(test_wide_tq2_0),
		CASE(test_wide_q2_0),
		CASE(test_wide_q1_0),
		CASE(test_odd_rows),
		CASE(test_chosen_tiles),
		CASE(test_values_beyond_f16),
		CASE(test_bits_repeat),
		CASE(test_what_does_not_fit),
	};

	on_device_warm_up();
	skip_without_matrices();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
