/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two integer kernels of a layer's experts against scalar references: which experts, what is
 * between the two, what is added to a row, and the bytes for whoever comes behind.
 */
#include <math.h>

#include "proto/manifest.h"
#include "tests/ref/ref-blocks.h"
#include "tests/ref/ref-ops.h"
#include "tests/vulkan/op-arena.h"
#include "workerd/ops/experts.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matvec-experts.h"
#include "workerd/ops/matvec.h"

static uint64_t seed;

enum { ARENA_BYTES = 48 << 20, MAX_K = 1024, MAX_ROWS = 8 };
static const float eps = 1e-5f;

struct shape {
	uint32_t dtype;
	uint32_t down_dtype;
	uint32_t k; /* of a row, and outputs of the down matrix */
	uint32_t n; /* of an expert */
	uint32_t n_expert;
	uint32_t n_used;
	uint32_t m;
	bool has_norm;
	bool has_after;
	bool is_routed;                      /* somebody has chosen */
	bool is_plain;                       /* the tables are poison */
	struct op_matvec_experts_shape cut;  /* of the first op */
	struct op_matvec_experts_shape down; /* of the second */
};

/* Offsets in the arena, and the ops. */
struct site {
	const struct shape *s;
	struct op_experts_params first, second;
	struct op_matmul_params after;
	uint64_t x, gain, after_gain, logits, choice, h, y, staging, behind;
	float before[MAX_ROWS * MAX_K]; /* y [m][k] */
};

/* Experts lie in any order, and the table says where; or in theirs, and nobody does. */
static struct weights_tensor take_experts(struct op_arena *a, uint32_t dtype, uint32_t n,
	uint32_t k, uint32_t n_expert, bool is_plain, uint64_t *ret_table)
{
	const struct dtype *t = dtype_find(dtype);
	uint64_t n_bytes = (uint64_t)n * k / t->n_block * t->n_bytes;
	uint64_t n_blocks = n_bytes / t->n_bytes * n_expert,
		 rng = op_arena_random(a, 1, UINT32_MAX);
	uint64_t at = op_arena_take(a, n_bytes * n_expert, 16);
	uint64_t table = op_arena_take(a, 8ull * n_expert, 0);

	ref_blocks_fill(dtype, n_blocks, 0x1p-4f, 0x1p-4f, &rng, a->map + at);
	for (uint32_t i = 0; i < n_expert && !is_plain; i++) {
		uint64_t address = op_arena_address(a, at + n_bytes * ((i + 1) % n_expert));
		memcpy(a->map + table + 8ull * i, &address, sizeof(address));
	}
	*ret_table = op_arena_address(a, table);
	return (struct weights_tensor){.address = op_arena_address(a, at),
		.dtype = dtype,
		.layout = MANIFEST_LAYOUT_RAW,
		.ne = {k, n, n_expert, 1},
		.n_bytes = n_bytes * n_expert};
}

static uint64_t take_staging(
	struct op_arena *a, uint32_t k, uint32_t n_rows, bool has_squares, uint64_t *ret_n_bytes)
{
	uint64_t at = op_arena_take(a, op_matvec_staging_bytes(k, n_rows), 0);

	for (uint32_t i = 0; i < n_rows; i++)
		op_arena_expect(a, at + i * op_matvec_staging_bytes(k, 1),
			k / 4 * 5 + (has_squares ? k / 8 : 0));
	*ret_n_bytes = op_matvec_staging_bytes(k, n_rows);
	return at;
}

