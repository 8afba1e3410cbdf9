/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products on the device's matrices against scalar references: every block format with everything
 * fused in, rows and columns that fill no tile, tiles that are shared, both kinds of steps; poison
 * in all that is not to be read or written, staging too. Skips where the device has no matrices or
 * the build no kernels for them.
 */
#include <math.h>

#include "proto/manifest.h"
#include "tests/ref/ref-ops.h"
#include "tests/vulkan/matrix-sample.h"
#include "tests/vulkan/op-arena.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matrix-tile.h"
#include "workerd/ops/matrix.h"

static uint64_t seed;

enum { MAX_X_ROWS = 80, ARENA_BYTES = 4 << 20, STAGING_BYTES = 4 << 20 };
static const float eps = 1e-5f;

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
	struct op_matrix_tile tile; /* bn 0: what the op chooses */
};

struct site {
	struct op_arena a;
	struct vk_memory *staging;
};

static void init(struct site *s)
{
	op_arena_init(&s->a, ARENA_BYTES, seed);
	s->staging = on_device_memory(s->a.d, VK_MEMORY_SCRATCH, STAGING_BYTES, false);
}

static void fini(struct site *s)
{
	vk_memory_free(s->staging);
	op_arena_fini(&s->a);
}

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

static struct op_matrix_tile scale_tile(const struct site *s, struct op_matrix_tile tile)
{
	const struct vk_device_matrix *matrix = vk_device_get_info(s->a.d)->matrices;

	tile.bn = (uint16_t)(tile.bn * matrix->n);
	tile.sn = (uint16_t)(tile.sn * matrix->n);
	tile.bm = (uint16_t)(tile.bm * matrix->m);
	tile.sm = (uint16_t)(tile.sm * matrix->m);
	return tile;
}

static struct weights_tensor take_matrix(struct op_arena *a, uint32_t dtype, uint32_t n, uint32_t k)
{
	uint64_t n_row_bytes = matrix_sample_row_bytes(dtype, k);
	uint64_t offset = op_arena_take(a, n * n_row_bytes, 0);
	uint64_t rng = op_arena_random(a, 1, UINT32_MAX);

	for (uint32_t j = 0; j < n; j++)
		matrix_sample_fill(dtype, k, &rng, a->map + offset + j * n_row_bytes);
	return (struct weights_tensor){
		.address = op_arena_address(a, offset),
		.dtype = dtype,
		.layout = MANIFEST_LAYOUT_RAW,
		.ne = {k, n, 1, 1},
		.n_bytes = n * n_row_bytes,
	};
}

/* Row j of the matrix times x. */
static struct matrix_sample_dot dot(
	const struct op_arena *a, const struct weights_tensor *w, uint32_t j, const float *x)
{
	uint32_t k = (uint32_t)w->ne[0];
	float *row = malloc(2 * sizeof(float) * k);
	const uint8_t *data = a->map + (w->address - vk_memory_get_address(a->memory));

	assert_non_null(row);
	matrix_sample_get(w->dtype, data + j * (w->n_bytes / w->ne[1]), k, row, row + k);
	struct matrix_sample_dot d = matrix_sample_dot(row, row + k, x, k);
	free(row);
	return d;
}

static void check_row(const struct op_arena *a, const struct shape *s,
	const struct op_matmul_params *p, const float *x, const float *y, const float *r)
{
	uint32_t at = 0;

	if (s->finish == OP_MATMUL_SWIGLU) {
		for (uint32_t j = 0; j < s->n[0]; j++) {
			struct matrix_sample_dot d = matrix_sample_swiglu(
				dot(a, &p->w[0], j, x), dot(a, &p->w[1], j, x));
			op_arena_check_near(a, y[j], (float)d.y, (float)d.tolerance, "swiglu", j);
		}
		return;
	}
	for (uint32_t part = 0; part < s->n_parts; part++) {
		for (uint32_t j = 0; j < s->n[part]; j++, at++) {
			struct matrix_sample_dot d = dot(a, &p->w[part], j, x);
			if (s->finish == OP_MATMUL_ADD)
				d.y += r[at];
			op_arena_check_near(
				a, y[at], (float)d.y, (float)d.tolerance + 1e-6f, "output", at);
		}
	}
}

static uint32_t get_width(const struct shape *s)
{
	uint32_t width = 0;

	for (uint32_t i = 0; i < s->n_parts; i++)
		width += s->n[i];
	return s->finish == OP_MATMUL_SWIGLU ? s->n[0] : width;
}

/* Staging of another's op, then ours. */
static void run(struct site *site, const struct shape *s, const struct op_matmul_params *p)
{
	struct vk_slice staging = on_device_whole(site->staging);
	struct err e = ERR_NULL;

	struct vk_command *c = op_arena_begin(&site->a);
	vk_command_fill(c, &staging, 0x7fc1fe7fu); /* NaN as f32 and as two f16 */
	vk_command_barrier(c);
	struct op_matrix_tile tile = scale_tile(site, s->tile);
	int r = tile.bn ? op_matrix_record_tile(site->a.pool, c, p, &tile, &e)
			: op_matrix_record(site->a.pool, c, p, &e);
	on_device_check(r, &e, "record");
	op_arena_run(&site->a);
}

