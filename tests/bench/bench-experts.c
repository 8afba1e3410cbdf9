/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the experts of one layer of a mixture take (qwen3moe 30B-A3B: 128 of 2048 x 768, 8 a row, in
 * Q4_K), op by op and in the cuts of the tables below: many in one command with barriers between,
 * of several layers in turn, more than a GPU's cache holds, each with experts of its own.
 *
 *	bench-experts [few] [many] [ROWS]...       WEIGHTD_TEST_DEVICE as for the tests
 *
 * few: one row, by bytes. "up, ch": somebody has chosen; "up, ho": and the experts are in the
 * cache; "up, no": of no rows; "down, n": with the bytes for the next op. many: on matrices, for
 * ROWS rows (512). On a software driver there is one small layer. Results are not looked at:
 * that is what test-op-matvec-experts and test-op-matrix-experts are for.
 */
#include <math.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "proto/util/clock.h"
#include "tests/ref/ref-blocks.h"
#include "tests/vulkan/on-device.h"
#include "workerd/ops/experts.h"
#include "workerd/ops/group.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matrix-experts.h"
#include "workerd/ops/matvec-experts.h"
#include "workerd/ops/matvec.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/route.h"
#include "workerd/ops/router.h"

enum {
	K = 2048,
	FF = 768,
	N_EXPERT = 128,
	N_USED = 8,
	MAX_LAYERS = 4,
	MAX_ROWS = 2048,
	N_STEPS_FEW = 32,
	N_STEPS_MANY = 8,
	N_CHOICES = 16, /* of one row */
	N_PIECE_BYTES = 16 << 20,
	WAKE_NS = 600 * 1000 * 1000,
	N_ROUNDS = 4,
};

enum { GATE, UP, DOWN, ROUTER, N_TENSORS };

struct bench {
	struct vk_device *d;
	struct op_pool *pool;
	struct vk_memory *weights, *scratch, *io;
	uint8_t *map; /* of io: what is at the begin of scratch, then a piece of weights */
	struct vk_command *command;
	uint32_t n_layers;
	uint32_t n_expert;
	uint32_t n_rows;
	struct weights_tensor w[MAX_LAYERS][N_TENSORS];
	/* Offsets in scratch. */
	uint64_t tables, choice, x, gain, m, zero, n_input_bytes;
	uint64_t logits, pairs, groups, wide, h, z, y, staging, few_staging, n_scratch_bytes;
	uint64_t n_staging_bytes;
};

/* How an op is to be recorded. */
struct way {
	const char *name;
	void (*record)(struct bench *b, uint32_t step, const struct way *way);
	struct op_matvec_experts_shape cut;
	struct op_matrix_tile tile;
	bool is_down;
	bool is_half;
	bool is_routed; /* who chooses has been before */
	bool is_alone;  /* nobody wants the bytes of y */
	bool is_hot;    /* always the same experts: they are in the cache */
	bool is_empty;  /* of no rows */
	double n_flops;
	double n_bytes;
};

static uint64_t take(uint64_t *at, uint64_t n_bytes)
{
	uint64_t begin = *at;

	*at = (begin + n_bytes + 255) / 256 * 256;
	return begin;
}

static uint64_t address(const struct bench *b, uint64_t offset)
{
	return vk_memory_get_address(b->scratch) + offset;
}

static void place(struct bench *b)
{
	uint64_t at = 0, n_pairs = (uint64_t)MAX_ROWS * N_USED;

	b->tables = take(&at, 8ull * MAX_LAYERS * 3 * N_EXPERT);
	b->choice = take(&at, sizeof(struct abi_choice) * n_pairs);
	b->x = take(&at, 4ull * MAX_ROWS * K);
	b->gain = take(&at, 4ull * K);
	b->m = take(&at, 4);
	b->zero = take(&at, 4);
	b->n_input_bytes = at;
	b->logits = take(&at, 4ull * MAX_ROWS * N_EXPERT);
	b->pairs = take(&at, 4 * n_pairs);
	b->groups = take(
		&at, sizeof(struct abi_group) * op_group_count_slots(MAX_ROWS, N_EXPERT, N_USED));
	b->wide = take(&at, sizeof(struct abi_group) * op_group_count_wide(MAX_ROWS, N_EXPERT,
							       N_USED, ABI_MIN_WIDE_ROWS));
	b->h = take(&at, 4 * n_pairs * FF);
	b->z = take(&at, 4 * n_pairs * K);
	b->y = take(&at, 4ull * MAX_ROWS * K);
	b->n_staging_bytes = 2 * n_pairs * FF + 2ull * MAX_ROWS * K;
	b->staging = take(&at, b->n_staging_bytes);
	b->few_staging = take(&at, b->n_staging_bytes);
	b->n_scratch_bytes = at;
}