static void init_ops(struct op_arena *a, const struct shape *s, struct site *t)
{
	struct op_experts_params both = {.logits = op_arena_address(a, t->logits),
		.choice = op_arena_address(a, t->choice),
		.m = op_arena_address(a, op_arena_take_u32(a, s->m)),
		.n_used = s->n_used,
		.is_routed = s->is_routed,
		.is_plain = s->is_plain,
		.eps = eps,
		.n_rows = s->m};
	struct op_experts_params *first = &t->first, *second = &t->second;

	*first = *second = both;
	first->finish = OP_EXPERTS_SWIGLU;
	first->x = op_arena_address(a, t->x);
	first->gain = s->has_norm ? op_arena_address(a, t->gain) : 0;
	first->y = second->x = op_arena_address(a, t->h);
	second->finish = OP_EXPERTS_MIX;
	second->y = op_arena_address(a, t->y);
	for (uint32_t i = 0; i < 2; i++)
		first->w[i] = take_experts(
			a, s->dtype, s->n, s->k, s->n_expert, s->is_plain, &first->tables[i]);
	second->w[0] = take_experts(
		a, s->down_dtype, s->k, s->n, s->n_expert, s->is_plain, &second->tables[0]);
	t->staging = take_staging(a, s->k, s->m, s->has_norm, &first->n_staging_bytes);
	first->staging = op_arena_address(a, t->staging);
}

/* What the router would leave. */
static void choose(struct op_arena *a, const struct shape *s, const struct site *t)
{
	struct abi_choice *choice = (struct abi_choice *)(a->map + t->choice);
	float weights[ABI_MAX_EXPERTS_USED];
	uint32_t ids[ABI_MAX_EXPERTS_USED];

	for (uint32_t i = 0; i < s->m; i++) {
		ref_ops_route(op_arena_floats(a, t->logits) + i * s->n_expert, s->n_expert,
			s->n_used, ids, weights);
		for (uint32_t r = 0; r < s->n_used; r++)
			choice[i * s->n_used + r] =
				(struct abi_choice){.expert = ids[r], .weight = weights[r]};
	}
}

static void init_site(struct op_arena *a, const struct shape *s, struct site *t)
{
	op_arena_reset(a);
	*t = (struct site){.s = s};
	t->x = op_arena_take_floats(a, (uint64_t)s->m * s->k);
	t->gain = op_arena_take_floats(a, s->k);
	t->after_gain = op_arena_take_floats(a, s->k);
	t->logits = op_arena_take_floats(a, (uint64_t)s->m * s->n_expert);
	t->choice = op_arena_take(a, 8ull * s->m * s->n_used, 0);
	t->y = op_arena_take_floats(a, (uint64_t)s->m * s->k);
	t->h = op_arena_take(a, 4ull * s->m * s->n_used * s->n, 0);
	op_arena_expect(a, t->h, 4ull * s->m * s->n_used * s->n);
	if (s->is_routed)
		choose(a, s, t);
	else
		op_arena_expect(a, t->choice, 8ull * s->m * s->n_used);
	op_arena_expect(a, t->y, 4ull * s->m * s->k);
	memcpy(t->before, op_arena_floats(a, t->y), 4ull * s->m * s->k);
	init_ops(a, s, t);
	if (!s->has_after)
		return;
	const struct dtype *d = dtype_find(DTYPE_Q8_0);
	t->after = (struct op_matmul_params){.n_parts = 1, .n_rows = s->m};
	t->after.w[0] = (struct weights_tensor){.address = op_arena_address(a, 0),
		.dtype = DTYPE_Q8_0,
		.layout = MANIFEST_LAYOUT_RAW,
		.ne = {s->k, 16, 1, 1},
		.n_bytes = 16ull * s->k / d->n_block * d->n_bytes};
	t->after.gain = op_arena_address(a, t->after_gain);
	t->behind = take_staging(a, s->k, s->m, true, &t->after.n_staging_bytes);
	t->after.staging = op_arena_address(a, t->behind);
}

/* y [n] of one expert's matrix and a [k], and its error's scale. */
static void multiply(const struct op_arena *a, const struct site *site,
	const struct weights_tensor *t, uint64_t table, uint32_t expert, const float *x,
	double *ret_y, double *ret_scale)
{
	uint32_t k = (uint32_t)t->ne[0], n = (uint32_t)t->ne[1];
	uint64_t base = vk_memory_get_address(a->memory), address;
	float w[MAX_K], reach[MAX_K];

	memcpy(&address, a->map + (table - base) + 8ull * expert, sizeof(address));
	if (site->s->is_plain)
		address = t->address + expert * (t->n_bytes / t->ne[2]);
	for (uint32_t j = 0; j < n; j++) {
		const uint8_t *row = a->map + (address - base) + j * (t->n_bytes / (n * t->ne[2]));
		ref_blocks_dequantize(t->dtype, row, k, w, reach);
		ret_y[j] = ret_scale[j] = 0;
		for (uint32_t l = 0; l < k; l++) {
			ret_y[j] += (double)w[l] * x[l];
			ret_scale[j] += fabs((double)reach[l] * x[l]);
		}
	}
}

