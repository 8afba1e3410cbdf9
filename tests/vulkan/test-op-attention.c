/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention kernel against the scalar reference: heads of many sizes, groups of query heads,
 * keys as f16 and as Q8_0, positions on both sides of block and page ends, windows, keys shared
 * among subgroups, rows of several sessions in one step, pages in any order. What lies behind a
 * row's own position or before its window is poison, and so is what pads a row.
 */
#include <math.h>

#include "tests/ref/ref-ops.h"
#include "tests/vulkan/op-arena.h"
#include "tests/vulkan/op-pages.h"
#include "workerd/ops/attention.h"

enum { MAX_M = 70, N_SLOTS = 3, N_CTX = 160, N_DEEP = 1056 };

static uint64_t seed;
static uint32_t n_shapes = 21; /* of each type; every one compiles another kernel */

struct shape {
	enum kv_layout_type type;
	uint32_t n_head;
	uint32_t n_head_kv;
	uint32_t head_dim;
	uint32_t window;
	uint32_t n_ctx; /* pages a slot has, in tokens */
	uint32_t m;
	uint32_t n_rows;
	float steepness; /* of scores: how large queries are */
	float cap;
	bool has_sinks;
	struct op_attention_tune tune;
	float tolerance;
};

/* The first key that a row sees. */
static uint32_t find_first(const struct shape *s, uint32_t position)
{
	return s->window && position + 1 > s->window ? position + 1 - s->window : 0;
}

/* Random keys and values of positions [first, end) of the slot; pages are taken last first. */
static void fill_slot(struct op_arena *a, const struct op_pages *p, uint32_t layer, uint32_t slot,
	uint32_t first, uint32_t end)
{
	float x[OP_ATTENTION_MAX_HEAD_DIM];

	for (uint32_t j = end; j-- > first;) {
		for (uint32_t v = 0; v < 2 * p->n_head_kv; v++) {
			struct op_pages_row row = op_pages_find(a, p, slot, j, layer, v % 2, v / 2);
			for (uint32_t i = 0; i < p->head_dim; i++)
				x[i] = op_arena_random_float(a);
			op_pages_write(a, p, &row, x);
		}
	}
}

/* [end - first][head_dim] f32 of the slot's keys or values of one head. */
static float *read_slot(struct op_arena *a, const struct op_pages *p, uint32_t layer,
	const struct abi_row *row, uint32_t first, bool is_value, uint32_t head)
{
	float *y = malloc(sizeof(float) * (row->position + 1 - first) * p->head_dim);

	assert_non_null(y);
	for (uint32_t j = first; j <= row->position; j++) {
		struct op_pages_row at = op_pages_find(a, p, row->slot, j, layer, is_value, head);
		op_pages_read(a, p, &at, y + (j - first) * p->head_dim);
	}
	return y;
}

static void check_row(struct op_arena *a, const struct shape *s, const struct op_pages *pages,
	uint32_t layer, const struct abi_row *row, const float *q, const float *sinks,
	const float *y)
{
	uint32_t n_group = s->n_head / s->n_head_kv, first = find_first(s, row->position);
	float expected[OP_ATTENTION_MAX_HEAD_DIM];

	for (uint32_t kv_head = 0; kv_head < s->n_head_kv; kv_head++) {
		float *k = read_slot(a, pages, layer, row, first, false, kv_head);
		float *v = read_slot(a, pages, layer, row, first, true, kv_head);

		for (uint32_t h = kv_head * n_group; h < (kv_head + 1) * n_group; h++) {
			ref_ops_attention_with(q + h * s->head_dim, k, v, row->position + 1 - first,
				s->head_dim, s->head_dim, s->cap, sinks ? sinks[h] : -INFINITY,
				expected);
			for (uint32_t i = 0; i < s->head_dim; i++)
				op_arena_check_near(a, y[h * s->head_dim + i], expected[i],
					s->tolerance, "output", h * s->head_dim + i);
		}
		free(k);
		free(v);
	}
}

