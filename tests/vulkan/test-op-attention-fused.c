/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that turns queries and keys, keeps the new keys and values, attends and makes bytes of
 * its output, against the scalar references of all four: rows of a session each, positions on both
 * sides of page ends and in a session's first place, windows, caps, sinks, norms, factors, both
 * types of pages. A row's own place in the cache is poison before, so that who reads it there has
 * NaN; so is what lies behind it or before its window. Nothing but that place, the output and the
 * bytes may change.
 */
#include <math.h>

#include "tests/ref/ref-ops.h"
#include "tests/vulkan/op-arena.h"
#include "tests/vulkan/op-pages.h"
#include "workerd/ops/attention.h"
#include "workerd/ops/rope-kv.h"

enum { MAX_M = 32, N_CTX = 160, N_DEEP = 2080, LAYER = 1, N_LAYERS = 2 };

static uint64_t seed;
static struct op_pages_seen seen;

struct shape {
	enum kv_layout_type type;
	uint32_t n_head;
	uint32_t n_head_kv;
	uint32_t head_dim;
	uint32_t n_rot;
	uint32_t window;
	uint32_t n_ctx;
	uint32_t m;
	uint32_t n_rows;
	uint32_t order; /* of bytes */
	bool has_bytes;
	bool has_y;
	bool is_interleaved;
	bool has_factors;
	bool has_norms;
	bool has_sinks;
	float cap;
	struct op_attention_tune tune;
};

/* Where everything is in the arena. */
struct site {
	struct op_pages pages;
	struct abi_row rows[MAX_M];
	float factors[OP_ATTENTION_MAX_HEAD_DIM / 2];
	uint64_t qkv;
	uint64_t q_gain;
	uint64_t k_gain;
	uint64_t sinks;
	uint64_t y;
	uint64_t staging;
	struct op_rope_kv_params rope;
	struct op_attention_params params;
};

static uint32_t find_first(const struct shape *s, uint32_t position)
{
	return s->window && position + 1 > s->window ? position + 1 - s->window : 0;
}

static uint32_t get_width(const struct shape *s)
{
	return (s->n_head + 2 * s->n_head_kv) * s->head_dim;
}

/* The keys that a row sees, all but its own; and the page for that. */
static void fill_slot(struct op_arena *a, const struct shape *s, const struct op_pages *p,
	const struct abi_row *row)
{
	float x[OP_ATTENTION_MAX_HEAD_DIM];

	op_pages_get(a, p, row->slot, row->position);
	for (uint32_t j = row->position; j-- > find_first(s, row->position);) {
		for (uint32_t v = 0; v < 2 * p->n_head_kv; v++) {
			struct op_pages_row at =
				op_pages_find(a, p, row->slot, j, LAYER, v % 2, v / 2);
			for (uint32_t i = 0; i < p->head_dim; i++)
				x[i] = op_arena_random_float(a);
			op_pages_write(a, p, &at, x);
		}
	}
}

static uint32_t random_position(struct op_arena *a, const struct shape *s)
{
	static const uint32_t positions[] = {0, 1, 7, 8, 31, 32, 33, 63, 64, 128, N_CTX - 1};
	uint32_t kind = op_arena_random(a, 0, 2);

	if (s->n_ctx > N_CTX && kind > 0)
		return op_arena_random(a, N_CTX, s->n_ctx - 1);
	return kind ? positions[op_arena_random(a, 0, ARRAY_SIZE(positions) - 1)]
		    : op_arena_random(a, 0, N_CTX - 1);
}

/* Rows in any order of slots. */
static void make_rows(struct op_arena *a, const struct shape *s, struct site *site)
{
	uint32_t step = 2 * op_arena_random(a, 0, MAX_M / 2 - 1) + 1; /* MAX_M is a power of two */
	uint32_t first = op_arena_random(a, 0, MAX_M - 1);

	for (uint32_t i = 0; i < s->m; i++) {
		site->rows[i] = (struct abi_row){
			.slot = (first + i * step) % MAX_M, .position = random_position(a, s)};
		fill_slot(a, s, &site->pages, &site->rows[i]);
	}
}

static uint64_t get_row_bytes(const struct shape *s)
{
	return ABI_QUANT_ROW_BYTES(s->n_head * s->head_dim);
}

