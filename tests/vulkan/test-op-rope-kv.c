/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rope-kv kernel against the scalar reference: norm, where there is one, and rotation, of
 * halves or of neighbours and with factors, of queries and keys at positions up to 131071, keys and
 * values in the right page, layer, place and head, nothing else.
 */
#include <math.h>

#include "tests/ref/ref-ops.h"
#include "tests/vulkan/op-arena.h"
#include "tests/vulkan/op-pages.h"
#include "workerd/ops/rope-kv.h"

enum { MAX_M = 12, MAX_DIM = 256, N_SLOTS = 3, N_CTX = 131072 };

static uint64_t seed;
static struct op_pages_seen seen;

struct shape {
	enum kv_layout_type type;
	uint32_t n_head;
	uint32_t n_head_kv;
	uint32_t head_dim;
	uint32_t n_rot;
	float base;
	bool is_interleaved;
	bool has_factors;
	bool has_norms;
	uint32_t m;
	uint32_t n_rows;
};

static void check_row(struct op_arena *a, const struct shape *s, const struct op_pages *pages,
	uint32_t layer, const struct abi_row *row, uint32_t i, const float *before,
	const float *after, const float *q_gain, const float *k_gain, const float *factors,
	float eps)
{
	const struct ref_ops_rope rope = {.n_rot = s->n_rot,
		.base = s->base,
		.is_interleaved = s->is_interleaved,
		.factors = s->has_factors ? factors : NULL};
	float head[MAX_DIM];

	for (uint32_t h = 0; h < s->n_head + s->n_head_kv; h++) {
		bool is_q = h < s->n_head;
		memcpy(head, before + h * s->head_dim, sizeof(float) * s->head_dim);
		if (s->has_norms)
			ref_ops_rms_norm(head, is_q ? q_gain : k_gain, s->head_dim, eps, head);
		ref_ops_rope(head, &rope, row->position);
		if (is_q) {
			/* Numbers up to some units, a few roundings of 2^-24 each. */
			for (uint32_t e = 0; e < s->head_dim; e++)
				op_arena_check_near(a, after[h * s->head_dim + e], head[e], 3e-6f,
					"q", (i * s->n_head + h) * s->head_dim + e);
			continue;
		}
		uint32_t kv_head = h - s->n_head;
		struct op_pages_row k =
			op_pages_find(a, pages, row->slot, row->position, layer, false, kv_head);
		struct op_pages_row v =
			op_pages_find(a, pages, row->slot, row->position, layer, true, kv_head);
		op_pages_check(a, pages, &k, head, &seen, "k", i);
		op_pages_check(
			a, pages, &v, before + (h + s->n_head_kv) * s->head_dim, &seen, "v", i);
	}
}

/* Rows at places of their own: random ones, and the first and last there are. */
static void choose_rows(
	struct op_arena *a, const struct shape *s, struct op_pages *pages, struct abi_row *rows)
{
	for (uint32_t i = 0; i < s->m; i++) {
		rows[i].slot = i % N_SLOTS;
		rows[i].position = i == 0   ? N_CTX - 1
				   : i == 1 ? 0
					    : op_arena_random(a, 100 * i, 100 * i + 99);
		op_pages_get(a, pages, rows[i].slot, rows[i].position);
	}
}

/* The kernel writes these; Q8_0 in whole words. */
static void expect_row(struct op_arena *a, const struct op_pages *p, const struct abi_row *row,
	uint32_t layer, bool is_value, uint32_t head)
{
	struct op_pages_row at =
		op_pages_find(a, p, row->slot, row->position, layer, is_value, head);
	uint32_t n_bytes = p->type == KV_LAYOUT_F16 ? 2 * p->head_dim : (p->head_dim + 3) / 4 * 4;

	op_arena_expect(a, at.numbers, n_bytes);
	op_arena_expect(a, at.scales, sizeof(uint16_t) * p->layout.n_scales);
}