static uint32_t random_position(struct op_arena *a, const struct shape *s)
{
	static const uint32_t positions[] = {0, 3, 4, 30, 31, 32, 63, 64, N_CTX - 1};

	if (s->n_ctx > N_CTX && op_arena_random(a, 0, 2))
		return op_arena_random(a, 0, 1) ? 999 : op_arena_random(a, N_CTX, s->n_ctx - 1);
	return op_arena_random(a, 0, 1)
		       ? positions[op_arena_random(a, 0, ARRAY_SIZE(positions) - 1)]
		       : op_arena_random(a, 0, N_CTX - 1);
}

/*
 * Rows of random sessions and positions, those of a session consecutive and ascending, and the keys
 * that they see; those alone have pages.
 */
static void make_rows(struct op_arena *a, const struct shape *s, const struct op_pages *pages,
	uint32_t layer, struct abi_row *rows)
{
	uint32_t slot0 = op_arena_random(a, 0, N_SLOTS - 1), i = 0;

	for (uint32_t k = 0; k < N_SLOTS && i < s->m; k++) {
		uint32_t slot = (slot0 + k) % N_SLOTS;
		uint32_t n_rest = s->m - i, n_one = op_arena_random(a, 0, 1) ? n_rest : 1;
		uint32_t n = k == N_SLOTS - 1 ? n_rest : op_arena_random(a, 1, n_one);
		uint32_t position = random_position(a, s);

		if (position + n > s->n_ctx)
			position = s->n_ctx - n;
		fill_slot(a, pages, layer, slot, find_first(s, position), position + n);
		/* Rows with holes between them are no tiles. */
		bool has_holes = n > 1 && op_arena_random(a, 0, 1);
		for (uint32_t end = i + n; i < end; i++) {
			rows[i] = (struct abi_row){.slot = slot, .position = position++};
			if (has_holes && (end - i) % 3 == 0 && position + end - i <= s->n_ctx) {
				fill_slot(a, pages, layer, slot, position + end - i - 1,
					position + end - i);
				position++;
			}
		}
	}
}

/* What the kernels take besides; partial sums are written, wherever they like. */
static void take_needs(struct op_arena *a, const struct shape *s, const struct abi_row *rows,
	struct op_attention_params *p)
{
	struct op_attention_needs needs;

	op_attention_get_needs(op_pool_get_info(a->pool), p, &needs);
	uint64_t partials = op_arena_take(a, needs.n_partial_bytes, 0);
	uint64_t counters = op_arena_take(a, needs.n_counter_bytes, 0);
	memset(a->map + counters, 0, needs.n_counter_bytes);
	memset(a->is_free + partials, 1, needs.n_partial_bytes);
	if (needs.n_partial_bytes) {
		p->partials = op_arena_address(a, partials);
		p->counters = op_arena_address(a, counters);
	}
	if (!needs.n_tile_rows)
		return;
	uint64_t spans = op_arena_take(a, op_attention_span_bytes(s->n_rows), 0);
	op_attention_fill_spans(
		rows, s->m, needs.n_tile_rows, s->n_rows, (uint32_t *)(a->map + spans));
	p->spans = op_arena_address(a, spans);
	p->n_spans = s->n_rows;
}

/* The same step again has the same bits. */
static void run_twice(
	struct op_arena *a, const struct op_attention_params *p, uint64_t y, uint64_t n_y_bytes)
{
	uint8_t *before = malloc(n_y_bytes);
	struct err e = ERR_NULL;

	assert_non_null(before);
	on_device_check(op_attention_record(a->pool, op_arena_begin(a), p, &e), &e, "record");
	op_arena_run(a);
	memcpy(before, a->map + y, n_y_bytes);
	on_device_check(op_attention_record(a->pool, op_arena_begin(a), p, &e), &e, "record");
	op_arena_run(a);
	assert_memory_equal(before, a->map + y, n_y_bytes);
	free(before);
}