static void take_rope(struct op_arena *a, const struct shape *s, struct site *site)
{
	uint64_t turns = op_arena_take(a, sizeof(uint64_t) * (s->n_rot / 2 + 1), 0);

	site->q_gain = op_arena_take_floats(a, s->head_dim);
	site->k_gain = op_arena_take_floats(a, s->head_dim);
	for (uint32_t i = 0; i < s->n_rot / 2; i++)
		site->factors[i] = i % 3 ? 0.01f * (float)op_arena_random(a, 5, 3200) : 1.0f;
	op_rope_kv_fill_turns(1e4f, s->has_factors ? site->factors : NULL, s->n_rot,
		(uint64_t *)(a->map + turns));
	site->rope = (struct op_rope_kv_params){
		.q_gain = s->has_norms ? op_arena_address(a, site->q_gain) : 0,
		.k_gain = s->has_norms ? op_arena_address(a, site->k_gain) : 0,
		.turns = op_arena_address(a, turns),
		.n_rot = s->n_rot,
		.is_interleaved = s->is_interleaved,
		.eps = 1e-6f,
	};
}

static void take_needs(struct op_arena *a, struct op_attention_params *p)
{
	struct op_attention_needs needs;

	op_attention_get_needs(op_pool_get_info(a->pool), p, &needs);
	uint64_t partials = op_arena_take(a, needs.n_partial_bytes, 0);
	uint64_t counters = op_arena_take(a, needs.n_counter_bytes, 0);
	memset(a->map + counters, 0, needs.n_counter_bytes);
	memset(a->is_free + partials, 1, needs.n_partial_bytes);
	p->partials = op_arena_address(a, partials);
	p->counters = op_arena_address(a, counters);
}

static void make_site(struct op_arena *a, const struct shape *s, struct site *site)
{
	uint64_t n_y_bytes = sizeof(float) * s->m * s->n_head * s->head_dim;

	*site = (struct site){.pages = {.type = s->type,
				      .n_layers = N_LAYERS,
				      .n_head_kv = s->n_head_kv,
				      .head_dim = s->head_dim,
				      .n_slots = MAX_M,
				      .n_slot_pages = s->n_ctx / KV_PAGE_TOKENS}};
	op_pages_init(a, &site->pages);
	make_rows(a, s, site);
	site->qkv = op_arena_take_floats(a, (uint64_t)s->m * get_width(s));
	for (uint64_t i = 0; i < (uint64_t)s->m * get_width(s); i++)
		op_arena_floats(a, site->qkv)[i] *= 3.0f;
	site->sinks = op_arena_take_floats(a, s->n_head);
	site->y = op_arena_take(a, n_y_bytes, 0);
	site->staging = op_arena_take(a, get_row_bytes(s) * s->m, 0);
	uint64_t rows_at = op_arena_take(a, sizeof(site->rows), 0);
	memcpy(a->map + rows_at, site->rows, sizeof(site->rows[0]) * s->m);
	take_rope(a, s, site);
	site->params = (struct op_attention_params){.qkv = op_arena_address(a, site->qkv),
		.y = s->has_y ? op_arena_address(a, site->y) : 0,
		.rows = op_arena_address(a, rows_at),
		.m = op_arena_address(a, op_arena_take_u32(a, s->m)),
		.table = op_arena_address(a, site->pages.table),
		.sinks = s->has_sinks ? op_arena_address(a, site->sinks) : 0,
		.n_head = s->n_head,
		.n_head_kv = s->n_head_kv,
		.head_dim = s->head_dim,
		.n_slot_pages = site->pages.n_slot_pages,
		.layer = LAYER,
		.window = s->window,
		.cap = s->cap,
		.kv_type = s->type,
		.n_rows = s->n_rows,
		.is_spread = true,
		.rope = &site->rope,
		.next = s->has_bytes ? op_arena_address(a, site->staging) : 0,
		.next_order = s->order,
		.tune = s->tune};
	take_needs(a, &site->params);
}

/* Whole rows of the cache, their scales, and what else is asked for. */
static void expect(struct op_arena *a, const struct shape *s, const struct site *site)
{
	const struct kv_layout *layout = &site->pages.layout;
	uint32_t k = s->n_head * s->head_dim;

	for (uint32_t i = 0; i < s->m; i++) {
		const struct abi_row *row = &site->rows[i];
		for (uint32_t v = 0; v < 2 * s->n_head_kv; v++) {
			struct op_pages_row at = op_pages_find(
				a, &site->pages, row->slot, row->position, LAYER, v % 2, v / 2);
			op_arena_expect(a, at.numbers, layout->n_row_bytes);
			op_arena_expect(a, at.scales, sizeof(uint16_t) * layout->n_scales);
		}
		/* Sums of squares are for norms. */
		if (s->has_bytes)
			op_arena_expect(a, site->staging + i * get_row_bytes(s), k + k / 4);
	}
	if (s->has_y)
		op_arena_expect(a, site->y, sizeof(float) * s->m * k);
}