static void run_shape(struct site *site, const struct shape *s)
{
	struct op_arena *a = &site->a;
	struct op_matmul_params p = {.n_parts = s->n_parts,
		.finish = s->finish,
		.eps = eps,
		.n_rows = s->n_rows,
		.staging = vk_memory_get_address(site->staging),
		.n_staging_bytes = STAGING_BYTES};
	uint32_t width = get_width(s), want[MAX_X_ROWS];

	op_arena_reset(a);
	for (uint32_t i = 0; i < s->n_parts; i++)
		p.w[i] = take_matrix(a, s->dtypes[i], s->n[i], s->k);
	uint64_t n_y = (uint64_t)s->m * width;
	uint64_t x = op_arena_take_floats(a, (uint64_t)MAX_X_ROWS * s->k);
	uint64_t gain = op_arena_take_floats(a, s->k);
	uint64_t y = op_arena_take(a, sizeof(float) * n_y, 0);
	uint64_t r = op_arena_take_floats(a, n_y);
	uint64_t want_at = op_arena_take(a, sizeof(want), 0);
	for (uint32_t i = 0; i < s->m; i++)
		want[i] = s->has_want ? op_arena_random(a, 0, MAX_X_ROWS - 1) : i;
	memcpy(a->map + want_at, want, sizeof(want[0]) * s->m);
	p.x = op_arena_address(a, x);
	p.y = op_arena_address(a, y);
	p.r = s->finish == OP_MATMUL_ADD ? op_arena_address(a, r) : 0;
	p.gain = s->has_norm ? op_arena_address(a, gain) : 0;
	p.want = s->has_want ? op_arena_address(a, want_at) : 0;
	p.m = op_arena_address(a, op_arena_take_u32(a, s->m));
	op_arena_expect(a, y, sizeof(float) * n_y);
	run(site, s, &p);

	float *h = malloc(sizeof(float) * s->k);
	assert_non_null(h);
	for (uint32_t i = 0; i < s->m; i++) {
		const float *row = op_arena_floats(a, x) + (uint64_t)want[i] * s->k;
		memcpy(h, row, sizeof(float) * s->k);
		if (s->has_norm)
			ref_ops_rms_norm(row, op_arena_floats(a, gain), s->k, eps, h);
		check_row(a, s, &p, h, op_arena_floats(a, y) + (uint64_t)i * width,
			op_arena_floats(a, r) + (uint64_t)i * width);
	}
	free(h);
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
	struct site site;

	init(&site);
	for (uint32_t i = 0; i < 12; i++) {
		struct op_arena *a = &site.a;
		struct shape s = {
			.dtypes = {dtype, dtype, dtype},
			.n_rows = rows[op_arena_random(a, 0, 2)],
			.k = k_unit * op_arena_random(a, 1, k_unit == 64 ? 7 : 3),
			.has_norm = i / 3 % 2,
			.has_want = i / 6 % 2,
			.finish = finishes[i % 3],
			.tile = *tile,
		};
		/* The second STORE, with norm: the rest is the same for f16. */
		s.tile.is_decoded = i == 3;
		s.m = i < 3 ? s.n_rows : op_arena_random(a, 1, s.n_rows);
		s.n_parts = s.finish == OP_MATMUL_STORE ? 1 + i / 3 % 3 : 1;
		s.n[0] = i == 3 || i == 4 ? 1 : op_arena_random(a, 1, 70);
		s.n[1] = op_arena_random(a, 1, 40);
		s.n[2] = op_arena_random(a, 1, 40);
		if (s.finish == OP_MATMUL_SWIGLU) {
			s.n_parts = 2;
			s.n[1] = s.n[0];
		}
		run_shape(&site, &s);
	}
	fini(&site);
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
	struct site site;

	(void)state;
	init(&site);
	for (uint32_t i = 0; i < ARRAY_SIZE(dtypes); i++) {
		uint32_t n_block = dtype_find(dtypes[i])->n_block;
		struct shape s = {.dtypes = {dtypes[i]},
			.n = {41},
			.n_parts = 1,
			.k = n_block * 3,
			.m = 20,
			.n_rows = 20,
			.finish = OP_MATMUL_STORE,
			.tile = small_tiles[0]};
		run_shape(&site, &s);
		s.tile = small_tiles[4];
		run_shape(&site, &s);
	}
	fini(&site);
}

/* What the op itself chooses, and matrices of different formats side by side. */
static void test_chosen_tiles(void **state)
{
	static const uint32_t rows[] = {17, 50, 80};
	struct site site;

	(void)state;
	init(&site);
	for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct shape s = {.dtypes = {DTYPE_Q8_0, DTYPE_F16, DTYPE_F16},
			.n = {150, 9, 20},
			.n_parts = 3,
			.k = 32 * op_arena_random(&site.a, 1, 20),
			.m = rows[i],
			.n_rows = rows[i],
			.has_norm = true,
			.finish = i == 1 ? OP_MATMUL_ADD : OP_MATMUL_STORE};
		run_shape(&site, &s);
		s.finish = OP_MATMUL_SWIGLU;
		s.n_parts = 2;
		s.n[1] = s.n[0];
		run_shape(&site, &s);
		s.dtypes[1] = s.dtypes[0];
		run_shape(&site, &s);
	}
	fini(&site);
}

