/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention kernel against the scalar reference: heads of many sizes, groups of query heads,
 * positions on both sides of block and page ends, rows of several sessions in one step, pages in
 * any order. What lies behind a row's own position is poison.
 */
#include <math.h>

#include "tests/ref/ref-ops.h"
#include "tests/vulkan/op-arena.h"
#include "tests/vulkan/op-pages.h"
#include "workerd/ops/attention.h"

enum { MAX_M = 10, N_SLOTS = 2, N_CTX = 160 };

static uint64_t seed;

struct shape {
	uint32_t n_head;
	uint32_t n_head_kv;
	uint32_t head_dim;
	uint32_t m;
	uint32_t n_rows;
};

/* Random keys and values of positions [0, n) of the slot; pages are taken last first. */
static void fill_slot(
	struct op_arena *a, const struct op_pages *p, uint32_t layer, uint32_t slot, uint32_t n)
{
	for (uint32_t j = n; j-- > 0;) {
		for (int v = 0; v < 2; v++) {
			uint64_t at = op_pages_find(a, p, slot, j, layer, v, 0);
			uint16_t *row = (uint16_t *)(a->map + at);
			for (uint32_t i = 0; i < p->n_head_kv * p->head_dim; i++)
				row[i] = ref_ops_to_half(op_arena_random_float(a));
		}
	}
}

/* [n_ctx][n_head_kv * head_dim] f32 of the slot's keys or values. */
static float *read_slot(struct op_arena *a, const struct op_pages *p, uint32_t layer, uint32_t slot,
	uint32_t n, bool is_value)
{
	uint32_t width = p->n_head_kv * p->head_dim;
	float *y = malloc(sizeof(float) * n * width);

	assert_non_null(y);
	for (uint32_t j = 0; j < n; j++)
		ref_ops_dequantize(DTYPE_F16,
			a->map + op_pages_find(a, p, slot, j, layer, is_value, 0), width,
			y + j * width);
	return y;
}

static void check_row(struct op_arena *a, const struct shape *s, const struct op_pages *pages,
	uint32_t layer, const struct abi_row *row, const float *q, const float *y)
{
	uint32_t n_keys = row->position + 1, width = s->n_head_kv * s->head_dim;
	float *k = read_slot(a, pages, layer, row->slot, n_keys, false);
	float *v = read_slot(a, pages, layer, row->slot, n_keys, true);
	float expected[OP_ATTENTION_MAX_HEAD_DIM];

	for (uint32_t h = 0; h < s->n_head; h++) {
		uint32_t kv_head = h / (s->n_head / s->n_head_kv);
		ref_ops_attention(q + h * s->head_dim, k + kv_head * s->head_dim,
			v + kv_head * s->head_dim, n_keys, s->head_dim, width, expected);
		/* Values are below 1, their weights sum to 1; exp has 2^-22 or so. */
		for (uint32_t i = 0; i < s->head_dim; i++)
			op_arena_check_near(a, y[h * s->head_dim + i], expected[i], 4e-6f, "output",
				h * s->head_dim + i);
	}
	free(k);
	free(v);
}

static void run_shape(struct op_arena *a, const struct shape *s)
{
	static const uint32_t positions[] = {0, 3, 4, 31, 32, 63, 64, N_CTX - 1};
	uint32_t layer = op_arena_random(a, 0, 1);
	uint32_t width = (s->n_head + 2 * s->n_head_kv) * s->head_dim;
	struct op_pages pages = {.n_layers = 2,
		.n_head_kv = s->n_head_kv,
		.head_dim = s->head_dim,
		.n_slots = N_SLOTS,
		.n_slot_pages = N_CTX / KV_PAGE_TOKENS};
	struct abi_row rows[MAX_M] = {0};
	uint32_t n_keys[N_SLOTS] = {0};
	struct err e = ERR_NULL;

	op_arena_reset(a);
	op_pages_init(a, &pages);
	for (uint32_t i = 0; i < s->m; i++) {
		rows[i].slot = op_arena_random(a, 0, N_SLOTS - 1);
		rows[i].position = op_arena_random(a, 0, 1) ? positions[op_arena_random(a, 0, 7)]
							    : op_arena_random(a, 0, N_CTX - 1);
		if (n_keys[rows[i].slot] < rows[i].position + 1)
			n_keys[rows[i].slot] = rows[i].position + 1;
	}
	for (uint32_t i = 0; i < N_SLOTS; i++)
		fill_slot(a, &pages, layer, i, n_keys[i]);
	uint64_t qkv = op_arena_take_floats(a, (uint64_t)s->m * width);
	for (uint64_t i = 0; i < (uint64_t)s->m * width; i++)
		op_arena_floats(a, qkv)[i] *= 4.0f; /* so that weights are far from equal */
	uint64_t n_y_bytes = sizeof(float) * s->m * s->n_head * s->head_dim;
	uint64_t y = op_arena_take(a, n_y_bytes, 0);
	uint64_t rows_at = op_arena_take(a, sizeof(rows), 0);
	memcpy(a->map + rows_at, rows, sizeof(rows[0]) * s->m);
	struct op_attention_params p = {.qkv = op_arena_address(a, qkv),
		.y = op_arena_address(a, y),
		.rows = op_arena_address(a, rows_at),
		.m = op_arena_address(a, op_arena_take_u32(a, s->m)),
		.table = op_arena_address(a, pages.table),
		.n_head = s->n_head,
		.n_head_kv = s->n_head_kv,
		.head_dim = s->head_dim,
		.n_slot_pages = pages.n_slot_pages,
		.layer = layer,
		.n_rows = s->n_rows};

	op_arena_expect(a, y, n_y_bytes);
	on_device_check(op_attention_record(a->pool, op_arena_begin(a), &p, &e), &e, "record");
	op_arena_run(a);
	for (uint32_t i = 0; i < s->m; i++)
		check_row(a, s, &pages, layer, &rows[i], op_arena_floats(a, qkv) + i * width,
			op_arena_floats(a, y) + i * s->n_head * s->head_dim);
}

static void test_shapes(void **state)
{
	static const uint32_t dims[] = {64, 2, 128, 34, 256, 64, 80};
	static const uint32_t groups[] = {2, 1, 4, 3, 8, 6};
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 8 << 20, seed);
	for (uint32_t i = 0; i < 28; i++) {
		struct shape s = {.head_dim = dims[i % ARRAY_SIZE(dims)],
			.n_head_kv = op_arena_random(&a, 1, 2),
			.n_rows = op_arena_random(&a, 1, MAX_M)};
		s.n_head = s.n_head_kv * groups[i % ARRAY_SIZE(groups)];
		s.m = op_arena_random(&a, 1, s.n_rows);
		run_shape(&a, &s);
	}
	op_arena_fini(&a);
}

static void test_refused(void **state)
{
	struct op_arena a;
	struct err e = ERR_NULL;
	struct op_attention_params p = {.n_head = 3, .n_head_kv = 2, .head_dim = 64};

	(void)state;
	op_arena_init(&a, 1 << 16, seed);
	assert_int_equal(op_attention_record(a.pool, op_arena_begin(&a), &p, &e), -ENOTSUP);
	p.n_head = 2;
	p.head_dim = 65;
	assert_int_equal(op_attention_record(a.pool, op_arena_begin(&a), &p, &e), -ENOTSUP);
	p.head_dim = OP_ATTENTION_MAX_HEAD_DIM + 2;
	assert_int_equal(op_attention_record(a.pool, op_arena_begin(&a), &p, &e), -ENOTSUP);
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_shapes),
		CASE(test_refused),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