static void copy(
	struct bench *b, struct vk_memory *dst, uint64_t dst_at, uint64_t src_at, uint64_t n_bytes)
{
	const struct vk_slice to = {.memory = dst, .offset = dst_at, .n_bytes = n_bytes};
	const struct vk_slice from = {.memory = b->io, .offset = src_at, .n_bytes = n_bytes};

	vk_command_copy(b->command, &to, &from);
}

/* All layers have the same tensors; their bytes are one piece again and again. */
static void make_weights(struct bench *b)
{
	const struct dtype *t = dtype_find(DTYPE_Q4_K);
	uint64_t n_expert_bytes = (uint64_t)K * FF / t->n_block * t->n_bytes, at = 0, state = 1;
	uint64_t *tables = (uint64_t *)(b->map + b->tables);

	b->weights = on_device_memory(b->d, VK_MEMORY_WEIGHTS,
		b->n_layers * (3 * n_expert_bytes * b->n_expert + 4ull * K * b->n_expert), false);
	for (uint32_t l = 0; l < b->n_layers; l++) {
		for (uint32_t i = 0; i < N_TENSORS; i++) {
			struct weights_tensor *w = &b->w[l][i];
			uint64_t k = i == DOWN ? FF : K, n = i == DOWN ? K : FF;
			*w = (struct weights_tensor){
				.address = vk_memory_get_address(b->weights) + at,
				.dtype = i == ROUTER ? DTYPE_F32 : DTYPE_Q4_K,
				.layout = MANIFEST_LAYOUT_RAW,
				.ne = {k, n, b->n_expert, 1},
				.n_bytes = n_expert_bytes * b->n_expert};
			for (uint32_t e = 0; e < b->n_expert && i != ROUTER; e++)
				tables[(l * 3 + i) * N_EXPERT + e] =
					w->address + e * n_expert_bytes;
			if (i == ROUTER) {
				memcpy(w->ne, (uint64_t[]){K, b->n_expert, 1, 1}, sizeof(w->ne));
				w->n_bytes = 4ull * K * b->n_expert;
			}
			at += w->n_bytes;
		}
	}
	ref_blocks_fill(DTYPE_Q4_K, N_PIECE_BYTES / t->n_bytes, 0x1p-6f, 0x1p-6f, &state,
		b->map + b->n_input_bytes);
	vk_command_begin(b->command);
	for (uint64_t to = 0; to < at; to += N_PIECE_BYTES)
		copy(b, b->weights, to, b->n_input_bytes,
			at - to < N_PIECE_BYTES ? at - to : N_PIECE_BYTES);
	on_device_run(b->d, b->command);
}

/* N_USED experts of each row, no two the same. */
static void fill_choice(struct bench *b, uint64_t *state)
{
	struct abi_choice *choice = (struct abi_choice *)(b->map + b->choice);

	for (uint32_t i = 0; i < MAX_ROWS; i++) {
		bool is_taken[N_EXPERT] = {false};
		for (uint32_t r = 0; r < N_USED; r++) {
			uint32_t e;
			do
				e = (uint32_t)(ref_blocks_random(state) >> 33) % b->n_expert;
			while (is_taken[e]);
			is_taken[e] = true;
			choice[i * N_USED + r] =
				(struct abi_choice){.expert = e, .weight = 1.0f / N_USED};
		}
	}
}

