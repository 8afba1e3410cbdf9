/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The router against scalar references: its logits against products in double, the choice against
 * the logits that it found, the bytes against x. Rows of W that are equal, few and many experts,
 * sizes that do not divide, rows that the step does not have; and counters that are 0 again, as no
 * byte may change that is not expected to.
 */
#include <math.h>

#include "proto/manifest.h"
#include "tests/ref/ref-blocks.h"
#include "tests/ref/ref-ops.h"
#include "tests/vulkan/op-arena.h"
#include "workerd/ops/matvec.h"
#include "workerd/ops/router.h"

enum { ARENA_BYTES = 8 << 20, MAX_K = 2048 };

static uint64_t seed;
static const float eps = 1e-5f;

struct shape {
	uint32_t k;
	uint32_t n_expert;
	uint32_t m;
	uint32_t n_rows;
	uint32_t order;
	bool has_norm;
	bool has_bytes;
	bool has_equals; /* every third row of W is the one before it */
};

struct site {
	struct op_router_params p;
	uint64_t w, x, gain, logits, staging;
};

static uint64_t take_w(struct op_arena *a, const struct shape *s)
{
	uint64_t at = op_arena_take_floats(a, (uint64_t)s->n_expert * s->k);
	float *w = op_arena_floats(a, at);

	for (uint32_t e = 2; e < s->n_expert && s->has_equals; e += 3)
		memcpy(w + e * s->k, w + (e - 1) * s->k, sizeof(float) * s->k);
	return at;
}

static void init_site(struct op_arena *a, const struct shape *s, struct site *t)
{
	op_arena_reset(a);
	t->w = take_w(a, s);
	t->x = op_arena_take_floats(a, (uint64_t)s->n_rows * s->k);
	t->gain = op_arena_take_floats(a, s->k);
	t->logits = op_arena_take(a, 4ull * s->n_rows * s->n_expert, 0);
	t->staging = op_arena_take(a, op_matvec_staging_bytes(s->k, s->n_rows), 0);
	op_arena_expect(a, t->logits, 4ull * s->m * s->n_expert);
	for (uint32_t i = 0; i < s->m && s->has_bytes; i++)
		op_arena_expect(a, t->staging + i * op_matvec_staging_bytes(s->k, 1),
			s->k / 4 * 5 + (s->has_norm ? s->k / 8 : 0));
	t->p = (struct op_router_params){
		.w = {.address = op_arena_address(a, t->w),
			.dtype = DTYPE_F32,
			.layout = MANIFEST_LAYOUT_RAW,
			.ne = {s->k, s->n_expert, 1, 1},
			.n_bytes = 4ull * s->k * s->n_expert},
		.x = op_arena_address(a, t->x),
		.gain = s->has_norm ? op_arena_address(a, t->gain) : 0,
		.logits = op_arena_address(a, t->logits),
		.m = op_arena_address(a, op_arena_take_u32(a, s->m)),
		.staging = s->has_bytes ? op_arena_address(a, t->staging) : 0,
		.order = s->order,
		.eps = eps,
		.n_rows = s->n_rows,
	};
}

static void check_logits(const struct op_arena *a, const struct shape *s, const struct site *t,
	uint32_t i, float norm)
{
	const float *x = op_arena_floats(a, t->x) + i * s->k;
	const float *gain = op_arena_floats(a, t->gain);

	for (uint32_t e = 0; e < s->n_expert; e++) {
		const float *w = op_arena_floats(a, t->w) + e * s->k;
		double y = 0, scale = 0;
		for (uint32_t l = 0; l < s->k; l++) {
			double v = (double)w[l] * x[l] * (s->has_norm ? gain[l] : 1.0f);
			y += v;
			scale += fabs(v);
		}
		op_arena_check_near(a, op_arena_floats(a, t->logits)[i * s->n_expert + e],
			(float)(norm * y), (float)(4e-6 * norm * scale) + 1e-7f, "logit",
			i * s->n_expert + e);
		if (s->has_equals && e % 3 == 2)
			assert_memory_equal(op_arena_floats(a, t->logits) + i * s->n_expert + e,
				op_arena_floats(a, t->logits) + i * s->n_expert + e - 1,
				sizeof(float));
	}
}

