/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast rows attend to their sessions' keys: decode (one row of each session) and prefill (many
 * rows of one), the kernel of a row beside those that cut keys into parts or rows into tiles. The
 * shape is that of an 8B model: 32 heads, 8 key heads of 128. Keys of a dispatch are not in a
 * cache: it is repeated over layers, each behind a barrier, as a step does it. Some outputs of each
 * are held against the reference.
 *
 *	bench-attention [decode|step|prefill]
 */
#include "tests/vulkan/on-device.h"

#include <math.h>

#include "shaders/abi.h"
#include "tests/ref/ref-ops.h"
#include "workerd/kv-layout.h"
#include "workerd/ops/attention.h"
#include "workerd/ops/matvec.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/rope-kv.h"
#include "workerd/warm.h"

enum {
	N_HEAD = 32,
	N_HEAD_KV = 8,
	HEAD_DIM = 128,
	WIDTH = (N_HEAD + 2 * N_HEAD_KV) * HEAD_DIM,
	MAX_SESSIONS = 32,
	MAX_ROWS = 2048,
	MAX_CTX = 32768,
	MAX_LAYERS = 768,
	MIN_DISPATCHES = 8,
	N_ROUNDS = 3,
	N_CHECKS = 3,
	N_CHUNK_BYTES = 16 << 20, /* of random keys, repeated */
	N_COLD_BYTES = 192 << 20, /* more than a cache holds */
	N_EVICT_BYTES = 96 << 20,
	N_COLD = 24,
	N_COLD_ROUNDS = 12,
};

enum way { ALONE, WITH_ROPE };

struct variant {
	const char *name;
	struct op_attention_tune tune;
};

static const struct variant decode_variants[] = {
	{"row", {.kind = OP_ATTENTION_ROW}},
	{"split", {.kind = OP_ATTENTION_SPLIT}},
	{"split 8 subgroups", {.kind = OP_ATTENTION_SPLIT, .n_splits = 8, .n_parts = 32}},
	{"split x2", {.kind = OP_ATTENTION_SPLIT, .n_unroll = 2}},
	{"split lanes 8 x2", {.kind = OP_ATTENTION_SPLIT, .n_lanes = 8, .n_unroll = 2}},
	{"split lanes 8 x4", {.kind = OP_ATTENTION_SPLIT, .n_lanes = 8, .n_unroll = 4}},
	{"split lanes 8 x2, 8 s.", {.kind = OP_ATTENTION_SPLIT,
					   .n_lanes = 8,
					   .n_unroll = 2,
					   .n_splits = 8,
					   .n_parts = 32}},
	{"split 2 heads", {.kind = OP_ATTENTION_SPLIT, .n_heads = 2}},
	{"split parts 32", {.kind = OP_ATTENTION_SPLIT, .n_parts = 32}},
	{"split parts 16", {.kind = OP_ATTENTION_SPLIT, .n_parts = 16}},
	{"split keys 256", {.kind = OP_ATTENTION_SPLIT, .part_keys = 256}},
	{"split keys 64", {.kind = OP_ATTENTION_SPLIT, .part_keys = 64}},
};

/* With the rope before it and the bytes behind it. */
static const struct variant step_variants[] = {
	{"three dispatches", {.kind = OP_ATTENTION_SPLIT}},
	{"fused", {.kind = OP_ATTENTION_FUSED}},
#define V(h, s, k, u)                                                                            \
	{                                                                                        \
		"fused h" #h " s" #s " k" #k " u" #u,                                            \
		{                                                                                \
			.kind = OP_ATTENTION_FUSED, .n_heads = h, .n_splits = s, .part_keys = k, \
			.n_unroll = u                                                            \
		}                                                                                \
	}
	V(1, 4, 32, 4),
	V(1, 8, 64, 2),
	V(2, 8, 64, 4),
	V(4, 4, 128, 4),
	V(4, 8, 64, 2),
#undef V
};