static void fill_inputs(struct bench *b)
{
	float *x = (float *)(b->map + b->x), *gain = (float *)(b->map + b->gain);
	uint64_t state = 2;

	for (uint32_t i = 0; i < MAX_ROWS * K; i++)
		x[i] = ref_blocks_random_unit(&state);
	for (uint32_t i = 0; i < K; i++)
		gain[i] = 1;
	fill_choice(b, &state);
	memcpy(b->map + b->m, &b->n_rows, 4);
	memset(b->map + b->zero, 0, 4);
	vk_command_begin(b->command);
	copy(b, b->scratch, 0, 0, b->n_input_bytes);
	on_device_run(b->d, b->command);
}

static void init(struct bench *b)
{
	struct err e = ERR_NULL;

	b->d = on_device_new();
	const struct vk_device_info *info = vk_device_get_info(b->d);
	printf("%s, %s\n", info->name, info->driver);
	on_device_check(op_pool_new(b->d, &e, &b->pool), &e, "pool");
	b->n_layers = info->is_software ? 1 : MAX_LAYERS;
	b->n_expert = info->is_software ? 16 : N_EXPERT;
	b->n_rows = 1;
	place(b);
	b->scratch = on_device_memory(b->d, VK_MEMORY_SCRATCH, b->n_scratch_bytes, false);
	b->io = on_device_memory(b->d, VK_MEMORY_IO, b->n_input_bytes + N_PIECE_BYTES, false);
	b->map = (uint8_t *)on_device_map(b->io);
	b->command = on_device_command(b->d, 2);
	make_weights(b);
	fill_inputs(b);
}

static void fini(struct bench *b)
{
	vk_command_free(b->command);
	vk_memory_free(b->io);
	vk_memory_free(b->scratch);
	vk_memory_free(b->weights);
	op_pool_free(b->pool);
	vk_device_free(b->d);
}

static struct op_experts_params get_params(struct bench *b, uint32_t step, bool is_down)
{
	uint32_t l = step % b->n_layers;
	struct op_experts_params p = {.finish = is_down ? OP_EXPERTS_MIX : OP_EXPERTS_SWIGLU,
		.x = address(b, is_down ? b->h : b->x),
		.y = address(b, is_down ? b->y : b->h),
		.z = address(b, b->z),
		.gain = is_down ? 0 : address(b, b->gain),
		.logits = address(b, b->logits),
		.choice =
			address(b, b->choice + (b->n_rows > 1 ? 0
							      : sizeof(struct abi_choice) * N_USED *
									(step % N_CHOICES))),
		.pairs = address(b, b->pairs),
		.groups = address(b, b->groups),
		.wide = address(b, b->wide),
		.wide_rows = op_group_choose_wide(b->n_rows, b->n_expert, N_USED),
		.staging = address(b, is_down && b->n_rows == 1 ? b->few_staging : b->staging),
		.n_staging_bytes = b->n_staging_bytes,
		.m = address(b, b->m),
		.n_used = N_USED,
		.is_plain = true,
		.eps = 1e-6f,
		.n_rows = b->n_rows};

	for (uint32_t i = is_down ? DOWN : GATE, n = 0; i <= (is_down ? DOWN : UP); i++, n++) {
		p.w[n] = b->w[l][i];
		p.tables[n] = address(b, b->tables + 8ull * (l * 3 + i) * N_EXPERT);
	}
	return p;
}

static void record_matmul(struct bench *b, uint32_t step, const struct way *way)
{
	const struct op_matmul_params p = {.n_parts = 1,
		.w = {b->w[step % b->n_layers][ROUTER]},
		.x = address(b, b->x),
		.y = address(b, b->logits),
		.gain = address(b, b->gain),
		.m = address(b, b->m),
		.staging = address(b, b->staging),
		.n_staging_bytes = b->n_staging_bytes,
		.eps = 1e-6f,
		.n_rows = b->n_rows};
	struct err e = ERR_NULL;

	(void)way;
	on_device_check(op_matmul_record(b->pool, b->command, &p, &e), &e, "matmul");
}