static void check_bytes(const struct op_arena *a, const struct shape *s, const struct site *t,
	uint32_t i, double squares)
{
	const uint8_t *row = a->map + t->staging + i * op_matvec_staging_bytes(s->k, 1);
	const float *x = op_arena_floats(a, t->x) + i * s->k;
	const float *gain = op_arena_floats(a, t->gain);
	float found[MAX_K], scales[MAX_K / 32], part;
	double sum = 0;

	ref_blocks_unstage(s->order, row, s->k, found, scales);
	for (uint32_t l = 0; l < s->k; l++)
		op_arena_check_near(a, found[l], s->has_norm ? x[l] * gain[l] : x[l],
			0.5001f * scales[l / 32], "byte", l);
	for (uint32_t j = 0; j < s->k / 32 && s->has_norm; j++) {
		memcpy(&part, row + s->k / 4 * 5 + 4 * j, sizeof(part));
		sum += part;
	}
	if (s->has_norm)
		op_arena_check_near(
			a, (float)sum, (float)squares, 1e-5f * (float)squares, "squares", i);
}

static void run_shape(struct op_arena *a, const struct shape *s)
{
	struct err e = ERR_NULL;
	struct site t;

	init_site(a, s, &t);
	assert_true(op_router_fits(&t.p));
	on_device_check(op_router_record(a->pool, op_arena_begin(a), &t.p, &e), &e, "record");
	op_arena_run(a);
	for (uint32_t i = 0; i < s->m; i++) {
		double squares = 0;
		for (uint32_t l = 0; l < s->k; l++)
			squares += pow(op_arena_floats(a, t.x)[i * s->k + l], 2);
		check_logits(a, s, &t, i,
			s->has_norm ? (float)(1 / sqrt(squares / s->k + (double)eps)) : 1);
		if (s->has_bytes)
			check_bytes(a, s, &t, i, squares);
	}
}

static void test_shapes(void **state)
{
	static const struct shape shapes[] = {
		{2048, 128, 1, 1, ABI_QUANT_ORDER_PLAIN, true, true, false},
		{192, 128, 8, 8, ABI_QUANT_ORDER_PLAIN, true, true, true},
		{64, 5, 3, 4, ABI_QUANT_ORDER_BY4, false, true, true},
		{1088, 33, 2, 2, ABI_QUANT_ORDER_BY8, true, true, false},
		{36, 512, 1, 2, ABI_QUANT_ORDER_PLAIN, true, false, false},
		{516, 1, 7, 8, ABI_QUANT_ORDER_PLAIN, false, false, false},
		{4, 130, 1, 1, ABI_QUANT_ORDER_PLAIN, true, false, true},
	};
	struct op_arena a;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	for (uint32_t i = 0; i < ARRAY_SIZE(shapes); i++)
		run_shape(&a, &shapes[i]);
	op_arena_fini(&a);
}

static void test_what_does_not_fit(void **state)
{
	static const struct shape s = {64, 8, 1, 1, ABI_QUANT_ORDER_PLAIN, true, true, false};
	struct err e = ERR_NULL;
	struct op_arena a;
	struct site t;

	(void)state;
	op_arena_init(&a, ARENA_BYTES, seed);
	init_site(&a, &s, &t);
	const struct op_router_params good = t.p;
	assert_true(op_router_fits(&good));
#define REFUSED(change)                             \
	do {                                        \
		t.p = good;                         \
		change;                             \
		assert_false(op_router_fits(&t.p)); \
	} while (0)
	REFUSED(t.p.is_exact = true);
	REFUSED(t.p.n_rows = OP_ROUTER_MAX_ROWS + 1);
	REFUSED(t.p.w.dtype = DTYPE_F16);
	REFUSED(t.p.w.n_bytes -= 4);
	REFUSED(t.p.w.address += 4);
	REFUSED(t.p.x += 4);
	REFUSED(t.p.staging += 4);
	REFUSED((t.p.w.ne[0] = 60, t.p.w.n_bytes = 60 * 8 * 4));
#undef REFUSED
	assert_int_equal(op_router_record(a.pool, op_arena_begin(&a), &t.p, &e), -EINVAL);
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_shapes),
		CASE(test_what_does_not_fit),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
