/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routing, grouping and the experts' matrices as a layer has them, against the scalar reference:
 * random shapes of every block format, few rows and many. Experts lie in any order, and where one
 * that no row takes should be there is nothing. A row's result is the same bits in both shapes of
 * work and whatever rows are computed beside it.
 */
#include <inttypes.h>
#include <math.h>

#include "tests/ref/ref-ops.h"
#include "tests/vulkan/op-arena.h"
#include "workerd/ops/experts.h"
#include "workerd/ops/group.h"
#include "workerd/ops/route.h"

enum { MAX_M = 65, ARENA_BYTES = 32 << 20, GATE = 0, UP = 1, DOWN = 2, N_MATRICES = 3 };

static uint64_t seed;
static const float eps = 1e-5f;

struct shape {
	uint32_t dtypes[N_MATRICES];
	uint32_t n_expert;
	uint32_t n_used;
	uint32_t n_embd;
	uint32_t n_ff;
	uint32_t m;
	uint32_t n_rows;
	bool has_norm;
	bool is_far;
	uint32_t skew;
};

/* A layer in the arena: offsets, and the matrices as floats. */
struct layer {
	struct weights_tensor w[N_MATRICES];
	float *floats[N_MATRICES]; /* [n_expert][n][k], as they lie */
	uint32_t *places;          /* [n_expert] matrix of the expert */
	uint64_t tables[N_MATRICES];
	uint64_t gain, x, logits, choice, pairs, groups, h, z, y, y_before, m;
};

static void take_matrices(struct op_arena *a, const struct shape *s, uint32_t i, uint32_t n,
	uint32_t k, struct layer *l)
{
	struct weights_tensor *w = &l->w[i];

	*w = op_arena_take_matrix(a, s->dtypes[i], s->n_expert * n, k, s->skew);
	l->floats[i] = op_arena_dequantize(a, w);
	w->ne[1] = n;
	w->ne[2] = s->n_expert;
	l->tables[i] = op_arena_take(a, sizeof(uint64_t) * s->n_expert, 0);
}

static void layer_init(struct op_arena *a, const struct shape *s, struct layer *l)
{
	uint64_t n_pairs = (uint64_t)MAX_M * s->n_used;

	take_matrices(a, s, GATE, s->n_ff, s->n_embd, l);
	take_matrices(a, s, UP, s->n_ff, s->n_embd, l);
	take_matrices(a, s, DOWN, s->n_embd, s->n_ff, l);
	l->places = malloc(sizeof(uint32_t) * s->n_expert);
	assert_non_null(l->places);
	for (uint32_t e = 0; e < s->n_expert; e++) {
		uint32_t other = op_arena_random(a, 0, e);
		l->places[e] = l->places[other];
		l->places[other] = e;
	}
	l->gain = op_arena_take_floats(a, s->n_embd);
	l->x = op_arena_take_floats(a, (uint64_t)MAX_M * s->n_embd);
	l->logits = op_arena_take_floats(a, (uint64_t)MAX_M * s->n_expert);
	l->choice = op_arena_take(a, sizeof(struct abi_choice) * n_pairs, 0);
	l->pairs = op_arena_take(a, sizeof(uint32_t) * n_pairs, 0);
	l->groups = op_arena_take(a,
		sizeof(struct abi_group) * op_group_count_slots(MAX_M, s->n_expert, s->n_used), 0);
	l->h = op_arena_take(a, sizeof(float) * n_pairs * s->n_ff, 0);
	l->z = op_arena_take(a, sizeof(float) * n_pairs * s->n_embd, 0);
	l->y = op_arena_take(a, sizeof(float) * MAX_M * s->n_embd, 0);
	l->y_before = op_arena_take_floats(a, (uint64_t)MAX_M * s->n_embd);
	l->m = op_arena_take_u32(a, 0);
}

static void layer_fini(struct layer *l)
{
	for (uint32_t i = 0; i < N_MATRICES; i++)
		free(l->floats[i]);
	free(l->places);
}

static const float *get_matrix(const struct layer *l, uint32_t i, uint32_t expert)
{
	return l->floats[i] + l->places[expert] * l->w[i].ne[0] * l->w[i].ne[1];
}

