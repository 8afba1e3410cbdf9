/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts of many rows on the device's matrices, as a layer has them behind routing and grouping,
 * against scalar references: several block formats, experts that nobody takes and that have no
 * matrices then, experts with more rows than a tile, poison in all that is not to be read. Skips
 * where the device has no matrices or the build no kernels for them.
 */
#include <math.h>

#include "proto/manifest.h"
#include "tests/ref/ref-ops.h"
#include "tests/vulkan/matrix-sample.h"
#include "tests/vulkan/op-arena.h"
#include "workerd/ops/experts.h"
#include "workerd/ops/group.h"
#include "workerd/ops/matrix-experts.h"
#include "workerd/ops/route.h"

enum {
	ARENA_BYTES = 16 << 20,
	STAGING_BYTES = 1 << 20,
	GATE = 0,
	UP = 1,
	DOWN = 2,
	N_PARTS = 3,
	MAX_USED = 8,
	MAX_FF = 256
};

static uint64_t seed;
static const float eps = 1e-5f;

struct shape {
	uint32_t dtypes[N_PARTS];
	uint32_t n_expert;
	uint32_t n_used;
	uint32_t n_embd;
	uint32_t n_ff;
	uint32_t m;
	uint32_t n_rows;
	bool has_norm;
	bool has_favourite; /* expert 1 is taken by all rows */
	bool is_chained;    /* h is f16 */
	uint32_t wide_rows;
};

/* A layer in the arena: offsets. */
struct layer {
	struct weights_tensor w[N_PARTS];
	uint64_t tables[N_PARTS];
	uint64_t gain, x, logits, choice, pairs, groups, wide, h, z, y, y_before, m;
	struct vk_memory *staging;
};

static void take_matrices(struct op_arena *a, const struct shape *s, uint32_t i, uint32_t n,
	uint32_t k, struct layer *l)
{
	uint64_t n_row_bytes = matrix_sample_row_bytes(s->dtypes[i], k);
	uint64_t offset = op_arena_take(a, s->n_expert * n * n_row_bytes, 0);
	uint64_t rng = op_arena_random(a, 1, UINT32_MAX);

	for (uint32_t j = 0; j < s->n_expert * n; j++)
		matrix_sample_fill(s->dtypes[i], k, &rng, a->map + offset + j * n_row_bytes);
	l->w[i] = (struct weights_tensor){.address = op_arena_address(a, offset),
		.dtype = s->dtypes[i],
		.layout = MANIFEST_LAYOUT_RAW,
		.ne = {k, n, s->n_expert, 1},
		.n_bytes = s->n_expert * n * n_row_bytes};
	l->tables[i] = op_arena_take(a, sizeof(uint64_t) * s->n_expert, 0);
	memset(a->map + l->tables[i], 0, sizeof(uint64_t) * s->n_expert);
}

static void layer_init(struct op_arena *a, const struct shape *s, struct layer *l)
{
	uint64_t n_pairs = (uint64_t)s->m * s->n_used;

	op_arena_reset(a);
	take_matrices(a, s, GATE, s->n_ff, s->n_embd, l);
	take_matrices(a, s, UP, s->n_ff, s->n_embd, l);
	take_matrices(a, s, DOWN, s->n_embd, s->n_ff, l);
	l->gain = op_arena_take_floats(a, s->n_embd);
	l->x = op_arena_take_floats(a, (uint64_t)s->m * s->n_embd);
	l->logits = op_arena_take_floats(a, (uint64_t)s->m * s->n_expert);
	for (uint32_t i = 0; i < s->m && s->has_favourite; i++)
		op_arena_floats(a, l->logits)[i * s->n_expert + 1] = 2;
	l->choice = op_arena_take(a, sizeof(struct abi_choice) * n_pairs, 0);
	l->pairs = op_arena_take(a, sizeof(uint32_t) * n_pairs, 0);
	l->groups = op_arena_take(a,
		sizeof(struct abi_group) * op_group_count_slots(s->m, s->n_expert, s->n_used), 0);
	l->wide = op_arena_take(a,
		sizeof(struct abi_group) *
			op_group_count_wide(s->m, s->n_expert, s->n_used, s->wide_rows),
		0);
	l->h = op_arena_take(a, sizeof(float) * n_pairs * s->n_ff, 0);
	l->z = op_arena_take(a, sizeof(float) * n_pairs * s->n_embd, 0);
	l->y = op_arena_take_floats(a, (uint64_t)s->m * s->n_embd);
	l->y_before = op_arena_take(a, sizeof(float) * s->m * s->n_embd, 0);
	memcpy(a->map + l->y_before, a->map + l->y, sizeof(float) * s->m * s->n_embd);
	l->m = op_arena_take_u32(a, s->m);
}