static const struct variant prefill_variants[] = {
	{"row", {.kind = OP_ATTENTION_ROW}},
	{"matrix", {.kind = OP_ATTENTION_MATRIX}},
	{"matrix ahead", {.kind = OP_ATTENTION_MATRIX, .is_ahead = true}},
	{"matrix ahead keys 64", {.kind = OP_ATTENTION_MATRIX, .is_ahead = true, .n_keys = 64}},
	{"matrix ahead 8 subgr.", {.kind = OP_ATTENTION_MATRIX, .is_ahead = true, .n_splits = 8}},
	{"matrix keys 64", {.kind = OP_ATTENTION_MATRIX, .n_keys = 64}},
	{"matrix 2 subgroups", {.kind = OP_ATTENTION_MATRIX, .n_splits = 2}},
	{"matrix 8 subgroups", {.kind = OP_ATTENTION_MATRIX, .n_splits = 8}},
	{"tile", {.kind = OP_ATTENTION_TILE}},
	{"matrix one part", {.kind = OP_ATTENTION_MATRIX, .n_parts = 1}},
};

struct bench {
	struct vk_device *d;
	struct op_pool *pool;
	struct warm *warm;
	bool is_software;
	enum kv_layout_type type;
	struct kv_layout layout;
	uint8_t *chunk;             /* [n_chunk_bytes] of pages, as on the device */
	uint64_t n_chunk_bytes;     /* whole pages */
	struct vk_memory *chunk_io; /* the same */
	uint32_t n_sessions;
	uint32_t n_ctx;
	uint32_t n_layers;
	uint32_t n_rows;
	uint64_t n_page_bytes;
	uint64_t near_at;
	struct vk_memory *pages[MAX_SESSIONS];
	struct vk_memory *io; /* rows, m, spans, table, queries, counters, y */
	uint8_t *map;
	struct vk_memory *near; /* what io has before the queries */
	struct vk_memory *staging;
	struct vk_memory *cold; /* NULL: of a software driver */
	uint64_t turns;         /* address */
	struct vk_memory *qkv;
	struct vk_memory *y;
	struct vk_memory *partials;
	struct vk_memory *counters;
	struct vk_memory *y_io;
	struct op_attention_params params;
	const float *queries; /* [n_rows][WIDTH] */
	float expected[N_CHECKS][HEAD_DIM];
	uint32_t check_rows[N_CHECKS];
	uint32_t check_heads[N_CHECKS];
};

static uint64_t random_state = 1;

static uint32_t next_random(void)
{
	random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(random_state >> 32);
}

static void copy(struct bench *b, struct vk_memory *dst, uint64_t dst_at, struct vk_memory *src,
	uint64_t src_at, uint64_t n_bytes)
{
	struct vk_command *c = on_device_command(b->d, 0);
	struct vk_slice to = {.memory = dst, .offset = dst_at, .n_bytes = n_bytes};
	struct vk_slice from = {.memory = src, .offset = src_at, .n_bytes = n_bytes};

	vk_command_begin(c);
	vk_command_copy(c, &to, &from);
	vk_command_host_barrier(c);
	on_device_run(b->d, c);
	vk_command_free(c);
}

static void fill(struct bench *b, struct vk_memory *m, uint32_t value)
{
	struct vk_command *c = on_device_command(b->d, 0);
	struct vk_slice whole = on_device_whole(m);

	vk_command_begin(c);
	vk_command_fill(c, &whole, value);
	on_device_run(b->d, c);
	vk_command_free(c);
}