/* Tables with the experts that the rows take, and nothing else. */
static void fill_tables(struct op_arena *a, const struct shape *s, const struct layer *l)
{
	uint32_t ids[ABI_MAX_EXPERTS_USED];
	float weights[ABI_MAX_EXPERTS_USED];

	for (uint32_t i = 0; i < N_MATRICES; i++) {
		uint64_t *table = (uint64_t *)(a->map + l->tables[i]);
		memset(table, 0, sizeof(uint64_t) * s->n_expert);
		for (uint32_t row = 0; row < s->m; row++) {
			ref_ops_route(op_arena_floats(a, l->logits) + row * s->n_expert,
				s->n_expert, s->n_used, ids, weights);
			for (uint32_t r = 0; r < s->n_used; r++)
				table[ids[r]] = l->w[i].address +
						l->places[ids[r]] * (l->w[i].n_bytes / s->n_expert);
		}
	}
}

static struct op_experts_params get_params(
	const struct op_arena *a, const struct shape *s, const struct layer *l, bool is_down)
{
	struct op_experts_params p = {.is_exact = true,
		.finish = is_down ? OP_EXPERTS_MIX : OP_EXPERTS_SWIGLU,
		.x = op_arena_address(a, is_down ? l->h : l->x),
		.y = op_arena_address(a, is_down ? l->y : l->h),
		.z = op_arena_address(a, l->z),
		.gain = s->has_norm && !is_down ? op_arena_address(a, l->gain) : 0,
		.logits = op_arena_address(a, l->logits),
		.choice = op_arena_address(a, l->choice),
		.pairs = op_arena_address(a, l->pairs),
		.groups = op_arena_address(a, l->groups),
		.m = op_arena_address(a, l->m),
		.n_used = s->n_used,
		.is_far = s->is_far,
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
	uint32_t n_slots = op_group_count_slots(s->m, s->n_expert, s->n_used);
	struct op_experts_params up = get_params(a, s, l, false);
	struct op_experts_params down = get_params(a, s, l, true);
	struct err e = ERR_NULL;

	memcpy(a->map + l->m, &s->m, sizeof(s->m));
	memcpy(a->map + l->y, a->map + l->y_before, sizeof(float) * s->m * s->n_embd);
	fill_tables(a, s, l);
	memset(a->is_written, 0, a->n_bytes);
	op_arena_expect(a, l->choice, sizeof(struct abi_choice) * n_pairs);
	op_arena_expect(a, l->h, sizeof(float) * n_pairs * s->n_ff);
	op_arena_expect(a, l->y, sizeof(float) * s->m * s->n_embd);
	op_arena_begin(a);
	if (op_experts_is_grouped(s->n_rows, s->n_expert, s->n_used)) {
		op_arena_expect(a, l->pairs, sizeof(uint32_t) * n_pairs);
		op_arena_expect(a, l->groups, sizeof(struct abi_group) * n_slots);
		op_arena_expect(a, l->z, sizeof(float) * n_pairs * s->n_embd);
		record_routing(a, s, l);
	}
	on_device_check(op_experts_record(a->pool, a->command, &up, &e), &e, "up");
	vk_command_barrier(a->command);
	on_device_check(op_experts_record(a->pool, a->command, &down, &e), &e, "down");
	op_arena_run(a);
}

/* h of one pair against the reference. */
static void check_h(const struct op_arena *a, const struct shape *s, const struct layer *l,
	uint32_t pair, uint32_t expert)
{
	const float *x = op_arena_floats(a, l->x) + pair / s->n_used * s->n_embd;
	const float *h = op_arena_floats(a, l->h) + (uint64_t)pair * s->n_ff;
	float *all = malloc(sizeof(float) * (s->n_embd + 4 * s->n_ff));

	assert_non_null(all);
	float *in = all, *gate = in + s->n_embd, *up = gate + s->n_ff;
	float *gate_scale = up + s->n_ff, *up_scale = gate_scale + s->n_ff;
	memcpy(in, x, sizeof(float) * s->n_embd);
	if (s->has_norm)
		ref_ops_rms_norm(x, op_arena_floats(a, l->gain), s->n_embd, eps, in);
	ref_ops_matvec(get_matrix(l, GATE, expert), in, s->n_ff, s->n_embd, gate, gate_scale);
	ref_ops_matvec(get_matrix(l, UP, expert), in, s->n_ff, s->n_embd, up, up_scale);
	for (uint32_t j = 0; j < s->n_ff; j++) {
		/* |silu'| is at most 1.1. */
		float tolerance = 1.1f * (4e-6f * gate_scale[j] + 1e-6f) * fabsf(up[j]) +
				  fabsf(ref_ops_silu(gate[j])) * (4e-6f * up_scale[j] + 1e-6f) +
				  1e-6f;
		op_arena_check_near(a, h[j], ref_ops_silu(gate[j]) * up[j], tolerance, "h",
			(uint64_t)pair * s->n_ff + j);
	}
	free(all);
}

/* A row's experts and its y, from the h that was found. */
static void check_row(
	const struct op_arena *a, const struct shape *s, const struct layer *l, uint32_t row)
{
	const struct abi_choice *choice =
		(struct abi_choice *)(a->map + l->choice) + row * s->n_used;
	const float *y = op_arena_floats(a, l->y) + row * s->n_embd;
	float *part = malloc(sizeof(float) * 2 * s->n_embd), *scale = part + s->n_embd;
	double *expected = calloc(2 * s->n_embd, sizeof(double));
	double *tolerance = expected + s->n_embd;
	uint32_t ids[ABI_MAX_EXPERTS_USED];
	float weights[ABI_MAX_EXPERTS_USED];

	assert_non_null(part);
	assert_non_null(expected);
	ref_ops_route(op_arena_floats(a, l->logits) + row * s->n_expert, s->n_expert, s->n_used,
		ids, weights);
	for (uint32_t r = 0; r < s->n_used; r++) {
		uint32_t pair = row * s->n_used + r;
		assert_int_equal(choice[r].expert, ids[r]);
		op_arena_check_near(a, choice[r].weight, weights[r], 2e-6f, "weight", pair);
		check_h(a, s, l, pair, ids[r]);
		ref_ops_matvec(get_matrix(l, DOWN, ids[r]),
			op_arena_floats(a, l->h) + (uint64_t)pair * s->n_ff, s->n_embd, s->n_ff,
			part, scale);
		for (uint32_t j = 0; j < s->n_embd; j++) {
			expected[j] += (double)choice[r].weight * part[j];
			tolerance[j] += (double)choice[r].weight * scale[j];
		}
	}
	for (uint32_t j = 0; j < s->n_embd; j++)
		op_arena_check_near(a, y[j],
			(float)(op_arena_floats(a, l->y_before)[row * s->n_embd + j] + expected[j]),
			(float)(4e-6 * tolerance[j] + 1e-6), "y", row * s->n_embd + j);
	free(part);
	free(expected);
}

/* The layer has been run; with the loads for host memory it is the same bits. */
static void check_far(struct op_arena *a, const struct shape *s, const struct layer *l)
{
	uint64_t n_h_bytes = sizeof(float) * s->m * s->n_used * s->n_ff;
	uint64_t n_y_bytes = sizeof(float) * s->m * s->n_embd;
	uint8_t *near = malloc(n_h_bytes + n_y_bytes);
	struct shape far = *s;

	assert_non_null(near);
	memcpy(near, a->map + l->h, n_h_bytes);
	memcpy(near + n_h_bytes, a->map + l->y, n_y_bytes);
	memset(a->map + l->h, 0xff, n_h_bytes);
	far.is_far = true;
	run_layer(a, &far, l);
	assert_memory_equal(a->map + l->h, near, n_h_bytes);
	assert_memory_equal(a->map + l->y, near + n_h_bytes, n_y_bytes);
	free(near);
}

static void run_shape(struct op_arena *a, const struct shape *s)
{
	struct layer l;

	op_arena_reset(a);
	layer_init(a, s, &l);
	run_layer(a, s, &l);
	for (uint32_t row = 0; row < s->m; row++)
		check_row(a, s, &l, row);
	if (s->dtypes[GATE] == DTYPE_Q8_0) /* the others' loads are the same ones */
		check_far(a, s, &l);
	layer_fini(&l);
}

/* Number i of 16: few rows and many, sizes at random. */
static void run_shape_number(
	struct op_arena *a, uint32_t dtype, uint32_t unit, uint32_t skew, uint32_t i)
{
	static const uint32_t rows[] = {1, 2, 64, 5};
	uint32_t most = 128 / unit > 4 ? 4 : 128 / unit + (unit > 128);
	struct shape s = {.dtypes = {dtype, dtype, dtype},
		.n_expert = i % 4 == 3 ? 64 : op_arena_random(a, 1, 12),
		.n_embd = unit * op_arena_random(a, 1, most + 40 / unit),
		.n_ff = unit * op_arena_random(a, 1, most + 40 / unit),
		.n_rows = rows[i % ARRAY_SIZE(rows)],
		.has_norm = i % 5 != 0,
		.skew = skew};

	s.m = i < 4 ? s.n_rows : op_arena_random(a, 1, s.n_rows);
	s.n_used = op_arena_random(a, 1, s.n_expert < 6 ? s.n_expert : 6);
	run_shape(a, &s);
}

static void run_format(uint32_t dtype, uint32_t unit, uint32_t skew)
{
	struct op_arena a;

	op_arena_init(&a, ARENA_BYTES, seed);
	for (uint32_t i = 0; i < 16; i++)
		run_shape_number(&a, dtype, unit, skew, i);
	op_arena_fini(&a);
}

/*
 * What surrounds the reading of a format is the same text in all of them, and each combination is a
 * kernel to compile: one row, which is two kernels. test_mixed_formats has groups of rows.
 */
static void run_few(uint32_t dtype, uint32_t unit, uint32_t skew)
{
	struct op_arena a;

	op_arena_init(&a, ARENA_BYTES, seed);
	for (uint32_t i = 0; i < 3; i++)
		run_shape_number(&a, dtype, unit, skew, 0);
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

/* Rows of many lines that begin anywhere in one, each as far from its boundary as can be. */
static void test_far_rows(void **state)
{
	struct op_arena a;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	for (uint32_t i = 0; i < 12; i++) {
		struct shape s = {.dtypes = {DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_Q8_0},
			.n_expert = 3,
			.n_used = 2,
			.n_embd = 64 * op_arena_random(&a, 1, 40),
			.n_ff = 64 * op_arena_random(&a, 1, 4),
			.m = 1 + i % 3,
			.n_rows = 1 + i % 3,
			.has_norm = i % 2 == 0,
			.skew = 4 * op_arena_random(&a, 0, 63)};
		run_shape(&a, &s);
	}
	op_arena_fini(&a);
}

/*
 * Gate and up in formats that no one kernel reads together, and the mixture that files of q4_k_m
 * have.
 */
static void test_mixed_formats(void **state)
{
	static const struct {
		uint32_t dtypes[N_MATRICES];
		uint32_t n_embd, n_ff, n_rows;
	} rows[] = {
		{{DTYPE_Q8_0, DTYPE_F16, DTYPE_F32}, 64, 37, 1},
		{{DTYPE_Q8_0, DTYPE_F16, DTYPE_F32}, 64, 37, 3},
		{{DTYPE_Q8_0, DTYPE_F16, DTYPE_F32}, 64, 37, 33},
		{{DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K}, 256, 256, 33},
		{{DTYPE_Q4_0, DTYPE_Q4_0, DTYPE_Q5_K}, 64, 512, 33},
	};
	struct op_arena a;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct shape s = {.n_expert = 16,
			.n_used = 3,
			.n_embd = rows[i].n_embd,
			.n_ff = rows[i].n_ff,
			.m = rows[i].n_rows,
			.n_rows = rows[i].n_rows,
			.has_norm = true};
		memcpy(s.dtypes, rows[i].dtypes, sizeof(s.dtypes));
		run_shape(&a, &s);
	}
	op_arena_fini(&a);
}

static void check_independent(uint32_t dtype, uint32_t n_expert, uint32_t n_used)
{
	static const uint32_t ms[] = {1, 2, 15, 16, 17, 64, 65};
	enum { N_EMBD = 96, N_FF = 64 };
	struct shape s = {.dtypes = {dtype, dtype, dtype},
		.n_expert = n_expert,
		.n_used = n_used,
		.n_embd = N_EMBD,
		.n_ff = N_FF,
		.has_norm = true};
	float first[N_EMBD], last[N_EMBD];
	bool has_few = false, has_many = false;
	struct op_arena a;
	struct layer l;

	op_arena_init(&a, ARENA_BYTES, seed);
	layer_init(&a, &s, &l);
	for (uint32_t i = 0; i < ARRAY_SIZE(ms); i++) {
		s.m = ms[i];
		for (s.n_rows = 1; s.n_rows < s.m;)
			s.n_rows *= 2;
		bool is_many = op_experts_is_grouped(s.n_rows, n_expert, n_used);
		has_many |= is_many;
		has_few |= !is_many;
		run_layer(&a, &s, &l);
		if (i == 0)
			memcpy(first, a.map + l.y, sizeof(first));
		assert_memory_equal(a.map + l.y, first, sizeof(first));
	}
	assert_true(has_few && has_many);
	/* The last row too, alone. */
	memcpy(last, a.map + l.y + sizeof(last) * (MAX_M - 1), sizeof(last));
	memcpy(a.map + l.x, a.map + l.x + sizeof(last) * (MAX_M - 1), sizeof(last));
	memcpy(a.map + l.y_before, a.map + l.y_before + sizeof(last) * (MAX_M - 1), sizeof(last));
	memcpy(a.map + l.logits, op_arena_floats(&a, l.logits) + (MAX_M - 1) * n_expert,
		sizeof(float) * n_expert);
	s.m = s.n_rows = 1;
	run_layer(&a, &s, &l);
	assert_memory_equal(a.map + l.y, last, sizeof(last));
	layer_fini(&l);
	op_arena_fini(&a);
}

static void test_bits_do_not_depend_on_rows(void **state)
{
	(void)state;
	check_independent(DTYPE_Q8_0, 8, 2);
	check_independent(DTYPE_Q8_0, 64, 8);
	check_independent(DTYPE_F16, 128, 3);
	check_independent(DTYPE_F32, 5, 5);
}

static void check_refused(struct op_arena *a, const struct op_experts_params *p, int expected)
{
	struct err e = ERR_NULL;

	assert_int_equal(op_experts_record(a->pool, op_arena_begin(a), p, &e), expected);
	assert_string_not_equal(e.text, "");
}

static void test_refused(void **state)
{
	struct shape s = {.n_expert = 4, .n_used = 2, .n_embd = 4, .n_ff = 6, .m = 1, .n_rows = 1};
	struct op_arena a;
	struct layer l;

	(void)state;
	op_arena_init(&a, 1 << 20, seed);
	layer_init(&a, &s, &l);
	const struct op_experts_params good = get_params(&a, &s, &l, false);
	struct op_experts_params p = good;
	p.n_used = 5;
	check_refused(&a, &p, -EINVAL);
	p.n_used = 0;
	check_refused(&a, &p, -EINVAL);
	p = good;
	p.w[1].ne[1]++;
	check_refused(&a, &p, -EINVAL);
	p = good;
	p.w[0].dtype = 10; /* q2_K */
	check_refused(&a, &p, -ENOTSUP);
	p = good;
	p.w[0].ne[2] = p.w[1].ne[2] = ABI_MAX_EXPERTS + 1;
	check_refused(&a, &p, -EINVAL);
	layer_fini(&l);
	op_arena_fini(&a);
}

/* "far": only what subgroups of another size do otherwise. */
int main(int argc, char **argv)
{
	static const struct CMUnitTest far[] = {
		CASE(test_far_rows),
	};
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
		CASE(test_far_rows),
		CASE(test_mixed_formats),
		CASE(test_bits_do_not_depend_on_rows),
		CASE(test_refused),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	if (argc > 1 && strcmp(argv[1], "far") == 0)
		return cmocka_run_group_tests(far, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