static uint32_t get_choice(const struct op_arena *a, const struct shape *s, const struct layer *l,
	uint32_t row, uint32_t ids[ABI_MAX_EXPERTS_USED], float weights[ABI_MAX_EXPERTS_USED])
{
	ref_ops_route(op_arena_floats(a, l->logits) + (uint64_t)row * s->n_expert, s->n_expert,
		s->n_used, ids, weights);
	return s->n_used;
}

/* Tables with the experts that the rows take, and nothing else. */
static void fill_tables(struct op_arena *a, const struct shape *s, const struct layer *l)
{
	uint32_t ids[ABI_MAX_EXPERTS_USED];
	float weights[ABI_MAX_EXPERTS_USED];

	for (uint32_t i = 0; i < N_PARTS; i++) {
		uint64_t *table = (uint64_t *)(a->map + l->tables[i]);
		for (uint32_t row = 0; row < s->m; row++)
			for (uint32_t r = get_choice(a, s, l, row, ids, weights); r-- > 0;)
				table[ids[r]] =
					l->w[i].address + ids[r] * (l->w[i].n_bytes / s->n_expert);
	}
}

static struct op_experts_params get_params(
	const struct op_arena *a, const struct shape *s, const struct layer *l, bool is_down)
{
	struct op_experts_params p = {.finish = is_down ? OP_EXPERTS_MIX : OP_EXPERTS_SWIGLU,
		.x = op_arena_address(a, is_down ? l->h : l->x),
		.y = op_arena_address(a, is_down ? l->y : l->h),
		.z = op_arena_address(a, l->z),
		.gain = s->has_norm && !is_down ? op_arena_address(a, l->gain) : 0,
		.choice = op_arena_address(a, l->choice),
		.pairs = op_arena_address(a, l->pairs),
		.groups = op_arena_address(a, l->groups),
		.wide = op_arena_address(a, l->wide),
		.wide_rows = s->wide_rows,
		.staging = vk_memory_get_address(l->staging),
		.n_staging_bytes = STAGING_BYTES,
		.m = op_arena_address(a, l->m),
		.n_used = s->n_used,
		.eps = eps,
		.n_rows = s->n_rows};

	for (uint32_t i = 0; i < (is_down ? 1 : 2); i++) {
		p.w[i] = l->w[is_down ? DOWN : i];
		p.tables[i] = op_arena_address(a, l->tables[is_down ? DOWN : i]);
	}
	return p;
}

static void record_routing(struct op_arena *a, const struct shape *s, const struct layer *l)
{
	struct err e = ERR_NULL;
	struct op_route_params route = {.logits = op_arena_address(a, l->logits),
		.choice = op_arena_address(a, l->choice),
		.m = op_arena_address(a, l->m),
		.n_expert = s->n_expert,
		.n_used = s->n_used,
		.n_rows = s->n_rows};
	struct op_group_params group = {.choice = route.choice,
		.pairs = op_arena_address(a, l->pairs),
		.groups = op_arena_address(a, l->groups),
		.wide = op_arena_address(a, l->wide),
		.wide_rows = s->wide_rows,
		.m = route.m,
		.n_expert = s->n_expert,
		.n_used = s->n_used,
		.n_rows = s->n_rows};

	on_device_check(op_route_record(a->pool, a->command, &route, &e), &e, "route");
	vk_command_barrier(a->command);
	on_device_check(op_group_record(a->pool, a->command, &group, &e), &e, "group");
	vk_command_barrier(a->command);
}