/* A part: numbers of 1/8 to 1 of both signs, or bytes and scales. */
static void make_part(struct bench *b, uint8_t *part)
{
	uint64_t n_rows = N_HEAD_KV * KV_PAGE_TOKENS;
	uint16_t *halves = (uint16_t *)part;
	uint32_t *words = (uint32_t *)part;
	uint16_t *scales = (uint16_t *)(part + b->layout.scales_at);

	if (b->type == KV_LAYOUT_F16) {
		for (uint64_t i = 0; i < n_rows * HEAD_DIM; i++) {
			uint32_t r = next_random();
			halves[i] = (uint16_t)((r & 0x8000) | (0x3000 + (r >> 16) % 0xc00));
		}
		return;
	}
	for (uint64_t i = 0; i < n_rows * HEAD_DIM / 4; i++)
		words[i] = next_random();
	for (uint64_t i = 0; i < n_rows * b->layout.n_scales; i++)
		scales[i] = (uint16_t)(0x1c00 + next_random() % 0x800); /* 1/256 to 1/64 */
}

static void make_chunk(struct bench *b)
{
	uint64_t n_parts = N_CHUNK_BYTES / b->layout.n_part_bytes;

	n_parts = b->is_software ? 64 : n_parts;
	b->n_chunk_bytes = n_parts * b->layout.n_part_bytes;
	b->chunk_io = on_device_memory(b->d, VK_MEMORY_IO, b->n_chunk_bytes, false);
	b->chunk = malloc(b->n_chunk_bytes);
	assert_non_null(b->chunk);
	for (uint64_t i = 0; i < n_parts; i++)
		make_part(b, b->chunk + i * b->layout.n_part_bytes);
	memcpy(on_device_map(b->chunk_io), b->chunk, b->n_chunk_bytes);
}

/* A session's pages one after the other: the chunk again and again, begun elsewhere by each. */
static uint64_t chunk_part(const struct bench *b, uint32_t session, uint64_t part)
{
	return (part + 37 * session) % (b->n_chunk_bytes / b->layout.n_part_bytes);
}

static void make_pages(struct bench *b, uint32_t session)
{
	uint64_t n_parts = b->n_ctx / KV_PAGE_TOKENS * 2ull * b->n_layers;
	uint64_t n_chunk = b->n_chunk_bytes / b->layout.n_part_bytes, n = 0;
	struct vk_command *c = on_device_command(b->d, 0);

	b->pages[session] =
		on_device_memory(b->d, VK_MEMORY_KV, n_parts * b->layout.n_part_bytes, false);
	vk_command_begin(c);
	for (uint64_t at = 0; at < n_parts; at += n) {
		uint64_t from = chunk_part(b, session, at);

		n = n_chunk - from < n_parts - at ? n_chunk - from : n_parts - at;
		struct vk_slice dst = {.memory = b->pages[session],
			.offset = at * b->layout.n_part_bytes,
			.n_bytes = n * b->layout.n_part_bytes};
		struct vk_slice src = {.memory = b->chunk_io,
			.offset = from * b->layout.n_part_bytes,
			.n_bytes = n * b->layout.n_part_bytes};
		vk_command_copy(c, &dst, &src);
	}
	on_device_run(b->d, c);
	vk_command_free(c);
}

/* The key or value of a head as floats. */
static void read_row(const struct bench *b, uint32_t session, uint32_t position, uint32_t layer,
	bool is_value, uint32_t head, float *ret_x)
{
	uint64_t part = position / KV_PAGE_TOKENS * 2ull * b->n_layers + 2 * layer + is_value;
	uint64_t row = (uint64_t)head * KV_PAGE_TOKENS + position % KV_PAGE_TOKENS;
	const uint8_t *at = b->chunk + chunk_part(b, session, part) * b->layout.n_part_bytes;
	const uint16_t *scales = (const uint16_t *)(at + b->layout.scales_at);

	for (uint32_t i = 0; i < HEAD_DIM; i++)
		ret_x[i] = b->type == KV_LAYOUT_F16
				   ? ref_ops_from_half(((const uint16_t *)at)[row * HEAD_DIM + i])
				   : ref_ops_from_half(scales[row * b->layout.n_scales + i / 32]) *
					     (float)((const int8_t *)at)[row * HEAD_DIM + i];
}

static uint64_t kv_bytes(const struct bench *b)
{
	return 2 * b->layout.n_part_bytes / KV_PAGE_TOKENS;
}