static void run_shape(struct op_arena *a, const struct shape *s)
{
	uint32_t layer = op_arena_random(a, 0, 2);
	uint32_t width = (s->n_head + 2 * s->n_head_kv) * s->head_dim;
	struct op_pages pages = {.type = s->type,
		.n_layers = 3,
		.n_head_kv = s->n_head_kv,
		.head_dim = s->head_dim,
		.n_slots = N_SLOTS,
		.n_slot_pages = N_CTX / KV_PAGE_TOKENS};
	struct abi_row rows[MAX_M] = {0};
	struct err e = ERR_NULL;

	op_arena_reset(a);
	op_pages_init(a, &pages);
	choose_rows(a, s, &pages, rows);
	uint64_t qkv = op_arena_take_floats(a, (uint64_t)s->m * width);
	uint64_t q_gain = op_arena_take_floats(a, s->head_dim);
	uint64_t k_gain = op_arena_take_floats(a, s->head_dim);
	uint64_t turns = op_arena_take(a, sizeof(uint64_t) * (s->n_rot / 2), 0);
	uint64_t rows_at = op_arena_take(a, sizeof(rows), 0);
	float factors[MAX_DIM / 2];
	for (uint32_t i = 0; i < s->n_rot / 2; i++)
		/* Some of them 1, as in the files that have any. */
		factors[i] = i % 3 ? 0.01f * (float)op_arena_random(a, 5, 3200) : 1.0f;
	op_rope_kv_fill_turns(
		s->base, s->has_factors ? factors : NULL, s->n_rot, (uint64_t *)(a->map + turns));
	memcpy(a->map + rows_at, rows, sizeof(rows[0]) * s->m);
	struct op_rope_kv_params p = {.qkv = op_arena_address(a, qkv),
		.q_gain = s->has_norms ? op_arena_address(a, q_gain) : 0,
		.k_gain = s->has_norms ? op_arena_address(a, k_gain) : 0,
		.is_interleaved = s->is_interleaved,
		.turns = op_arena_address(a, turns),
		.rows = op_arena_address(a, rows_at),
		.m = op_arena_address(a, op_arena_take_u32(a, s->m)),
		.table = op_arena_address(a, pages.table),
		.n_head = s->n_head,
		.n_head_kv = s->n_head_kv,
		.head_dim = s->head_dim,
		.n_rot = s->n_rot,
		.n_slot_pages = pages.n_slot_pages,
		.layer = layer,
		.kv_type = s->type,
		.eps = 1e-6f,
		.n_rows = s->n_rows};

	for (uint32_t i = 0; i < s->m; i++) {
		op_arena_expect(a, qkv + sizeof(float) * i * width,
			sizeof(float) * s->n_head * s->head_dim);
		for (uint32_t v = 0; v < 2 * s->n_head_kv; v++)
			expect_row(a, &pages, &rows[i], layer, v % 2, v / 2);
	}
	on_device_check(op_rope_kv_record(a->pool, op_arena_begin(a), &p, &e), &e, "record");
	op_arena_run(a);
	for (uint32_t i = 0; i < s->m; i++)
		check_row(a, s, &pages, layer, &rows[i], i,
			(const float *)(a->before + qkv) + i * width,
			op_arena_floats(a, qkv) + i * width, op_arena_floats(a, q_gain),
			op_arena_floats(a, k_gain), factors, p.eps);
}

static void run_shapes(enum kv_layout_type type)
{
	static const uint32_t dims[] = {2, 64, 80, 128, 256, 34, 96};
	struct op_arena a;

	op_arena_init(&a, 16 << 20, seed);
	/* Every dim with every combination of the three. */
	for (uint32_t i = 0; i < 8 * ARRAY_SIZE(dims); i++) {
		const uint32_t kind = i / ARRAY_SIZE(dims) % 8;
		struct shape s = {.type = type,
			.is_interleaved = kind & 1,
			.has_factors = kind & 2,
			.has_norms = !(kind & 4),
			.head_dim = dims[i % ARRAY_SIZE(dims)],
			.n_head_kv = op_arena_random(&a, 1, 3),
			.n_rows = op_arena_random(&a, 1, MAX_M)};
		s.n_head = s.n_head_kv * op_arena_random(&a, 1, 4);
		s.m = op_arena_random(&a, 1, s.n_rows);
		s.n_rot = s.head_dim;
		if (op_arena_random(&a, 0, 1))
			s.n_rot = 2 * op_arena_random(&a, 0, s.head_dim / 2);
		s.base = i % 2 ? 1e6f : 1e4f;
		run_shape(&a, &s);
	}
	op_arena_fini(&a);
}