static void record_router(struct bench *b, uint32_t step, const struct way *way)
{
	const struct op_router_params p = {.w = b->w[step % b->n_layers][ROUTER],
		.x = address(b, b->x),
		.gain = address(b, b->gain),
		.logits = address(b, b->logits),

		.m = address(b, b->m),
		.staging = address(b, b->staging),
		.eps = 1e-6f,
		.n_rows = b->n_rows};
	struct err e = ERR_NULL;

	(void)way;
	on_device_check(op_router_record(b->pool, b->command, &p, &e), &e, "router");
}

static void record_few(struct bench *b, uint32_t step, const struct way *way)
{
	if (way->is_hot)
		step = 0;
	struct op_experts_params first = get_params(b, step, false);
	struct op_experts_params second = get_params(b, step, true);
	struct op_experts_params *p = way->is_down ? &second : &first;
	struct op_matvec_experts_shape cut = way->cut;
	struct op_matmul_params after = {.n_parts = 1,
		.w = {{.address = first.w[0].address,
			.dtype = DTYPE_Q4_K,
			.layout = MANIFEST_LAYOUT_RAW,
			.ne = {K, FF, 1, 1},
			.n_bytes = first.w[0].n_bytes / b->n_expert}},
		.gain = first.gain,
		.staging = first.staging,
		.n_staging_bytes = first.n_staging_bytes,
		.n_rows = 1};
	struct err e = ERR_NULL;

	first.is_staged = true;
	if (way->is_down && !way->is_alone)
		assert_true(op_matvec_experts_chain(b->pool, &second, &after));
	p->is_routed = way->is_routed;
	if (way->is_empty)
		p->m = address(b, b->zero);
	if (!cut.n_rows)
		cut = op_matvec_experts_choose(b->pool, p);
	on_device_check(
		op_matvec_experts_record_shape(b->pool, b->command, p, &cut, &e), &e, "few");
}

/* A layer as a plan has it. */
static void record_few_layer(struct bench *b, uint32_t step, const struct way *way)
{
	struct way first = *way, second = *way;

	second.is_down = true;
	record_router(b, step, way);
	vk_command_barrier(b->command);
	record_few(b, step, &first);
	vk_command_barrier(b->command);
	record_few(b, step, &second);
}

static void record_many(struct bench *b, uint32_t step, const struct way *way)
{
	struct op_experts_params p = get_params(b, step, way->is_down);
	struct op_matrix_tile tile = way->tile;
	struct err e = ERR_NULL;

	p.is_half = way->is_half;
	if (tile.bm)
		p.wide_rows = tile.bm;
	else
		tile = op_matrix_experts_choose(b->pool, &p);
	int r = op_matrix_experts_record_tile(b->pool, b->command, &p, &tile, &e);
	if (r == -ENOTSUP)
		return;
	on_device_check(r, &e, "many");
}

static void record_route(struct bench *b, uint32_t step, const struct way *way)
{
	const struct op_route_params p = {.logits = address(b, b->logits),
		.choice = address(b, b->h),
		.m = address(b, b->m),
		.n_expert = b->n_expert,
		.n_used = N_USED,
		.n_rows = b->n_rows};
	struct err e = ERR_NULL;

	(void)step;
	(void)way;
	on_device_check(op_route_record(b->pool, b->command, &p, &e), &e, "route");
}

static void record_group(struct bench *b, uint32_t step, const struct way *way)
{
	const struct op_group_params p = {.choice = address(b, b->choice),
		.pairs = address(b, b->pairs),
		.groups = address(b, b->groups),
		.wide = address(b, b->wide),
		.wide_rows = way->tile.bm ? way->tile.bm
					  : op_group_choose_wide(b->n_rows, b->n_expert, N_USED),
		.m = address(b, b->m),
		.n_expert = b->n_expert,
		.n_used = N_USED,
		.n_rows = b->n_rows};
	struct err e = ERR_NULL;

	(void)step;
	on_device_check(op_group_record(b->pool, b->command, &p, &e), &e, "group");
}

static double run(struct bench *b)
{
	struct err e = ERR_NULL;
	uint64_t ticket, ns[2];

	on_device_check(vk_submit(b->d, &b->command, 1, &e, &ticket), &e, "submit");
	on_device_check(vk_submit_wait(b->d, ticket, UINT64_MAX), &e, "wait");
	on_device_check(vk_command_get_stamps(b->command, ns), &e, "stamps");
	return (double)(ns[1] - ns[0]) * 1e-3;
}