/* Some outputs of the last layer. */
static void make_expected(struct bench *b, const struct abi_row *rows)
{
	float *k = malloc(sizeof(float) * b->n_ctx * HEAD_DIM);
	float *v = malloc(sizeof(float) * b->n_ctx * HEAD_DIM);

	assert_true(k && v);
	for (int i = 0; i < N_CHECKS; i++) {
		uint32_t r = i == 0 ? b->n_rows - 1 : next_random() % b->n_rows;
		uint32_t h = next_random() % N_HEAD;
		for (uint32_t j = 0; j <= rows[r].position; j++) {
			read_row(b, rows[r].slot, j, b->n_layers - 1, false, h / 4,
				k + (uint64_t)j * HEAD_DIM);
			read_row(b, rows[r].slot, j, b->n_layers - 1, true, h / 4,
				v + (uint64_t)j * HEAD_DIM);
		}
		ref_ops_attention(b->queries + (uint64_t)r * WIDTH + h * HEAD_DIM, k, v,
			rows[r].position + 1, HEAD_DIM, HEAD_DIM, b->expected[i]);
		b->check_rows[i] = r;
		b->check_heads[i] = h;
	}
	free(k);
	free(v);
}

/* n_rows rows of each session, the last ones of its context. */
static void init_shape(struct bench *b, uint32_t n_sessions, uint32_t n_each, uint32_t n_ctx)
{
	uint64_t n_session_bytes = kv_bytes(b) * n_ctx;
	uint64_t n_layers = N_COLD_BYTES / (n_session_bytes * n_sessions);
	uint32_t n_slot_pages = n_ctx / KV_PAGE_TOKENS;

	b->n_sessions = n_sessions;
	b->n_ctx = n_ctx;
	b->n_layers = b->is_software ? 1 : n_layers < 1 ? 1 : (uint32_t)n_layers;
	b->n_layers = b->n_layers > MAX_LAYERS ? MAX_LAYERS : b->n_layers;
	b->n_rows = n_sessions * n_each;
	b->n_page_bytes = 2ull * b->n_layers * b->layout.n_part_bytes;
	for (uint32_t s = 0; s < n_sessions; s++)
		make_pages(b, s);

	uint64_t n_qkv = 4ull * b->n_rows * WIDTH, n_y = 4ull * b->n_rows * N_HEAD * HEAD_DIM;
	uint64_t rows_at = 256, table_at = rows_at + sizeof(struct abi_row) * b->n_rows + 256;
	table_at &= ~255ull;
	uint64_t spans_at = table_at + 8ull * n_sessions * n_slot_pages;
	uint64_t turns_at = (spans_at + op_attention_span_bytes(b->n_rows) + 255) & ~255ull;
	uint64_t qkv_at = turns_at + 4 * HEAD_DIM;
	b->io = on_device_memory(b->d, VK_MEMORY_IO, qkv_at + n_qkv, false);
	b->map = (uint8_t *)on_device_map(b->io);
	memset(b->map, 0, qkv_at);
	memcpy(b->map, &b->n_rows, sizeof(b->n_rows));
	struct abi_row *rows = (struct abi_row *)(b->map + rows_at);
	for (uint32_t i = 0; i < b->n_rows; i++)
		rows[i] = (struct abi_row){
			.slot = i / n_each, .position = n_ctx - n_each + i % n_each};
	uint64_t *table = (uint64_t *)(b->map + table_at);
	for (uint32_t s = 0; s < n_sessions; s++)
		for (uint32_t i = 0; i < n_slot_pages; i++)
			table[s * n_slot_pages + i] =
				vk_memory_get_address(b->pages[s]) + i * b->n_page_bytes;
	float *queries = (float *)(b->map + qkv_at);
	for (uint64_t i = 0; i < (uint64_t)b->n_rows * WIDTH; i++)
		queries[i] = (float)(int32_t)next_random() * 0x1p-30f;
	/* What the rope writes into the last layer is there already; all turns are whole. */
	for (uint32_t i = 0; i < b->n_rows; i++)
		for (uint32_t h = 0; h < 2 * N_HEAD_KV; h++)
			read_row(b, rows[i].slot, rows[i].position, b->n_layers - 1, h >= N_HEAD_KV,
				h % N_HEAD_KV,
				queries + (uint64_t)i * WIDTH + (N_HEAD + h) * HEAD_DIM);
	b->queries = queries;
	b->qkv = on_device_memory(b->d, VK_MEMORY_SCRATCH, n_qkv, false);
	b->y = on_device_memory(b->d, VK_MEMORY_SCRATCH, n_y, false);
	b->y_io = on_device_memory(b->d, VK_MEMORY_IO, n_y, false);
	b->staging = on_device_memory(b->d, VK_MEMORY_SCRATCH, n_y, false);
	copy(b, b->qkv, 0, b->io, qkv_at, n_qkv);
	make_expected(b, rows);
	b->near_at = qkv_at;
	b->near = on_device_memory(b->d, VK_MEMORY_SCRATCH, qkv_at, false);
	copy(b, b->near, 0, b->io, 0, qkv_at);
	uint64_t io = vk_memory_get_address(b->near);
	b->turns = io + turns_at;
	b->params = (struct op_attention_params){
		.qkv = vk_memory_get_address(b->qkv),
		.y = vk_memory_get_address(b->y),
		.m = io,
		.rows = io + rows_at,
		.table = io + table_at,
		.spans = io + spans_at,
		.n_spans = b->n_rows,
		.n_head = N_HEAD,
		.n_head_kv = N_HEAD_KV,
		.head_dim = HEAD_DIM,
		.n_slot_pages = n_slot_pages,
		.kv_type = b->type,
		.n_rows = b->n_rows,
	};
}