/* A head of the row, normed and turned, [head_dim]. */
static void turn(const struct op_arena *a, const struct shape *s, const struct site *site,
	uint32_t i, uint32_t head, float *ret_x)
{
	const struct ref_ops_rope rope = {.n_rot = s->n_rot,
		.base = 1e4f,
		.is_interleaved = s->is_interleaved,
		.factors = s->has_factors ? site->factors : NULL};
	const float *gain = op_arena_floats(a, head < s->n_head ? site->q_gain : site->k_gain);

	memcpy(ret_x, op_arena_floats(a, site->qkv) + i * get_width(s) + head * s->head_dim,
		sizeof(float) * s->head_dim);
	if (s->has_norms)
		ref_ops_rms_norm(ret_x, gain, s->head_dim, site->rope.eps, ret_x);
	ref_ops_rope(ret_x, &rope, site->rows[i].position);
}

/* What the row added to the cache. */
static void check_new(
	struct op_arena *a, const struct shape *s, const struct site *site, uint32_t i)
{
	const struct abi_row *row = &site->rows[i];
	float x[OP_ATTENTION_MAX_HEAD_DIM];

	for (uint32_t head = 0; head < s->n_head_kv; head++) {
		struct op_pages_row k = op_pages_find(
			a, &site->pages, row->slot, row->position, LAYER, false, head);
		struct op_pages_row v =
			op_pages_find(a, &site->pages, row->slot, row->position, LAYER, true, head);

		turn(a, s, site, i, s->n_head + head, x);
		op_pages_check(a, &site->pages, &k, x, &seen, "k", i);
		op_pages_check(a, &site->pages, &v,
			op_arena_floats(a, site->qkv) + i * get_width(s) +
				(s->n_head + s->n_head_kv + head) * s->head_dim,
			&seen, "v", i);
	}
}

static float *read_slot(struct op_arena *a, const struct op_pages *p, const struct abi_row *row,
	uint32_t first, bool is_value, uint32_t head)
{
	float *x = malloc(sizeof(float) * (row->position + 1 - first) * p->head_dim);

	assert_non_null(x);
	for (uint32_t j = first; j <= row->position; j++) {
		struct op_pages_row at = op_pages_find(a, p, row->slot, j, LAYER, is_value, head);
		op_pages_read(a, p, &at, x + (j - first) * p->head_dim);
	}
	return x;
}

/* y of the row by the reference, with the new key and value as the kernel left them. */
static void attend(struct op_arena *a, const struct shape *s, const struct site *site, uint32_t i,
	float *ret_y)
{
	const struct abi_row *row = &site->rows[i];
	uint32_t n_group = s->n_head / s->n_head_kv, first = find_first(s, row->position);
	float q[OP_ATTENTION_MAX_HEAD_DIM];

	for (uint32_t head = 0; head < s->n_head_kv; head++) {
		float *k = read_slot(a, &site->pages, row, first, false, head);
		float *v = read_slot(a, &site->pages, row, first, true, head);

		for (uint32_t h = head * n_group; h < (head + 1) * n_group; h++) {
			float sink = s->has_sinks ? op_arena_floats(a, site->sinks)[h] : -INFINITY;
			turn(a, s, site, i, h, q);
			ref_ops_attention_with(q, k, v, row->position + 1 - first, s->head_dim,
				s->head_dim, s->cap, sink, ret_y + h * s->head_dim);
		}
		free(k);
		free(v);
	}
}

/* Number b of word w (0 to 7) of 32, as abi.h says. */
static uint32_t find_number(uint32_t order, uint32_t w, uint32_t b)
{
	switch (order) {
	case ABI_QUANT_ORDER_BY4: return 16 * (w / 4) + 4 * b + w % 4;
	case ABI_QUANT_ORDER_BY8: return 8 * b + w;
	default: return 4 * w + b;
	}
}