static void run_layer(struct op_arena *a, const struct shape *s, const struct layer *l)
{
	uint64_t n_pairs = (uint64_t)s->m * s->n_used;
	struct op_experts_params up = get_params(a, s, l, false);
	struct op_experts_params down = get_params(a, s, l, true);
	struct vk_slice staging = on_device_whole(l->staging);
	struct err e = ERR_NULL;

	fill_tables(a, s, l);
	op_arena_expect(a, l->choice, sizeof(struct abi_choice) * n_pairs);
	op_arena_expect(a, l->pairs, sizeof(uint32_t) * n_pairs);
	op_arena_expect(a, l->groups,
		sizeof(struct abi_group) * op_group_count_slots(s->m, s->n_expert, s->n_used));
	op_arena_expect(a, l->wide,
		sizeof(struct abi_group) *
			op_group_count_wide(s->m, s->n_expert, s->n_used, s->wide_rows));
	op_arena_expect(a, l->h, (s->is_chained ? 2 : 4) * n_pairs * s->n_ff);
	op_arena_expect(a, l->z, sizeof(float) * n_pairs * s->n_embd);
	op_arena_expect(a, l->y, sizeof(float) * s->m * s->n_embd);
	assert_true(op_matrix_experts_fits(a->pool, &up));
	assert_true(op_matrix_experts_fits(a->pool, &down));
	if (s->is_chained)
		assert_true(op_matrix_experts_chain(a->pool, &up, &down));
	op_arena_begin(a);
	vk_command_fill(a->command, &staging, 0x7fc1fe7fu); /* NaN as two f16 */
	record_routing(a, s, l);
	on_device_check(op_matrix_experts_record(a->pool, a->command, &up, &e), &e, "up");
	vk_command_barrier(a->command);
	on_device_check(op_matrix_experts_record(a->pool, a->command, &down, &e), &e, "down");
	op_arena_run(a);
}

/* Row j of an expert's matrix times x. */
static struct matrix_sample_dot dot(const struct op_arena *a, const struct weights_tensor *w,
	uint32_t expert, uint32_t j, const float *x)
{
	uint32_t k = (uint32_t)w->ne[0];
	float *row = malloc(2 * sizeof(float) * k);
	const uint8_t *data = a->map + (w->address - vk_memory_get_address(a->memory));

	assert_non_null(row);
	matrix_sample_get(w->dtype,
		data + (expert * w->ne[1] + j) * (w->n_bytes / (w->ne[1] * w->ne[2])), k, row,
		row + k);
	struct matrix_sample_dot d = matrix_sample_dot(row, row + k, x, k);
	free(row);
	return d;
}

/* h of a pair, as numbers; and how far each is rounded. */
static void get_h(const struct op_arena *a, const struct shape *s, const struct layer *l,
	uint32_t pair, float *ret_h)
{
	const uint16_t *halves = (const uint16_t *)(a->map + l->h) + (uint64_t)pair * s->n_ff;
	const float *floats = op_arena_floats(a, l->h) + (uint64_t)pair * s->n_ff;

	for (uint32_t j = 0; j < s->n_ff; j++) {
		uint32_t at = j;
		/* As the kernel behind it wants them. */
		if (s->dtypes[DOWN] == DTYPE_Q4_K)
			at = j / 4 * 4 + j % 2 * 2 + j / 2 % 2;
		ret_h[j] = s->is_chained ? ref_ops_from_half(halves[at]) : floats[j];
	}
}