/* f16 has no such numbers: the largest instead, never infinity. */
static void test_values_beyond_f16(void **state)
{
	enum { N = 5, K = 64, M = 17 };
	struct site site;
	struct shape s = {.tile = small_tiles[0]};

	(void)state;
	init(&site);
	struct op_arena *a = &site.a;
	uint64_t w = op_arena_take(a, N * K * sizeof(float), 0);
	uint64_t x = op_arena_take_floats(a, M * K), y = op_arena_take(a, M * N * sizeof(float), 0);
	for (uint32_t i = 0; i < N * K; i++)
		op_arena_floats(a, w)[i] = i % K == 0 ? 1e9f : 0;
	for (uint32_t i = 0; i < M; i++)
		op_arena_floats(a, x)[i * K] = i % 2 ? -7e4f : 0.5f;
	struct op_matmul_params p = {.n_parts = 1,
		.w[0] = {.address = op_arena_address(a, w),
			.dtype = DTYPE_F32,
			.layout = MANIFEST_LAYOUT_RAW,
			.ne = {K, N, 1, 1},
			.n_bytes = N * K * sizeof(float)},
		.x = op_arena_address(a, x),
		.y = op_arena_address(a, y),
		.m = op_arena_address(a, op_arena_take_u32(a, M)),
		.staging = vk_memory_get_address(site.staging),
		.n_staging_bytes = STAGING_BYTES,
		.n_rows = M};
	op_arena_expect(a, y, M * N * sizeof(float));
	run(&site, &s, &p);
	for (uint32_t i = 0; i < M * N; i++)
		op_arena_check_near(a, op_arena_floats(a, y)[i],
			i / N % 2 ? -65504.0f * 65504.0f : 0.5f * 65504.0f, 1.0f, "clamped", i);
	fini(&site);
}

/* The same recording gives the same bits, with k in runs too. */
static void test_bits_repeat(void **state)
{
	enum { N = 70, K = 512, M = 30 };
	static float first[M * N];
	struct site site;
	struct shape s = {.tile = small_tiles[3]};

	(void)state;
	init(&site);
	struct op_arena *a = &site.a;
	s.tile.n_streams = 5;
	struct op_matmul_params p = {.n_parts = 1,
		.w[0] = take_matrix(a, DTYPE_Q8_0, N, K),
		.x = op_arena_address(a, op_arena_take_floats(a, M * K)),
		.m = op_arena_address(a, op_arena_take_u32(a, M)),
		.staging = vk_memory_get_address(site.staging),
		.n_staging_bytes = STAGING_BYTES,
		.n_rows = M};
	for (uint32_t i = 0; i < 3; i++) {
		uint64_t y = op_arena_take(a, sizeof(first), 0);
		p.y = op_arena_address(a, y);
		op_arena_expect(a, y, sizeof(first));
		run(&site, &s, &p);
		if (i == 0)
			memcpy(first, op_arena_floats(a, y), sizeof(first));
		assert_memory_equal(op_arena_floats(a, y), first, sizeof(first));
	}
	fini(&site);
}

static void test_what_does_not_fit(void **state)
{
	struct site site;

	(void)state;
	init(&site);
	struct op_arena *a = &site.a;
	const struct op_matmul_params good = {.n_parts = 1,
		.w[0] = take_matrix(a, DTYPE_Q8_0, 8, 96),
		.x = op_arena_address(a, op_arena_take_floats(a, 20 * 96)),
		.y = op_arena_address(a, op_arena_take_floats(a, 20 * 8)),
		.m = op_arena_address(a, op_arena_take_u32(a, 20)),
		.staging = vk_memory_get_address(site.staging),
		.n_staging_bytes = 20 * 96 * 2,
		.n_rows = 20};
	struct op_matmul_params p = good;
	assert_true(op_matrix_fits(a->pool, &p));
#define REFUSED(change)                                    \
	do {                                               \
		p = good;                                  \
		change;                                    \
		assert_false(op_matrix_fits(a->pool, &p)); \
	} while (0)
	REFUSED(p.is_exact = true);
	REFUSED(p.staging = 0);
	REFUSED(p.n_staging_bytes--);
	REFUSED(p.n_rows = 8);
	REFUSED(p.w[0].dtype = 10); /* q2_K */
	REFUSED(p.w[0].layout = 7);
	REFUSED(p.w[0].address += 2);
	REFUSED(p.w[0].ne[0] = 64);
	REFUSED(p.w[0].ne[1]++);
	REFUSED(p.w[0].ne[2] = 2);
	REFUSED(p.x += 4);
	REFUSED(p.n_parts = 0);
	REFUSED(p.n_parts = ABI_MATMUL_MAX_PARTS + 1);
	REFUSED(p.finish = OP_MATMUL_SWIGLU);
#undef REFUSED
	fini(&site);
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