static void fini_shape(struct bench *b)
{
	for (uint32_t s = 0; s < b->n_sessions; s++)
		b->pages[s] = vk_memory_free(b->pages[s]);
	b->io = vk_memory_free(b->io);
	b->near = vk_memory_free(b->near);
	b->qkv = vk_memory_free(b->qkv);
	b->y = vk_memory_free(b->y);
	b->y_io = vk_memory_free(b->y_io);
	b->staging = vk_memory_free(b->staging);
}

/* What the variant takes besides. */
static void init_needs(struct bench *b, struct op_attention_params *p)
{
	struct op_attention_needs needs;
	uint8_t *io = b->map;

	op_attention_get_needs(op_pool_get_info(b->pool), p, &needs);
	if (needs.n_partial_bytes) {
		b->partials =
			on_device_memory(b->d, VK_MEMORY_SCRATCH, needs.n_partial_bytes, false);
		b->counters =
			on_device_memory(b->d, VK_MEMORY_SCRATCH, needs.n_counter_bytes, false);
		fill(b, b->partials, 0x7fc0dead);
		fill(b, b->counters, 0);
		p->partials = vk_memory_get_address(b->partials);
		p->counters = vk_memory_get_address(b->counters);
	}
	uint64_t rows_at = p->rows - vk_memory_get_address(b->near);
	uint64_t spans_at = p->spans - vk_memory_get_address(b->near);
	if (needs.n_tile_rows)
		op_attention_fill_spans((struct abi_row *)(io + rows_at), b->n_rows,
			needs.n_tile_rows, b->n_rows, (uint32_t *)(io + spans_at));
	copy(b, b->near, 0, b->io, 0, b->near_at);
}

static void fini_needs(struct bench *b)
{
	b->partials = vk_memory_free(b->partials);
	b->counters = vk_memory_free(b->counters);
}