/* A row's h against the reference, its y against that of the h that was found. */
static void check_row(
	const struct op_arena *a, const struct shape *s, const struct layer *l, uint32_t row)
{
	const float *x = op_arena_floats(a, l->x) + (uint64_t)row * s->n_embd;
	const float *y = op_arena_floats(a, l->y) + (uint64_t)row * s->n_embd;
	const float *before = op_arena_floats(a, l->y_before) + (uint64_t)row * s->n_embd;
	float *in = malloc(sizeof(float) * s->n_embd);
	float weights[ABI_MAX_EXPERTS_USED], h[MAX_USED][MAX_FF];
	uint32_t ids[ABI_MAX_EXPERTS_USED];

	assert_non_null(in);
	assert_true(s->n_used <= MAX_USED && s->n_ff <= MAX_FF);
	memcpy(in, x, sizeof(float) * s->n_embd);
	if (s->has_norm)
		ref_ops_rms_norm(x, op_arena_floats(a, l->gain), s->n_embd, eps, in);
	(void)get_choice(a, s, l, row, ids, weights);
	for (uint32_t r = 0; r < s->n_used; r++) {
		get_h(a, s, l, row * s->n_used + r, h[r]);
		for (uint32_t j = 0; j < s->n_ff; j++) {
			struct matrix_sample_dot d =
				matrix_sample_swiglu(dot(a, &l->w[GATE], ids[r], j, in),
					dot(a, &l->w[UP], ids[r], j, in));
			double rounding = s->is_chained ? 0x1p-11 * fabs(d.y) + 0x1p-25 : 0;
			op_arena_check_near(a, h[r][j], (float)d.y,
				(float)(d.tolerance * (1 + 0x1p-11) + rounding), "h", j);
		}
	}
	for (uint32_t j = 0; j < s->n_embd; j++) {
		double expected = before[j], tolerance = 1e-5;
		for (uint32_t r = 0; r < s->n_used; r++) {
			struct matrix_sample_dot d = dot(a, &l->w[DOWN], ids[r], j, h[r]);
			expected += (double)weights[r] * d.y;
			tolerance += (double)weights[r] * d.tolerance + 2e-6 * fabs(d.y);
		}
		op_arena_check_near(a, y[j], (float)expected, (float)tolerance, "y", j);
	}
	free(in);
}

static void run_shape(const struct shape *s, struct op_arena *a)
{
	struct layer l;

	l.staging = on_device_memory(a->d, VK_MEMORY_SCRATCH, STAGING_BYTES, false);
	layer_init(a, s, &l);
	run_layer(a, s, &l);
	for (uint32_t row = 0; row < s->m; row++)
		check_row(a, s, &l, row);
	vk_memory_free(l.staging);
}

static void run_format(uint32_t dtype)
{
	static const uint32_t wide_rows[] = {16, 64, 48, 32};
	uint32_t unit = dtype_find(dtype)->n_block == 256 ? 256 : 64;
	struct op_arena a;

	op_arena_init(&a, ARENA_BYTES, seed);
	for (uint32_t i = 0; i < 4; i++) {
		struct shape s = {.dtypes = {dtype, dtype, dtype},
			.n_expert = op_arena_random(&a, 4, 12),
			.n_used = op_arena_random(&a, 1, 4),
			.n_embd = unit * op_arena_random(&a, 1, unit == 64 ? 3 : 1),
			.n_ff = unit * op_arena_random(&a, 1, unit == 64 ? 2 : 1),
			.n_rows = i == 3 ? 150 : 48,
			.has_norm = i % 2 == 0,
			.has_favourite = i == 3,
			.is_chained = i != 1,
			.wide_rows = wide_rows[i]};
		s.m = op_arena_random(&a, s.n_rows / 2, s.n_rows);
		run_shape(&s, &a);
	}
	op_arena_fini(&a);
}

static void test_q8_0(void **state)
{
	(void)state;
	run_format(DTYPE_Q8_0);
}