static uint32_t order_of(uint32_t dtype)
{
	return dtype == DTYPE_Q2_0   ? ABI_QUANT_ORDER_BY4
	       : dtype == DTYPE_Q1_0 ? ABI_QUANT_ORDER_BY8
				     : ABI_QUANT_ORDER_PLAIN;
}

/* What the first op left for a pair. */
static void check_pair(const struct op_arena *a, const struct site *t, uint32_t pair,
	uint32_t expert, const float *x)
{
	const struct shape *s = t->s;
	const float *h = op_arena_floats(a, t->h) + pair * s->n;
	double gate[MAX_K], gate_scale[MAX_K], up[MAX_K], up_scale[MAX_K];

	multiply(a, t, &t->first.w[0], t->first.tables[0], expert, x, gate, gate_scale);
	multiply(a, t, &t->first.w[1], t->first.tables[1], expert, x, up, up_scale);
	for (uint32_t j = 0; j < s->n; j++) {
		float silu = ref_ops_silu((float)gate[j]);
		float tolerance = (float)(1.1 * 4e-6 * gate_scale[j] * fabs(up[j]) +
					  fabsf(silu) * 4e-6 * up_scale[j]) +
				  1e-6f;
		op_arena_check_near(
			a, h[j], silu * (float)up[j], tolerance, "between", pair * s->n + j);
	}
}

/*
 * As the second op makes bytes of h [k]; and how far those of a number may be off by one, where it
 * is so near the middle that either is right.
 */
static void round_row(const float *h, uint32_t k, float *ret_z, float *ret_tie)
{
	for (uint32_t at = 0; at < k; at += 32) {
		float top = 0;
		for (uint32_t i = at; i < at + 32; i++)
			top = fmaxf(top, fabsf(h[i]));
		for (uint32_t i = at; i < at + 32; i++) {
			float scale = top / 127, v = top > 0 ? h[i] * (127 / top) : 0;
			ret_z[i] = rintf(v) * scale;
			ret_tie[i] = fabsf(fabsf(v - rintf(v)) - 0.5f) < 1e-4f ? scale : 0;
		}
	}
}

static void check_row(const struct op_arena *a, const struct site *t, uint32_t i)
{
	const struct shape *s = t->s;
	const struct abi_choice *choice =
		(const struct abi_choice *)(a->map + t->choice) + i * s->n_used;
	float x[MAX_K], z[MAX_K], ties[MAX_K], weights[ABI_MAX_EXPERTS_USED];
	double y[MAX_K], scale[MAX_K], total[MAX_K] = {0}, error[MAX_K] = {0}, squares = 0;
	uint32_t ids[ABI_MAX_EXPERTS_USED];

	ref_blocks_unstage(order_of(s->dtype),
		a->map + t->staging + i * op_matvec_staging_bytes(s->k, 1), s->k, x, NULL);
	for (uint32_t l = 0; l < s->k; l++)
		squares += pow(op_arena_floats(a, t->x)[i * s->k + l], 2);
	for (uint32_t l = 0; l < s->k && s->has_norm; l++)
		x[l] = (float)(x[l] / sqrt(squares / s->k + (double)eps));
	ref_ops_route(op_arena_floats(a, t->logits) + i * s->n_expert, s->n_expert, s->n_used, ids,
		weights);
	for (uint32_t rank = 0; rank < s->n_used; rank++) {
		uint32_t pair = i * s->n_used + rank;
		assert_int_equal(choice[rank].expert, ids[rank]);
		op_arena_check_near(a, choice[rank].weight, weights[rank], 1e-5f, "weight", pair);
		check_pair(a, t, pair, ids[rank], x);
		round_row(op_arena_floats(a, t->h) + pair * s->n, s->n, z, ties);
		multiply(a, t, &t->second.w[0], t->second.tables[0], ids[rank], z, y, scale);
		for (uint32_t j = 0; j < s->k; j++) {
			total[j] += (double)weights[rank] * y[j];
			error[j] += 1.5e-5 * (double)weights[rank] * scale[j];
		}
		multiply(a, t, &t->second.w[0], t->second.tables[0], ids[rank], ties, y, scale);
		for (uint32_t j = 0; j < s->k; j++)
			error[j] += (double)weights[rank] * scale[j];
	}
	for (uint32_t j = 0; j < s->k; j++)
		op_arena_check_near(a, op_arena_floats(a, t->y)[i * s->k + j],
			(float)(t->before[i * s->k + j] + total[j]), (float)error[j] + 1e-6f,
			"output", i * s->k + j);
}