/* The fastest round's time of one step. */
static double measure(struct bench *b, const struct way *way, uint64_t least_ns)
{
	uint32_t n_steps = b->n_rows > 1 ? N_STEPS_MANY : N_STEPS_FEW;
	struct err e = ERR_NULL;
	double us = INFINITY;

	vk_command_begin(b->command);
	if (b->n_rows > 1) {
		record_group(b, 0, way);
		vk_command_barrier(b->command);
	}
	for (uint32_t i = 0; i <= n_steps; i++) {
		way->record(b, i, way);
		vk_command_barrier(b->command);
		if (i == 0 || i == n_steps)
			vk_command_stamp(b->command, i != 0);
	}
	on_device_check(vk_command_end(b->command, &e), &e, "end");
	uint64_t end_ns = clock_now_ns() + least_ns;
	for (int i = 0; i < N_ROUNDS || clock_now_ns() < end_ns; i++)
		us = fmin(us, run(b) / n_steps);
	return us;
}

static void print_way(struct bench *b, const struct way *way)
{
	const struct op_matvec_experts_shape *s = &way->cut;
	const struct op_matrix_tile *t = &way->tile;
	char cut[96] = "";

	if (s->n_rows)
		snprintf(cut, sizeof(cut),
			"rows %u unroll %u subgroups %u groups %u ahead %d held %d", s->n_rows,
			s->n_unroll, s->n_subgroups, s->n_groups, s->is_ahead, s->is_held);
	if (t->bn)
		snprintf(cut, sizeof(cut), "tile %u x %u x %u of %u x %u, %u buffers%s%s", t->bn,
			t->bm, t->bk, t->sn, t->sm, t->n_buffers, t->is_ragged ? ", ragged" : "",
			way->is_half ? ", half" : "");
	double us = measure(b, way, 0);
	printf("%4u rows  %-8s %-52s %9.2f us", b->n_rows, way->name, cut, us);
	if (way->n_bytes > 0)
		printf(" %7.0f GB/s", way->n_bytes / us * 1e-3);
	if (way->n_flops > 0)
		printf(" %7.1f TFLOP/s", way->n_flops / us * 1e-6);
	printf("\n");
	fflush(stdout);
}

static const struct op_matvec_experts_shape up_cuts[] = {
	{0},
	{2, 1, 8, 33, true, true},
	{2, 1, 8, 48, true, true},
	{2, 1, 16, 16, true, true},
	{2, 1, 16, 12, true, true},
	{2, 1, 16, 0, true, true},
	{4, 1, 8, 33, false, true},
	{4, 1, 8, 33, true, true},
	{4, 1, 16, 16, true, true},
};

static const struct op_matvec_experts_shape down_cuts[] = {
	{0},
	{1, 3, 8, 0, false, false},
	{1, 3, 16, 0, false, false},
	{1, 1, 16, 0, true, false},
	{2, 1, 16, 0, true, false},
};

/* All ways are compiled first: a device that waits for that lowers its clock. */
static void run_ways(struct bench *b, const struct way *ways, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		vk_command_begin(b->command);
		ways[i].record(b, 0, &ways[i]);
		on_device_run(b->d, b->command);
	}
	measure(b, &ways[0], WAKE_NS);
	for (size_t i = 0; i < n; i++)
		print_way(b, &ways[i]);
}

static void add_cuts(struct way *ways, size_t *n, const struct way *way,
	const struct op_matvec_experts_shape *cuts, size_t n_cuts)
{
	for (size_t i = 0; i < n_cuts; i++) {
		ways[*n] = *way;
		ways[(*n)++].cut = cuts[i];
	}
}