/* The largest difference from the reference. */
static float find_error(struct bench *b)
{
	const float *y = (const float *)on_device_map(b->y_io);
	float worst = 0.0f;

	copy(b, b->y_io, 0, b->y, 0, 4ull * b->n_rows * N_HEAD * HEAD_DIM);
	for (int i = 0; i < N_CHECKS; i++)
		for (uint32_t e = 0; e < HEAD_DIM; e++) {
			uint64_t at = ((uint64_t)b->check_rows[i] * N_HEAD + b->check_heads[i]) *
					      HEAD_DIM +
				      e;
			float error = fabsf(y[at] - b->expected[i][e]);
			worst = error <= worst ? worst : error;
		}
	return worst;
}

static bool is_wrong;

/* The variant's dispatches; is_last: its y is looked at. */
static int record(struct bench *b, struct vk_command *c, const struct op_attention_params *params,
	enum way way, bool is_last, struct err *ret_err)
{
	const struct op_rope_kv_params rope = {.qkv = params->qkv,
		.turns = b->turns,
		.rows = params->rows,
		.m = params->m,
		.table = params->table,
		.n_head = N_HEAD,
		.n_head_kv = N_HEAD_KV,
		.head_dim = HEAD_DIM,
		.n_rot = HEAD_DIM,
		.n_slot_pages = params->n_slot_pages,
		.layer = params->layer,
		.kv_type = params->kv_type,
		.n_rows = params->n_rows};
	const struct abi_quantize quantize = {.x = params->y,
		.m = params->m,
		.staging = vk_memory_get_address(b->staging),
		.k = N_HEAD * HEAD_DIM};
	struct op_attention_params p = *params;
	int r = 0;

	if (way == WITH_ROPE && p.tune.kind == OP_ATTENTION_FUSED) {
		p.rope = &rope;
		p.is_spread = true;
		p.next = quantize.staging;
		p.y = is_last ? p.y : 0;
	} else if (way == WITH_ROPE) {
		r = op_rope_kv_record(b->pool, c, &rope, ret_err);
		vk_command_barrier(c);
	}
	if (!r)
		r = op_attention_record(b->pool, c, &p, ret_err);
	vk_command_barrier(c);
	return r || way == ALONE || p.rope ? r
					   : op_matvec_record_quantize(b->pool, c, &quantize,
						     p.n_rows, ABI_QUANT_ORDER_PLAIN, ret_err);
}

/* Reads what no kernel wants, so that nothing that one wants is in a cache. */
static void record_eviction(struct bench *b, struct vk_command *c)
{
	enum { N_SUBGROUPS = 8, UNIT_BYTES = 16, LANE_UNITS = 16 };
	const struct op_pool_kernel kernel = {
		.id = KERNELS_MEMORY_READ, .n_subgroups = N_SUBGROUPS};
	const struct abi_memory push = {.src = vk_memory_get_address(b->cold),
		.dst = vk_memory_get_address(b->cold),
		.n = N_EVICT_BYTES / UNIT_BYTES};
	struct err e = ERR_NULL;

	on_device_check(op_pool_dispatch(b->pool, c, &kernel, &push,
				push.n / LANE_UNITS / op_pool_get_subgroup_size(b->pool), 1, &e),
		&e, "evict");
	vk_command_barrier(c);
}

/* Microseconds of the variant when nothing, its code neither, is in a cache; with timestamps. */
static double time_cold(struct bench *b, const struct op_attention_params *params, enum way way)
{
	struct vk_command *c = on_device_command(b->d, 2 * N_COLD);
	uint64_t stamps[2 * N_COLD];
	struct op_attention_params p = *params;
	double best = 1e30;
	struct err e = ERR_NULL;

	vk_command_begin(c);
	for (uint32_t i = 0; i < N_COLD; i++) {
		p.layer = i % b->n_layers;
		record_eviction(b, c);
		vk_command_stamp(c, 2 * i);
		on_device_check(record(b, c, &p, way, false, &e), &e, "record");
		vk_command_stamp(c, 2 * i + 1);
	}
	on_device_check(vk_command_end(c, &e), &e, "end");
	on_device_check(warm_up(b->warm, &e), &e, "warm up");
	for (int round = 0; round < N_COLD_ROUNDS; round++) {
		uint64_t ticket = 0;
		double ns = 0.0;
		on_device_check(vk_submit(b->d, &c, 1, &e, &ticket), &e, "submit");
		on_device_check(vk_submit_wait(b->d, ticket, UINT64_MAX), &e, "wait");
		on_device_check(vk_command_get_stamps(c, stamps), &e, "stamps");
		for (uint32_t i = 0; i < N_COLD; i++)
			ns += (double)(stamps[2 * i + 1] - stamps[2 * i]);
		best = ns < best ? ns : best;
	}
	vk_command_free(c);
	return best * 1e-3 / N_COLD;
}