/* The bytes of the row stand for y, each as near as bytes with such a scale can be. */
static void check_bytes(const struct op_arena *a, const struct shape *s, const struct site *site,
	uint32_t i, const float *y, float tolerance)
{
	uint32_t k = s->n_head * s->head_dim, n_units = k / 64;
	const uint8_t *row = a->map + site->staging + i * get_row_bytes(s);

	for (uint32_t half = 0; half < k / 32; half++) {
		const uint8_t *said = row + k + 8 * (half % 2 * n_units + half / 2);
		float scale, top = 0.0f;
		int16_t sums[2];
		int found[2] = {0};

		memcpy(&scale, said, sizeof(scale));
		memcpy(sums, said + 4, sizeof(sums));
		for (uint32_t e = 0; e < 32; e++)
			top = fmaxf(top, fabsf(y[32 * half + e]));
		op_arena_check_near(a, scale, top / 127.0f, tolerance, "scale", half);
		for (uint32_t w = 0; w < 8; w++) {
			const int8_t *word = (const int8_t *)row +
					     16 * ((2 * (half % 2) + w / 4) * n_units + half / 2) +
					     4 * (w % 4);
			for (uint32_t b = 0; b < 4; b++) {
				uint32_t e = 32 * half + find_number(s->order, w, b);
				found[w / 4] += word[b];
				op_arena_check_near(a, scale * (float)word[b], y[e],
					0.501f * scale + tolerance, "byte", e);
			}
		}
		assert_int_equal(found[0], sums[0]);
		assert_int_equal(found[1], sums[1]);
	}
}

static void check_site(struct op_arena *a, const struct shape *s, const struct site *site)
{
	/* Scores are up to some dozens, of queries that are wrong by some 2^-24 of themselves. */
	const float tolerance = 1.5e-4f;
	uint32_t k = s->n_head * s->head_dim;
	float *expected = malloc(sizeof(float) * k);

	assert_non_null(expected);
	for (uint32_t i = 0; i < s->m; i++) {
		check_new(a, s, site, i);
		attend(a, s, site, i, expected);
		for (uint32_t e = 0; s->has_y && e < k; e++)
			op_arena_check_near(a, op_arena_floats(a, site->y)[i * k + e], expected[e],
				tolerance, "output", i * k + e);
		if (s->has_bytes)
			check_bytes(a, s, site, i, expected, tolerance);
	}
	free(expected);
}

/* Twice: the same step again has the same bits. */
static void run_shape(struct op_arena *a, const struct shape *s)
{
	struct err e = ERR_NULL;
	struct site site;

	op_arena_reset(a);
	make_site(a, s, &site);
	expect(a, s, &site);
	assert_true(op_attention_takes_rope(a->pool, &site.params));
	on_device_check(
		op_attention_record(a->pool, op_arena_begin(a), &site.params, &e), &e, "record");
	op_arena_run(a);
	check_site(a, s, &site);
	uint8_t *first = malloc(a->at);
	assert_non_null(first);
	memcpy(first, a->map, a->at);
	on_device_check(
		op_attention_record(a->pool, op_arena_begin(a), &site.params, &e), &e, "record");
	op_arena_run(a);
	for (uint64_t i = 0; i < a->at; i++)
		if (a->is_written[i])
			assert_int_equal(first[i], a->map[i]);
	free(first);
}

/* Each compiles another kernel, which takes a software driver a second or two. */
static void run_shapes(enum kv_layout_type type, uint32_t first, uint32_t end)
{
	static const uint32_t dims[] = {64, 128, 96, 80, 256, 34, 2};
	static const uint32_t groups[] = {4, 1, 2, 8, 3, 5};
	static const uint32_t ms[] = {1, 3, 8, 32};
	static const uint32_t splits[] = {0, 2, 8};
	struct op_arena a;

	op_arena_init(&a, 48 << 20, seed);
	for (uint32_t i = first; i < end; i++) {
		struct shape s = {.type = type,
			.head_dim = dims[i % ARRAY_SIZE(dims)],
			.m = ms[i % ARRAY_SIZE(ms)],
			.n_ctx = i % 5 == 4 ? N_DEEP : N_CTX,
			.order = i % 3,
			.is_interleaved = op_arena_random(&a, 0, 1),
			.has_factors = op_arena_random(&a, 0, 1),
			.has_norms = op_arena_random(&a, 0, 1),
			.has_sinks = i % 3 == 1,
			.cap = i % 4 == 2 ? 5.0f : 0.0f,
			.tune = {.kind = OP_ATTENTION_FUSED,
				.n_splits = splits[i % ARRAY_SIZE(splits)],
				.part_keys = op_arena_random(&a, 0, 2) ? KV_PAGE_TOKENS : 0}};
		s.n_head_kv = s.m > 8 || s.n_ctx > N_CTX ? 1 : op_arena_random(&a, 1, 3);
		s.n_head = s.n_head_kv * groups[i % ARRAY_SIZE(groups)];
		s.n_rows = s.m == 1 ? 1 : s.m + op_arena_random(&a, 0, 1);
		s.n_rot = i % 2 ? s.head_dim : 2 * op_arena_random(&a, 0, s.head_dim / 2);
		s.window = i % 3 == 0 ? op_arena_random(&a, 1, s.n_ctx) : 0;
		s.has_bytes = s.head_dim % 32 == 0 && s.n_head * s.head_dim % 64 == 0;
		s.has_y = !s.has_bytes || op_arena_random(&a, 0, 1);
		run_shape(&a, &s);
	}
	op_arena_fini(&a);
}