static void test_q4_k(void **state)
{
	(void)state;
	run_format(DTYPE_Q4_K);
}

/* Gate and up in formats that no one kernel reads together. */
static void test_mixed_formats(void **state)
{
	struct shape s = {.dtypes = {DTYPE_Q6_K, DTYPE_F16, DTYPE_Q8_0},
		.n_expert = 5,
		.n_used = 2,
		.n_embd = 256,
		.n_ff = 96,
		.m = 37,
		.n_rows = 64,
		.has_norm = true,
		.wide_rows = 16};
	struct op_arena a;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	run_shape(&s, &a);
	s.dtypes[GATE] = DTYPE_Q4_K; /* which wants x in another order */
	s.n_ff = 64;
	run_shape(&s, &a);
	s = (struct shape){.dtypes = {DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K},
		.n_expert = 5,
		.n_used = 2,
		.n_embd = 256,
		.n_ff = 256,
		.m = 37,
		.n_rows = 64,
		.is_chained = true,
		.wide_rows = 16};
	run_shape(&s, &a);
	s.dtypes[GATE] = s.dtypes[UP] = DTYPE_Q8_0;
	s.dtypes[DOWN] = DTYPE_Q4_K;
	run_shape(&s, &a);
	op_arena_fini(&a);
}

static void test_what_does_not_fit(void **state)
{
	struct shape s = {.dtypes = {DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_Q8_0},
		.n_expert = 4,
		.n_used = 2,
		.n_embd = 64,
		.n_ff = 32,
		.m = 20,
		.n_rows = 20,
		.wide_rows = 32};
	struct op_arena a;
	struct layer l;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	l.staging = on_device_memory(a.d, VK_MEMORY_SCRATCH, STAGING_BYTES, false);
	layer_init(&a, &s, &l);
	const struct op_experts_params good = get_params(&a, &s, &l, false);
	struct op_experts_params p = good;
	assert_true(op_matrix_experts_fits(a.pool, &p));
#define REFUSED(change)                                           \
	do {                                                      \
		p = good;                                         \
		change;                                           \
		assert_false(op_matrix_experts_fits(a.pool, &p)); \
	} while (0)
	REFUSED(p.is_exact = true);
	REFUSED(p.is_far = true);
	REFUSED(p.wide = 0);
	REFUSED(p.staging = 0);
	REFUSED(p.n_staging_bytes = 20 * 64 * 2 - 1);
	REFUSED(p.n_rows = 1); /* few: no groups */
	REFUSED(p.wide_rows = 24);
	REFUSED(p.n_used = 5);
	REFUSED(p.n_used = 0);
	REFUSED(p.w[1].dtype = 10); /* q2_K */
	REFUSED(p.w[1].ne[1] = 64);
	REFUSED(p.w[0].address += 2);
	REFUSED(p.x += 4);
#undef REFUSED
	struct op_experts_params second = get_params(&a, &s, &l, true);
#define NOT_CHAINED(change)                                                 \
	do {                                                                \
		p = good;                                                   \
		change;                                                     \
		assert_false(op_matrix_experts_chain(a.pool, &p, &second)); \
		assert_false(p.is_half || second.is_half);                  \
	} while (0)
	NOT_CHAINED(p.w[1].dtype = DTYPE_Q4_0);
	NOT_CHAINED(p.is_exact = true);
	NOT_CHAINED(p.y += 16);
#undef NOT_CHAINED
	vk_memory_free(l.staging);
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_q8_0),
		CASE(test_q4_k),
		CASE(test_mixed_formats),
		CASE(test_what_does_not_fit),
	};

	on_device_warm_up();
	struct vk_device *d = on_device_new();
	bool has = vk_device_get_info(d)->n_matrices > 0 && kernels_has(KERNELS_MATRIX_F16);
	vk_device_free(d);
	if (!has) {
		fprintf(stderr, "skipped: no matrices of f16 on this device or in this build\n");
		return CASE_SKIP;
	}
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