/* Microseconds of a dispatch behind another; < 0: there is no such kernel here. */
static double time_variant(
	struct bench *b, const struct variant *v, enum way way, float *ret_error, double *ret_cold)
{
	struct op_attention_params p = b->params;
	uint32_t n = b->n_layers < MIN_DISPATCHES && !b->is_software ? MIN_DISPATCHES : b->n_layers;
	struct vk_command *c = on_device_command(b->d, 2);
	double best = 1e30;
	struct err e = ERR_NULL;
	uint64_t stamps[2];
	int r = 0;

	p.tune = v->tune;
	init_needs(b, &p);
	fill(b, b->y, 0x7fc0dead);
	vk_command_begin(c);
	vk_command_stamp(c, 0);
	for (uint32_t i = 0; i < n && !r; i++) {
		/* The last one is of the last layer. */
		p.layer = (b->n_layers - n % b->n_layers + i) % b->n_layers;
		r = record(b, c, &p, way, i + 1 == n, &e);
	}
	vk_command_stamp(c, 1);
	on_device_check(vk_command_end(c, &e), &e, "end");
	on_device_check(warm_up(b->warm, &e), &e, "warm up");
	for (int i = 0; i < N_ROUNDS && !r; i++) {
		uint64_t ticket = 0;
		on_device_check(vk_submit(b->d, &c, 1, &e, &ticket), &e, "submit");
		on_device_check(vk_submit_wait(b->d, ticket, UINT64_MAX), &e, "wait");
		on_device_check(vk_command_get_stamps(c, stamps), &e, "stamps");
		double us = (double)(stamps[1] - stamps[0]) * 1e-3 / n;
		best = us < best ? us : best;
	}
	if (!r)
		*ret_error = find_error(b);
	if (!r && b->cold && way == WITH_ROPE)
		*ret_cold = time_cold(b, &p, way);
	else if (!r)
		*ret_cold = 0.0;
	else if (r != -ENOTSUP)
		fail_msg("%s: %d %s", v->name, r, e.text);
	vk_command_free(c);
	fini_needs(b);
	return r ? -1.0 : best;
}

static void print_variant(
	struct bench *b, const struct variant *v, enum way way, double n_bytes, double n_flops)
{
	float error = 0.0f;
	double cold = 0.0, us = time_variant(b, v, way, &error, &cold);

	if (us < 0) {
		printf("  %-22s not here\n", v->name);
		return;
	}
	printf("  %-22s %10.1f us", v->name, us);
	if (cold > 0)
		printf(", cold %6.1f us", cold);
	if (n_bytes > 0)
		printf(" %8.1f GB/s", n_bytes / us * 1e-3);
	if (n_flops > 0)
		printf(" %8.2f TFLOP/s", n_flops / us * 1e-6);
	bool is_bad = !(error < 4e-3f);
	is_wrong |= is_bad;
	printf("  error %.1e%s\n", (double)error, is_bad ? " WRONG" : "");
	fflush(stdout);
}