/* What the second op left for the op behind: y with the gain of that one's norm. */
static void check_behind(const struct op_arena *a, const struct site *t, uint32_t i)
{
	const struct shape *s = t->s;
	const uint8_t *row = a->map + t->behind + i * op_matvec_staging_bytes(s->k, 1);
	const float *y = op_arena_floats(a, t->y) + i * s->k;
	const float *gain = op_arena_floats(a, t->after_gain);
	float found[MAX_K], scales[MAX_K / 32], part;
	double squares = 0, expected = 0;

	ref_blocks_unstage(ABI_QUANT_ORDER_PLAIN, row, s->k, found, scales);
	for (uint32_t j = 0; j < s->k; j++) {
		op_arena_check_near(
			a, found[j], y[j] * gain[j], 0.5001f * scales[j / 32], "behind", j);
		expected += (double)y[j] * y[j];
	}
	for (uint32_t j = 0; j < s->k / 32; j++) {
		memcpy(&part, row + s->k / 4 * 5 + 4 * j, sizeof(part));
		squares += part;
	}
	op_arena_check_near(
		a, (float)squares, (float)expected, 1e-5f * (float)expected, "squares", i);
}

static void run_shape(struct op_arena *a, const struct shape *s)
{
	static struct site t;
	struct err e = ERR_NULL;

	init_site(a, s, &t);
	assert_true(op_matvec_experts_fits(a->pool, &t.first));
	assert_true(op_matvec_experts_fits(a->pool, &t.second));
	if (s->has_after) {
		assert_true(op_matvec_experts_chain(a->pool, &t.second, &t.after));
		assert_true(t.after.is_staged);
	}
	struct vk_command *c = op_arena_begin(a);
	on_device_check(op_matvec_experts_record_shape(a->pool, c, &t.first, &s->cut, &e), &e, "1");
	vk_command_barrier(c);
	on_device_check(
		op_matvec_experts_record_shape(a->pool, c, &t.second, &s->down, &e), &e, "2");
	op_arena_run(a);
	for (uint32_t i = 0; i < s->m; i++) {
		check_row(a, &t, i);
		if (s->has_after)
			check_behind(a, &t, i);
	}
}