static void test_f16(void **state)
{
	(void)state;
	run_shapes(KV_LAYOUT_F16);
}

static void test_q8_0(void **state)
{
	(void)state;
	run_shapes(KV_LAYOUT_Q8_0);
	print_message(
		"# %u blocks, %u numbers beside the reference's\n", seen.n_blocks, seen.n_near);
	assert_true(seen.n_near <= seen.n_blocks);
}

/* A block of zeros has scale 0 and numbers 0, not NaNs of 0 / 0. */
static void test_zeros(void **state)
{
	static const struct abi_row row = {.position = 3};
	struct op_pages pages = {.type = KV_LAYOUT_Q8_0,
		.n_layers = 1,
		.n_head_kv = 1,
		.head_dim = 64,
		.n_slots = 1,
		.n_slot_pages = 1};
	struct err e = ERR_NULL;
	struct op_arena a;
	float found[64];

	(void)state;
	op_arena_init(&a, 1 << 20, seed);
	op_pages_init(&a, &pages);
	op_pages_get(&a, &pages, 0, 0);
	uint64_t qkv = op_arena_take_floats(&a, 3 * 64);
	memset(a.map + qkv, 0, sizeof(float) * 3 * 64);
	uint64_t gain = op_arena_take_floats(&a, 64);
	uint64_t turns = op_arena_take(&a, sizeof(uint64_t) * 32, 0);
	op_rope_kv_fill_turns(1e4f, NULL, 64, (uint64_t *)(a.map + turns));
	uint64_t rows_at = op_arena_take(&a, sizeof(row), 0);
	memcpy(a.map + rows_at, &row, sizeof(row));
	struct op_rope_kv_params p = {.qkv = op_arena_address(&a, qkv),
		.q_gain = op_arena_address(&a, gain),
		.k_gain = op_arena_address(&a, gain),
		.turns = op_arena_address(&a, turns),
		.rows = op_arena_address(&a, rows_at),
		.m = op_arena_address(&a, op_arena_take_u32(&a, 1)),
		.table = op_arena_address(&a, pages.table),
		.n_head = 1,
		.n_head_kv = 1,
		.head_dim = 64,
		.n_rot = 64,
		.n_slot_pages = 1,
		.kv_type = KV_LAYOUT_Q8_0,
		.eps = 1e-6f,
		.n_rows = 1};

	op_arena_expect(&a, qkv, sizeof(float) * 64);
	for (int v = 0; v < 2; v++)
		expect_row(&a, &pages, &row, 0, v, 0);
	on_device_check(op_rope_kv_record(a.pool, op_arena_begin(&a), &p, &e), &e, "record");
	op_arena_run(&a);
	for (int v = 0; v < 2; v++) {
		struct op_pages_row at = op_pages_find(&a, &pages, 0, row.position, 0, v, 0);
		op_pages_read(&a, &pages, &at, found);
		for (uint32_t i = 0; i < 64; i++)
			assert_true(found[i] == 0.0f);
	}
	op_arena_fini(&a);
}

static void test_refused(void **state)
{
	struct op_arena a;
	struct err e = ERR_NULL;
	struct op_rope_kv_params p = {.head_dim = 64, .n_rot = 66};

	(void)state;
	op_arena_init(&a, 1 << 16, seed);
	assert_int_equal(op_rope_kv_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	p.n_rot = 33;
	assert_int_equal(op_rope_kv_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_f16),
		CASE(test_q8_0),
		CASE(test_zeros),
		CASE(test_refused),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