static void run_shape(struct op_arena *a, const struct shape *s)
{
	uint32_t layer = op_arena_random(a, 0, 1);
	uint32_t width = (s->n_head + 2 * s->n_head_kv) * s->head_dim;
	struct op_pages pages = {.type = s->type,
		.n_layers = 2,
		.n_head_kv = s->n_head_kv,
		.head_dim = s->head_dim,
		.n_slots = N_SLOTS,
		.n_slot_pages = s->n_ctx / KV_PAGE_TOKENS};
	struct abi_row rows[MAX_M] = {0};

	op_arena_reset(a);
	op_pages_init(a, &pages);
	make_rows(a, s, &pages, layer, rows);
	uint64_t qkv = op_arena_take_floats(a, (uint64_t)s->m * width);
	for (uint64_t i = 0; i < (uint64_t)s->m * width; i++)
		op_arena_floats(a, qkv)[i] *= s->steepness; /* so that weights are far from equal */
	uint64_t sinks = op_arena_take_floats(a, s->n_head);
	for (uint32_t h = 0; h < s->n_head; h++)
		op_arena_floats(a, sinks)[h] *= 4.0f * s->steepness;
	uint64_t n_y_bytes = sizeof(float) * s->m * s->n_head * s->head_dim;
	uint64_t y = op_arena_take(a, n_y_bytes, 0);
	uint64_t rows_at = op_arena_take(a, sizeof(rows), 0);
	memcpy(a->map + rows_at, rows, sizeof(rows[0]) * s->m);
	struct op_attention_params p = {.qkv = op_arena_address(a, qkv),
		.y = op_arena_address(a, y),
		.rows = op_arena_address(a, rows_at),
		.m = op_arena_address(a, op_arena_take_u32(a, s->m)),
		.table = op_arena_address(a, pages.table),
		.sinks = s->has_sinks ? op_arena_address(a, sinks) : 0,
		.n_head = s->n_head,
		.n_head_kv = s->n_head_kv,
		.head_dim = s->head_dim,
		.n_slot_pages = pages.n_slot_pages,
		.layer = layer,
		.window = s->window,
		.cap = s->cap,
		.kv_type = s->type,
		.n_rows = s->n_rows,
		.tune = s->tune};

	take_needs(a, s, rows, &p);
	op_arena_expect(a, y, n_y_bytes);
	run_twice(a, &p, y, n_y_bytes);
	for (uint32_t i = 0; i < s->m; i++)
		check_row(a, s, &pages, layer, &rows[i], op_arena_floats(a, qkv) + i * width,
			s->has_sinks ? op_arena_floats(a, sinks) : NULL,
			op_arena_floats(a, y) + i * s->n_head * s->head_dim);
}

/* What one kind is tried with, beside random numbers. */
struct trial {
	enum op_attention_kind kind;
	uint32_t n_dims;
	const uint32_t *dims;
	uint32_t max_rows;
	uint32_t n_mib;    /* of the arena */
	uint32_t n_shapes; /* at most; 0: n_shapes */
	/* Values are below 1, their weights sum to 1; exp has 2^-22 or so; f16 has 2^-11. */
	float tolerance;
};

static void run_trial(enum kv_layout_type type, const struct trial *t)
{
	static const uint32_t groups[] = {2, 1, 4, 3, 8, 6, 5, 7};
	static const uint32_t splits[] = {0, 2, OP_ATTENTION_MAX_SPLITS};
	struct op_arena a;

	op_arena_init(&a, (uint64_t)t->n_mib << 20, seed);
	for (uint32_t i = 0; i < n_shapes && (!t->n_shapes || i < t->n_shapes); i++) {
		bool is_deep = i % 4 == 3, is_steep = op_arena_random(&a, 0, 2) == 0;
		struct shape s = {.type = type,
			.head_dim = t->dims[i % t->n_dims],
			.n_ctx = is_deep ? N_DEEP : N_CTX,
			.n_head_kv = is_deep ? 1 : op_arena_random(&a, 1, 2),
			.n_rows = op_arena_random(&a, 1, t->max_rows),
			.steepness = is_steep ? 32.0f : 4.0f,
			.cap = i % 4 == 2 ? 5.0f : 0.0f,
			.has_sinks = i % 3 == 1,
			.tune = {.kind = t->kind},
			.tolerance = t->tolerance * (is_steep ? 8.0f : 1.0f)};
		s.window = i % 3 == 0 ? op_arena_random(&a, 1, s.n_ctx) : 0;
		s.n_head = s.n_head_kv * groups[i % ARRAY_SIZE(groups)];
		s.m = op_arena_random(&a, 1, s.n_rows);
		if (t->kind == OP_ATTENTION_ROW || t->kind == OP_ATTENTION_SPLIT)
			s.tune.n_splits = splits[i % ARRAY_SIZE(splits)];
		s.tune.is_ahead = i % 2;
		s.tune.n_parts = op_arena_random(&a, 0, 2) ? 0 : 1;
		if (t->kind != OP_ATTENTION_ROW)
			s.tune.part_keys = op_arena_random(&a, 0, 1) ? KV_PAGE_TOKENS : 0;
		run_shape(&a, &s);
	}
	op_arena_fini(&a);
}