/* Of one row, all bytes that are read are counted once. */
static void run_few(struct bench *b)
{
	double n_bytes = 1.0 * N_USED * FF * K / 256 * 144;
	static struct way ways[128];
	struct way way = {.name = "matmul", .record = record_matmul, .n_bytes = 4.0 * K * N_EXPERT};
	size_t n = 0;

	b->n_rows = 1;
	fill_inputs(b);
	ways[n++] = way;
	way.name = "router";
	way.record = record_router;
	ways[n++] = way;
	way.record = record_few;
	way.name = "up";
	way.n_bytes = 2 * n_bytes;
	add_cuts(ways, &n, &way, up_cuts, ARRAY_SIZE(up_cuts));
	way.is_routed = true;
	way.name = "up, ch";
	add_cuts(ways, &n, &way, up_cuts, 4);
	way.is_hot = true;
	way.name = "up, ho";
	add_cuts(ways, &n, &way, up_cuts, 5);
	way.is_empty = true;
	way.name = "up, no";
	add_cuts(ways, &n, &way, up_cuts, 1);
	way = (struct way){.name = "down",
		.record = record_few,
		.n_bytes = n_bytes,
		.is_down = true,
		.is_alone = true};
	add_cuts(ways, &n, &way, down_cuts, ARRAY_SIZE(down_cuts));
	way.is_alone = false;
	way.name = "down, n";
	add_cuts(ways, &n, &way, down_cuts, ARRAY_SIZE(down_cuts));
	way.is_hot = true;
	way.name = "down, ho";
	add_cuts(ways, &n, &way, down_cuts, 5);
	way.is_empty = true;
	way.name = "down, no";
	add_cuts(ways, &n, &way, down_cuts, 1);
	ways[n++] =
		(struct way){.name = "layer", .record = record_few_layer, .n_bytes = 3 * n_bytes};
	run_ways(b, ways, n);
}

static const struct op_matrix_tile tiles[] = {
	{0},
	{.bn = 96, .bm = 16, .bk = 64, .sn = 32, .sm = 16, .n_buffers = 1},
	{.bn = 128, .bm = 16, .bk = 64, .sn = 32, .sm = 16, .n_buffers = 1},
	{.bn = 128, .bm = 32, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1},
	{.bn = 96, .bm = 32, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1},
	{.bn = 96, .bm = 48, .bk = 64, .sn = 32, .sm = 48, .n_buffers = 1},
	{.bn = 64, .bm = 48, .bk = 64, .sn = 16, .sm = 48, .n_buffers = 1},
	{.bn = 64, .bm = 48, .bk = 64, .sn = 32, .sm = 48, .n_buffers = 1},
	{.bn = 96, .bm = 64, .bk = 64, .sn = 32, .sm = 64, .n_buffers = 1},
};

static void run_many(struct bench *b, uint32_t n_rows)
{
	double n_flops = 2.0 * n_rows * N_USED * FF * K;
	static struct way ways[64];
	size_t n = 0;

	b->n_rows = n_rows;
	fill_inputs(b);
	ways[n++] = (struct way){.name = "matmul", .record = record_matmul};
	ways[n++] = (struct way){.name = "route", .record = record_route};
	ways[n++] = (struct way){.name = "group", .record = record_group};
	for (uint32_t is_down = 0; is_down <= 1; is_down++) {
		struct way way = {.name = is_down ? "down" : "up",
			.record = record_many,
			.is_down = is_down,
			.n_flops = is_down ? n_flops : 2 * n_flops};
		ways[n++] = way;
		way.is_half = true;
		for (size_t i = 0; i < ARRAY_SIZE(tiles); i++) {
			way.tile = tiles[i];
			ways[n++] = way;
		}
	}
	run_ways(b, ways, n);
}

int main(int argc, char **argv)
{
	static struct bench b;
	bool is_few = argc < 2, is_many = argc < 2, has_rows = false;

	on_device_warm_up();
	init(&b);
	for (int i = 1; i < argc; i++) {
		is_few |= !strcmp(argv[i], "few");
		is_many |= !strcmp(argv[i], "many");
	}
	if (is_few)
		run_few(&b);
	for (int i = 1; i < argc && is_many; i++) {
		uint32_t n_rows = (uint32_t)strtoul(argv[i], NULL, 10);
		if (n_rows < 2 || n_rows > MAX_ROWS)
			continue;
		has_rows = true;
		run_many(&b, n_rows);
	}
	if (is_many && !has_rows)
		run_many(&b, 512);
	fini(&b);
	return 0;
}