static void test_experts(void **state)
{
	static const struct shape shapes[] = {
		{DTYPE_Q4_K, DTYPE_Q6_K, 512, 512, 7, 3, 1, true, true, false, true,
			{2, 1, 2, 0, false, true}, {2, 1, 2, 0, false, false}},
		{DTYPE_Q8_0, DTYPE_Q8_0, 64, 192, 33, 8, 2, true, true, true, false,
			{2, 2, 1, 1, true, false}, {1, 2, 4, 3, true, false}},
		{DTYPE_Q8_0, DTYPE_Q4_K, 128, 256, 5, 1, 2, false, false, false, true,
			{4, 1, 4, 2, true, false}, {4, 3, 2, 0, true, false}},
		{DTYPE_Q6_K, DTYPE_Q4_0, 512, 64, 4, 4, 1, true, false, true, false,
			{2, 1, 4, 0, true, true}, {2, 3, 1, 0, true, false}},
		{DTYPE_Q4_0, DTYPE_TQ2_0, 64, 512, 4, 2, 1, true, true, false, true,
			{2, 1, 1, 1, false, true}, {1, 4, 4, 3, false, false}},
		{DTYPE_Q2_0, DTYPE_Q1_0, 128, 256, 9, 4, 1, false, true, false, false,
			{2, 1, 8, 2, false, false}, {2, 1, 8, 0, true, false}},
		{DTYPE_TQ2_0, DTYPE_Q2_0, 512, 128, 9, 2, 2, true, false, true, true,
			{4, 1, 1, 0, false, true}, {8, 1, 1, 0, false, false}},
		{DTYPE_Q1_0, DTYPE_Q8_0, 256, 64, 6, 5, 1, true, false, false, false,
			{2, 1, 1, 1, true, false}, {1, 3, 4, 3, false, false}},
		/* Tiles of a subgroup one after the other, x held; rows that are not whole rounds.
		 */
		{DTYPE_Q4_K, DTYPE_Q4_K, 1024, 768, 9, 4, 1, true, true, true, true,
			{2, 1, 4, 2, true, true}, {1, 3, 4, 0, true, false}},
		{DTYPE_Q4_K, DTYPE_Q4_K, 512, 768, 5, 2, 1, true, true, false, false,
			{4, 1, 4, 0, true, true}, {1, 3, 4, 0, false, false}},
		/* As many rows as there can be. */
		{DTYPE_Q4_K, DTYPE_Q4_K, 256, 256, 65, 4, 8, true, true, true, true,
			{2, 1, 4, 1, true, false}, {1, 3, 4, 3, true, false}},
		{DTYPE_Q8_0, DTYPE_Q8_0, 128, 64, 101, 7, 7, true, false, false, false,
			{2, 1, 2, 2, true, false}, {1, 2, 2, 0, true, false}},
	};
	struct op_arena a;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	for (uint32_t i = 0; i < ARRAY_SIZE(shapes); i++)
		run_shape(&a, &shapes[i]);
	op_arena_fini(&a);
}

/* What does not fit is left to op_experts. */
static void test_what_does_not_fit(void **state)
{
	struct shape s = {DTYPE_Q8_0, DTYPE_Q8_0, 64, 64, 4, 2, 1, true, true, false, true,
		{2, 1, 1, 0, false, false}, {2, 1, 1, 0, false, false}};
	struct op_experts_params first, second;
	struct err e = ERR_NULL;
	static struct site t;
	struct op_arena a;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	init_site(&a, &s, &t);
	assert_true(op_matvec_experts_fits(a.pool, &t.first));
	assert_true(op_matvec_experts_fits(a.pool, &t.second));
#define REFUSED(change)                                                \
	do {                                                           \
		first = t.first;                                       \
		second = t.second;                                     \
		change;                                                \
		assert_false(op_matvec_experts_fits(a.pool, &first) && \
			     op_matvec_experts_fits(a.pool, &second)); \
	} while (0)
	REFUSED(first.is_exact = true);
	REFUSED(first.is_far = true);
	REFUSED(first.n_staging_bytes = op_matvec_staging_bytes(64, 1) - 1);
	REFUSED(first.staging = 0);
	REFUSED(first.n_rows = 2); /* each expert has a row: they are grouped */
	REFUSED(first.w[1].dtype = DTYPE_F32);
	REFUSED(first.n_used = 5);
	REFUSED(second.gain = t.first.gain);
	REFUSED(second.x += 4);
	REFUSED(second.w[0].dtype = DTYPE_F16);
#undef REFUSED
	assert_int_equal(
		op_matvec_experts_record(a.pool, op_arena_begin(&a), &second, &e), -EINVAL);
	second = t.second;
	t.after.is_exact = true;
	assert_false(op_matvec_experts_chain(a.pool, &second, &t.after));
	assert_false(op_matvec_experts_chain(a.pool, &t.first, &t.after));
	assert_true(second.next == 0 && !t.after.is_staged);
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_experts),
		CASE(test_what_does_not_fit),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