static const uint32_t all_dims[] = {64, 2, 128, 34, 256, 96, 80};

static const struct trial by_row = {.kind = OP_ATTENTION_ROW,
	.n_dims = ARRAY_SIZE(all_dims),
	.dims = all_dims,
	.max_rows = 10,
	.n_mib = 10,
	.tolerance = 4e-6f};
static const struct trial by_split = {.kind = OP_ATTENTION_SPLIT,
	.n_dims = ARRAY_SIZE(all_dims),
	.dims = all_dims,
	.max_rows = 10,
	.n_mib = 12,
	.n_shapes = 10,
	.tolerance = 4e-6f};

static void test_f16(void **state)
{
	(void)state;
	run_trial(KV_LAYOUT_F16, &by_row);
}

static void test_q8_0(void **state)
{
	(void)state;
	run_trial(KV_LAYOUT_Q8_0, &by_row);
}

static void test_split_f16(void **state)
{
	(void)state;
	run_trial(KV_LAYOUT_F16, &by_split);
}

static void test_split_q8_0(void **state)
{
	(void)state;
	run_trial(KV_LAYOUT_Q8_0, &by_split);
}

static const struct trial by_tile = {.kind = OP_ATTENTION_TILE,
	.n_dims = ARRAY_SIZE(all_dims),
	.dims = all_dims,
	.max_rows = MAX_M,
	.n_mib = 28,
	.n_shapes = ARRAY_SIZE(all_dims),
	.tolerance = 4e-6f};

static void test_tile_f16(void **state)
{
	(void)state;
	run_trial(KV_LAYOUT_F16, &by_tile);
}

/* Scale times number is rounded to f16. */
static void test_tile_q8_0(void **state)
{
	struct trial t = by_tile;

	(void)state;
	t.tolerance = 1e-3f;
	run_trial(KV_LAYOUT_Q8_0, &t);
}

/* The software driver takes a second to compile the smaller ones, a minute for the others. */
enum { N_SMALL_DIMS = 2, N_SMALL_SHAPES = 5 };
static const uint32_t matrix_dims[] = {32, 16, 64, 48, 128, 80, 256, 96};
static struct trial by_matrix = {.kind = OP_ATTENTION_MATRIX,
	.n_dims = N_SMALL_DIMS,
	.n_mib = 56, /* of 64 queries and heads of 256 partial sums take 33 */
	.n_shapes = N_SMALL_SHAPES,
	.dims = matrix_dims,
	.max_rows = MAX_M,
	.tolerance = 2e-3f};

static bool has_matrices(void)
{
	struct vk_device *d = on_device_new();
	bool has = vk_device_get_info(d)->n_matrices > 0;

	if (!vk_device_get_info(d)->is_software) {
		by_matrix.n_dims = ARRAY_SIZE(matrix_dims);
		by_matrix.n_shapes = 0;
	}
	vk_device_free(d);
	return has && kernels_has(KERNELS_ATTENTION_MATRIX_F16);
}

static void test_matrix_f16(void **state)
{
	(void)state;
	if (!has_matrices())
		skip();
	run_trial(KV_LAYOUT_F16, &by_matrix);
}

static void test_matrix_q8_0(void **state)
{
	(void)state;
	if (!has_matrices())
		skip();
	run_trial(KV_LAYOUT_Q8_0, &by_matrix);
}