static void bench_decode(struct bench *b, uint32_t n_sessions, uint32_t n_ctx)
{
	init_shape(b, n_sessions, 1, n_ctx);
	printf("decode %s, %u sessions of %u, %u layers\n", kv_layout_type_name(b->type),
		n_sessions, n_ctx, b->n_layers);
	for (unsigned i = 0; i < (b->is_software ? 2 : ARRAY_SIZE(decode_variants)); i++)
		print_variant(b, &decode_variants[i], ALONE,
			(double)kv_bytes(b) * n_ctx * n_sessions, 0.0);
	fini_shape(b);
}

static void bench_step(struct bench *b, uint32_t n_sessions, uint32_t n_ctx)
{
	init_shape(b, n_sessions, 1, n_ctx);
	printf("rope, attention and bytes, %s, %u sessions of %u, %u layers\n",
		kv_layout_type_name(b->type), n_sessions, n_ctx, b->n_layers);
	for (unsigned i = 0; i < (b->is_software ? 2 : ARRAY_SIZE(step_variants)); i++)
		print_variant(b, &step_variants[i], WITH_ROPE,
			(double)kv_bytes(b) * n_ctx * n_sessions, 0.0);
	fini_shape(b);
}

static void bench_prefill(struct bench *b, uint32_t n_rows, uint32_t depth)
{
	double n_keys = 0.5 * n_rows * (n_rows + 1.0) + (double)n_rows * depth;

	init_shape(b, 1, n_rows, depth + n_rows);
	printf("prefill %s, %u rows at %u\n", kv_layout_type_name(b->type), n_rows, depth);
	for (unsigned i = 0; i < (b->is_software ? 2 : ARRAY_SIZE(prefill_variants)); i++)
		print_variant(
			b, &prefill_variants[i], ALONE, 0.0, 4.0 * N_HEAD * HEAD_DIM * n_keys);
	fini_shape(b);
}

int main(int argc, char **argv)
{
	static const uint32_t contexts[] = {512, 4096, 32768};
	static const uint32_t step_contexts[] = {64, 512, 160, 1024, 4096, 32768};
	static const uint32_t sessions[] = {1, 32};
	static const uint32_t rows[] = {512, 2048};
	static const uint32_t depths[] = {0, 8192};
	static struct bench b;
	struct err e = ERR_NULL;

	on_device_warm_up();
	b.d = on_device_new();
	const struct vk_device_info *info = vk_device_get_info(b.d);
	b.is_software = info->is_software;
	on_device_check(op_pool_new(b.d, &e, &b.pool), &e, "pool");
	on_device_check(warm_new(b.d, &e, &b.warm), &e, "warm");
	printf("%s, %s\n", info->name, info->driver);
	if (!b.is_software)
		b.cold = on_device_memory(b.d, VK_MEMORY_SCRATCH, N_EVICT_BYTES, false);
	for (int type = 0; type < KV_LAYOUT_N_TYPES; type++) {
		b.type = (enum kv_layout_type)type;
		assert_int_equal(kv_layout_get(b.type, N_HEAD_KV, HEAD_DIM, &b.layout), 0);
		make_chunk(&b);
		for (unsigned i = 0; i < 6 && (argc < 2 || !strcmp(argv[1], "decode")); i++)
			if (!b.is_software || i == 0)
				bench_decode(&b, sessions[i / 3], contexts[i % 3]);
		for (unsigned i = 0; i < 8 && (argc < 2 || !strcmp(argv[1], "step")); i++)
			if (!b.is_software || i == 0)
				bench_step(&b, sessions[i / 6], step_contexts[i % 6]);
		for (unsigned i = 0; i < 4 && (argc < 2 || !strcmp(argv[1], "prefill")); i++)
			if (!b.is_software)
				bench_prefill(&b, rows[i % 2], depths[i / 2]);
			else if (i == 0)
				bench_prefill(&b, 32, 32);
		free(b.chunk);
		vk_memory_free(b.chunk_io);
	}
	warm_free(b.warm);
	vk_memory_free(b.cold);
	op_pool_free(b.pool);
	vk_device_free(b.d);
	return is_wrong;
}