static void test_f16(void **state)
{
	(void)state;
	run_shapes(KV_LAYOUT_F16, 0, 4);
}

static void test_f16_more(void **state)
{
	(void)state;
	run_shapes(KV_LAYOUT_F16, 4, 8);
}

static void check_seen(void)
{
	print_message(
		"# %u blocks, %u numbers beside the reference's\n", seen.n_blocks, seen.n_near);
	assert_true(seen.n_near <= seen.n_blocks);
	seen = (struct op_pages_seen){0};
}

static void test_q8_0(void **state)
{
	(void)state;
	run_shapes(KV_LAYOUT_Q8_0, 0, 4);
	check_seen();
}

static void test_q8_0_more(void **state)
{
	(void)state;
	run_shapes(KV_LAYOUT_Q8_0, 4, 8);
	check_seen();
}

/* All beginnings of a session and all places around a page's end, one kernel for each type. */
static void test_positions(void **state)
{
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 4 << 20, seed);
	for (int type = 0; type < KV_LAYOUT_N_TYPES; type++) {
		struct shape s = {.type = (enum kv_layout_type)type,
			.head_dim = 64,
			.n_head_kv = 1,
			.n_head = 2,
			.n_rot = 64,
			.m = MAX_M / 2,
			.n_rows = MAX_M / 2,
			.n_ctx = N_CTX,
			.has_y = true,
			.has_bytes = true,
			.tune = {.kind = OP_ATTENTION_FUSED, .part_keys = KV_PAGE_TOKENS}};

		for (uint32_t window = 0; window < 35; window += window ? 16 : 1) {
			s.window = window;
			run_shape(&a, &s);
		}
	}
	op_arena_fini(&a);
}

/* Rows of one session are not for it, nor are exact kernels; others are refused. */
static void test_refused(void **state)
{
	struct op_arena a;
	struct err e = ERR_NULL;
	struct op_rope_kv_params rope = {.n_rot = 66};
	struct op_attention_params p = {.n_head = 2,
		.n_head_kv = 1,
		.head_dim = 64,
		.n_slot_pages = 1,
		.n_rows = 2,
		.rope = &rope,
		.tune.kind = OP_ATTENTION_FUSED};

	(void)state;
	op_arena_init(&a, 1 << 16, seed);
	assert_false(op_attention_takes_rope(a.pool, &p));
	p.is_spread = true;
	assert_true(op_attention_takes_rope(a.pool, &p));
	p.tune.kind = OP_ATTENTION_SPLIT;
	assert_false(op_attention_takes_rope(a.pool, &p));
	p.tune.kind = OP_ATTENTION_AUTO;
	p.is_exact = true;
	assert_false(op_attention_takes_rope(a.pool, &p));
	p.tune.kind = OP_ATTENTION_FUSED;
	assert_int_equal(op_attention_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	rope.n_rot = 33;
	assert_int_equal(op_attention_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	rope.n_rot = 16;
	p.head_dim = 80;
	p.next = 256;
	assert_false(op_attention_has_next(&p));
	assert_int_equal(op_attention_record(a.pool, op_arena_begin(&a), &p, &e), -EINVAL);
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_f16),
		CASE(test_f16_more),
		CASE(test_q8_0),
		CASE(test_q8_0_more),
		CASE(test_positions),
		CASE(test_refused),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