/* Entries of pages that lie before the window are addresses of nothing. */
static void test_windows(void **state)
{
	static const uint32_t windows[] = {1, 2, 31, 32, 33, 64, 65, N_CTX - 1, N_CTX};
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 8 << 20, seed);
	for (uint32_t i = 0; i < ARRAY_SIZE(windows); i++) {
		struct shape s = {.type = i % KV_LAYOUT_N_TYPES,
			.head_dim = 64,
			.n_head_kv = 1,
			.n_head = 2,
			.window = windows[i],
			.n_ctx = N_CTX,
			.steepness = 4.0f,
			.tune = {.n_splits = i % 2 ? 4 : 0},
			.tolerance = 4e-6f,
			.n_rows = 1,
			.m = 1};
		for (uint32_t k = 0; k < 3; k++) {
			s.tune.kind = k % 2 ? OP_ATTENTION_SPLIT : OP_ATTENTION_ROW;
			run_shape(&a, &s);
		}
	}
	op_arena_fini(&a);
}

enum { N_LONG = 1 << 20, LONG_DIM = 64, N_LAST = KV_PAGE_TOKENS - 5 };

/* Keys of the last page: of a score of 12 each, so that they weigh about as much as all others. */
static void fill_last_page(struct op_arena *a, const struct op_pages *p, const float *q)
{
	uint32_t position = N_LONG - KV_PAGE_TOKENS;
	float squares = 0.0f, k[LONG_DIM];

	fill_slot(a, p, 0, 0, position, N_LONG);
	for (uint32_t i = 0; i < LONG_DIM; i++)
		squares += q[i] * q[i];
	for (uint32_t i = 0; i < LONG_DIM; i++)
		k[i] = q[i] * 12.0f * sqrtf(LONG_DIM) / squares;
	for (uint32_t j = 0; j < KV_PAGE_TOKENS; j++) {
		struct op_pages_row row = op_pages_find(a, p, 0, position + j, 0, false, 0);
		op_pages_write(a, p, &row, k);
	}
}

/* Adds n_times n keys from a position on to the sums. */
static void add_keys(struct op_arena *a, const struct op_pages *p, const float *q, uint32_t first,
	uint32_t n, double n_times, double *sums, double *weight)
{
	float k[LONG_DIM], v[LONG_DIM];

	for (uint32_t j = first; j < first + n; j++) {
		struct op_pages_row key = op_pages_find(a, p, 0, j, 0, false, 0);
		struct op_pages_row value = op_pages_find(a, p, 0, j, 0, true, 0);
		double dot = 0.0;

		op_pages_read(a, p, &key, k);
		op_pages_read(a, p, &value, v);
		for (uint32_t i = 0; i < LONG_DIM; i++)
			dot += (double)q[i] * k[i];
		double w = n_times * exp(dot / sqrt(LONG_DIM));
		*weight += w;
		for (uint32_t i = 0; i < LONG_DIM; i++)
			sums[i] += w * v[i];
	}
}

/*
 * A row at the end of the longest context: 2^20 keys are more rounds than the software driver
 * allows one invocation. All entries but the last are the same page.
 */
static void test_longest(void **state)
{
	struct op_pages pages = {.n_layers = 1,
		.n_head_kv = 1,
		.head_dim = LONG_DIM,
		.n_slots = 1,
		.n_slot_pages = N_LONG / KV_PAGE_TOKENS};
	struct abi_row row = {.position = N_LONG - KV_PAGE_TOKENS + N_LAST - 1};
	double sums[LONG_DIM] = {0}, weight = 0.0;
	struct op_arena a;
	struct err e = ERR_NULL;

	(void)state;
	op_arena_init(&a, 1 << 20, seed);
	op_pages_init(&a, &pages);
	uint64_t qkv = op_arena_take_floats(&a, 3 * LONG_DIM);
	const float *q = op_arena_floats(&a, qkv);
	fill_slot(&a, &pages, 0, 0, 0, KV_PAGE_TOKENS);
	fill_last_page(&a, &pages, q);
	uint64_t *entries = op_pages_entry(&a, &pages, 0, 0);
	for (uint32_t i = 1; i < pages.n_slot_pages - 1; i++)
		entries[i] = entries[0];
	uint64_t y = op_arena_take(&a, sizeof(float) * LONG_DIM, 0);
	uint64_t rows_at = op_arena_take(&a, sizeof(row), 0);
	memcpy(a.map + rows_at, &row, sizeof(row));
	struct op_attention_params p = {.qkv = op_arena_address(&a, qkv),
		.y = op_arena_address(&a, y),
		.rows = op_arena_address(&a, rows_at),
		.m = op_arena_address(&a, op_arena_take_u32(&a, 1)),
		.table = op_arena_address(&a, pages.table),
		.n_head = 1,
		.n_head_kv = 1,
		.head_dim = LONG_DIM,
		.n_slot_pages = pages.n_slot_pages,
		.n_rows = 1};

	op_arena_expect(&a, y, sizeof(float) * LONG_DIM);
	on_device_check(op_attention_record(a.pool, op_arena_begin(&a), &p, &e), &e, "record");
	op_arena_run(&a);
	add_keys(&a, &pages, q, 0, KV_PAGE_TOKENS, pages.n_slot_pages - 1, sums, &weight);
	add_keys(&a, &pages, q, N_LONG - KV_PAGE_TOKENS, N_LAST, 1.0, sums, &weight);
	/* The roundings of 10^5 additions a lane; without the last page it would be some tenths. */
	for (uint32_t i = 0; i < LONG_DIM; i++)
		op_arena_check_near(&a, op_arena_floats(&a, y)[i], (float)(sums[i] / weight), 1e-3f,
			"output", i);
	op_arena_fini(&a);
}

/* Each row is in one span, and a tile has no others than it says. */
static void test_spans(void **state)
{
	enum { N = 200, N_ROUNDS = 200 };
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 1 << 16, seed);
	for (uint32_t round = 0; round < N_ROUNDS; round++) {
		uint32_t n_rows = op_arena_random(&a, 1, N), n_spans = op_arena_random(&a, 0, 9);
		uint32_t n_tile_rows = op_arena_random(&a, OP_ATTENTION_TILE_MIN_ROWS, 64);
		uint32_t *spans = malloc(op_attention_span_bytes(n_rows + n_spans));
		uint32_t n_seen[N] = {0}, slot = 0, position = 0;
		struct abi_row rows[N];

		assert_non_null(spans);
		for (uint32_t i = 0; i < n_rows; i++) {
			if (op_arena_random(&a, 0, 9) == 0) {
				slot += op_arena_random(&a, 0, 1); /* else a hole in a session */
				position += op_arena_random(&a, 1, 1000);
			}
			rows[i] = (struct abi_row){.slot = slot, .position = position++};
		}
		op_attention_fill_spans(rows, n_rows, n_tile_rows, n_rows + n_spans, spans);
		for (uint32_t list = 0; list < 2; list++) {
			const uint32_t *head =
				spans + list * op_attention_span_bytes(n_rows + n_spans) / 8;
			const struct abi_span *span = (const struct abi_span *)(head + 4);
			for (uint32_t k = 0; k < head[0]; k++, span++) {
				assert_in_range(span->n, list ? 1 : OP_ATTENTION_TILE_MIN_ROWS,
					list ? 1 : n_tile_rows);
				for (uint32_t i = 0; i < span->n; i++) {
					uint32_t at = span->first + i;
					assert_true(at < n_rows);
					n_seen[at]++;
					assert_int_equal(rows[at].slot, span->slot);
					assert_int_equal(rows[at].position, span->position + i);
				}
			}
		}
		for (uint32_t i = 0; i < n_rows; i++)
			assert_int_equal(n_seen[i], 1);
		free(spans);
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
	p.head_dim = 64;
	p.tune.n_splits = OP_ATTENTION_MAX_SPLITS + 1;
	assert_int_equal(op_attention_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	p.tune.n_splits = 0;
	p.n_slot_pages = UINT32_MAX;
	assert_int_equal(op_attention_record(a.pool, op_arena_begin(&a), &p, &e), -ENOTSUP);
	assert_string_equal(e.text, "attention: a context of 4294967295 pages is too long");
	op_arena_fini(&a);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_f16),
		CASE(test_q8_0),
		CASE(test_split_f16),
		CASE(test_split_q8_0),
		CASE(test_tile_f16),
		CASE(test_tile_q8_0),
		CASE(test_matrix_f16),
		CASE(test_matrix_q8_0),
		CASE(test_windows),
		CASE(test_longest),
		CASE(test_spans),
		CASE(test_refused),
	};

	if (argc > 1)
		n_shapes = (uint32_t)atoi(argv[1]);
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
