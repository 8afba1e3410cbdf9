/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/attention.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/device.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/rope-kv.h"

enum {
	/* A software driver leaves loops after 65,535 rounds of an invocation, of all its loops. */
	MAX_ROUNDS = 65000,
	/* Warps that hide the latency of memory where a step has one row. */
	GPU_SPLITS = 8,
	/*
	 * Numbers of each query that a lane holds beside its sums of as many; keys that it has in
	 * flight; and subgroups that share a part. More of them would take registers from others.
	 */
	LANE_SIZE = 8,
	LANE_KEYS_F16 = 4,
	LANE_KEYS_Q8_0 = 2,
	PART_SPLITS = 4,
	/* Queries of a tile; of each head dimension its sums take a register of a lane and more. */
	TILE_SUBGROUPS = 8,
	TILE_ROUNDS = 160, /* of a software driver, of a tile of keys */
	/* What a part is worth: keys that a workgroup has in flight, or what a tile takes to begin.
	 */
	SPLIT_PART_KEYS = 128,
	/* Of a step's only row: so many subgroups, and all workgroups there are run at once. */
	LONE_SPLITS = 8,
	LONE_PART_KEYS = 64,
	LONE_GROUPS = 256,
	TILE_PART_KEYS = 512,
	/* All of a device's cores have something to do: parts of the only row of a step. */
	PART_GROUPS = 512,
	/* Of steps that have tiles: rows in none that have workgroups of their own. */
	LISTED_ROWS = 16,
};

/* A shape that tiles have, all in one place: what the host lists and what is recorded agree. */
struct tile {
	enum op_attention_kind kind;
	struct vk_device_matrix matrix;
	uint32_t n_subgroups;
	uint32_t n_queries;
	uint32_t n_heads; /* of each row */
	uint32_t n_rows;
	uint32_t n_keys;
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* The largest divisor of n up to most. */
static uint32_t find_divisor(uint32_t n, uint32_t most)
{
	uint32_t d = min_u32(n, most);

	while (n % d)
		d--;
	return d;
}

/*
 * Query heads of one subgroup: each key is loaded once for all of them. A real device has the
 * cache for that and needs the subgroups; a software driver pays for each load.
 */
static uint32_t choose_heads(const struct op_pool *pool, const struct op_attention_params *p)
{
	uint32_t n_group = p->n_head / p->n_head_kv;
	uint32_t n = op_pool_is_software(pool) && p->head_dim <= 128 ? 4 : 1;

	while (n_group % n)
		n /= 2;
	return n;
}

/* Lanes that share a key of n_vecs loads: at least an eighth of a subgroup, see BLOCK there. */
static uint32_t choose_lanes(const struct op_pool *pool, uint32_t n_vecs)
{
	uint32_t n_subgroup = op_pool_get_subgroup_size(pool);
	uint32_t n = n_subgroup / 8;

	while (n < n_vecs && n < n_subgroup)
		n *= 2;
	return n;
}

/* A row's order of sums must not hang on the step's size, so neither may this. */
static uint32_t choose_splits(
	const struct op_pool *pool, const struct op_attention_params *p, uint32_t n_lanes)
{
	uint32_t n_block = ABI_ATTENTION_UNROLL * op_pool_get_subgroup_size(pool) / n_lanes;
	uint64_t n_rounds = (uint64_t)p->n_slot_pages * KV_PAGE_TOKENS / n_block;
	uint32_t n = op_pool_is_software(pool) ? 1 : GPU_SPLITS;

	if (p->tune.n_splits)
		return min_u32(p->tune.n_splits, OP_ATTENTION_ROW_MAX_SPLITS);
	while (n_rounds / n > MAX_ROUNDS)
		n *= 2;
	return n;
}

/* Shared memory of attention-matrix.comp. */
static uint32_t count_matrix_bytes(const struct tile *t, uint32_t head_dim)
{
	uint32_t width = 2 * max_u32(t->matrix.n, t->matrix.k);
	uint32_t n_kv = 2 * t->n_keys * (head_dim / 8 + 1) * 16;

	return n_kv + t->n_queries * ((width / 8 + 1) * 16 + (width + 4) * 4) + 16;
}

static bool find_matrix_tile(const struct vk_device_info *info, const struct op_attention_params *p,
	struct tile *ret_tile)
{
	struct tile t = {.kind = OP_ATTENTION_MATRIX};

	if (info->n_matrices == 0 || !kernels_has(KERNELS_ATTENTION_MATRIX_F16))
		return false;
	t.matrix = info->matrices[0];
	t.n_subgroups = p->tune.n_splits ? p->tune.n_splits : TILE_SUBGROUPS;
	t.n_queries = t.n_subgroups * t.matrix.m;
	t.n_keys = p->tune.n_keys ? p->tune.n_keys : KV_PAGE_TOKENS;
	uint32_t width = 2 * max_u32(t.matrix.n, t.matrix.k);
	if (p->head_dim % t.matrix.n || p->head_dim % t.matrix.k || p->head_dim % 16 ||
		width > KV_PAGE_TOKENS || width % t.matrix.n || width % t.matrix.k ||
		info->subgroup_size % t.matrix.m || t.n_keys % t.matrix.m)
		return false;
	while (count_matrix_bytes(&t, p->head_dim) > info->max_shared_bytes && t.n_subgroups > 1) {
		t.n_subgroups /= 2;
		t.n_queries = t.n_subgroups * t.matrix.m;
	}
	*ret_tile = t;
	return count_matrix_bytes(&t, p->head_dim) <= info->max_shared_bytes;
}

/* Shared memory of attention-tile.comp. */
static uint32_t count_f32_bytes(const struct tile *t, uint32_t head_dim)
{
	uint32_t n_quarters = (head_dim + 3) / 4;

	return t->n_queries * (16 * n_quarters + 4 * (KV_PAGE_TOKENS + 1) + 20) +
	       KV_PAGE_TOKENS * 4 * (2 * n_quarters + 1) + 16;
}

/* Without matrices: 32 queries, or as many as there is room for. */
static bool find_f32_tile(const struct vk_device_info *info, const struct op_attention_params *p,
	struct tile *ret_tile)
{
	struct tile t = {.kind = OP_ATTENTION_TILE, .n_keys = KV_PAGE_TOKENS};

	/* Narrow subgroups are many, or an invocation would have too many numbers. */
	t.n_subgroups = max_u32(TILE_SUBGROUPS, 128 / info->subgroup_size);
	t.n_queries = 32;
	if (p->tune.n_splits)
		t.n_subgroups = p->tune.n_splits;
	while (count_f32_bytes(&t, p->head_dim) > info->max_shared_bytes && t.n_queries > 4)
		t.n_queries /= 2;
	*ret_tile = t;
	return count_f32_bytes(&t, p->head_dim) <= info->max_shared_bytes;
}

/* The tiles of a step with lists; false: it has none, all its rows are taken one by one. */
static bool find_tile(const struct vk_device_info *info, const struct op_attention_params *p,
	struct tile *ret_tile)
{
	enum op_attention_kind kind = p->tune.kind;
	struct tile t = {0};

	if (kind == OP_ATTENTION_ROW || kind == OP_ATTENTION_SPLIT || kind == OP_ATTENTION_FUSED ||
		(kind == OP_ATTENTION_AUTO &&
			(info->is_software || p->is_exact || p->n_rows < OP_ATTENTION_LIST_ROWS)))
		return false;
	if ((kind == OP_ATTENTION_TILE || !find_matrix_tile(info, p, &t)) &&
		(kind == OP_ATTENTION_MATRIX || !find_f32_tile(info, p, &t)))
		return false;
	t.n_heads = find_divisor(p->n_head / p->n_head_kv, t.n_queries);
	t.n_rows = t.n_queries / t.n_heads;
	*ret_tile = t;
	return true;
}

static enum op_attention_kind choose_kind(
	const struct vk_device_info *info, const struct op_attention_params *p)
{
	struct tile t;

	if (p->tune.kind == OP_ATTENTION_FUSED && !p->rope)
		return OP_ATTENTION_SPLIT;
	if (p->tune.kind != OP_ATTENTION_AUTO)
		return p->tune.kind;
	if (p->is_exact || info->is_software)
		return OP_ATTENTION_ROW;
	if (p->rope)
		return OP_ATTENTION_FUSED;
	if (p->spans && find_tile(info, p, &t))
		return t.kind;
	return OP_ATTENTION_SPLIT;
}

/* Of steps of several rows; a lone one has no more of them. */
static uint32_t choose_split_heads(const struct op_attention_params *p)
{
	if (p->tune.n_heads)
		return p->tune.n_heads;
	return find_divisor(p->n_head / p->n_head_kv, p->head_dim <= 128 ? 4 : 2);
}

static uint64_t count_split_bytes(const struct op_attention_params *p)
{
	return 4ull * ABI_ATTENTION_SLOTS * choose_split_heads(p) * (p->head_dim + 2);
}

void op_attention_get_needs(const struct vk_device_info *info, const struct op_attention_params *p,
	struct op_attention_needs *ret_needs)
{
	struct op_attention_needs needs = {0};
	struct tile t;

	if (p->tune.kind != OP_ATTENTION_ROW &&
		(p->tune.kind != OP_ATTENTION_AUTO || (!p->is_exact && !info->is_software))) {
		needs.n_partial_bytes = count_split_bytes(p);
		needs.n_counter_bytes = 4 * (ABI_ATTENTION_SLOTS + ABI_ATTENTION_TILE_SLOTS);
		if (find_tile(info, p, &t)) {
			needs.n_tile_rows = t.n_rows;
			needs.n_partial_bytes +=
				4ull * ABI_ATTENTION_TILE_SLOTS * t.n_queries * (p->head_dim + 2);
		}
	}
	*ret_needs = needs;
}

/* u32 n, 3 u32, then spans: of tiles, and behind n_spans of them of single rows. */
static uint64_t list_bytes(uint32_t n_spans)
{
	return 16 + sizeof(struct abi_span) * n_spans;
}

uint64_t op_attention_span_bytes(uint32_t n_rows)
{
	return 2 * list_bytes(n_rows);
}

void op_attention_fill_spans(const struct abi_row *rows, uint32_t n_rows, uint32_t n_tile_rows,
	uint32_t n_spans, uint32_t *ret_spans)
{
	uint32_t *singles = ret_spans + list_bytes(n_spans) / sizeof(*ret_spans);
	struct abi_span *tile = (struct abi_span *)(ret_spans + 4);
	struct abi_span *single = (struct abi_span *)(singles + 4);
	uint32_t n_tiles = 0, n_singles = 0, n = 0;

	for (uint32_t first = 0; first < n_rows; first += n) {
		struct abi_span span = {
			.first = first, .slot = rows[first].slot, .position = rows[first].position};

		n = 1;
		while (n < n_tile_rows && first + n < n_rows && rows[first + n].slot == span.slot &&
			rows[first + n].position == span.position + n)
			n++;
		span.n = n;
		if (n >= OP_ATTENTION_TILE_MIN_ROWS) {
			tile[n_tiles++] = span;
			continue;
		}
		for (span.n = 1; span.first < first + n; span.first++, span.position++)
			single[n_singles++] = span;
	}
	ret_spans[0] = n_tiles;
	singles[0] = n_singles;
}

static int fail_context(const struct op_attention_params *p, struct err *ret_err)
{
	return err_set(
		ret_err, ENOTSUP, "attention: a context of %u pages is too long", p->n_slot_pages);
}

static int check(const struct op_attention_params *p, struct err *ret_err)
{
	if (p->head_dim == 0 || p->head_dim % 2 || p->head_dim > OP_ATTENTION_MAX_HEAD_DIM)
		return err_set(ret_err, ENOTSUP,
			"attention: head: expected an even number up to %d, found %u",
			OP_ATTENTION_MAX_HEAD_DIM, p->head_dim);
	if (p->n_head_kv == 0 || p->n_head % p->n_head_kv)
		return err_set(ret_err, ENOTSUP,
			"attention: heads: expected a multiple of %u key heads, found %u",
			p->n_head_kv, p->n_head);
	if (p->tune.n_splits > OP_ATTENTION_MAX_SPLITS)
		return err_set(ret_err, EINVAL, "attention: splits: expected up to %d, found %u",
			OP_ATTENTION_MAX_SPLITS, p->tune.n_splits);
	/* Kernels count tokens in 32 bits, where a driver does not stop them earlier. */
	if (p->n_slot_pages > UINT32_MAX / KV_PAGE_TOKENS)
		return fail_context(p, ret_err);
	return 0;
}

static uint32_t get_flags(const struct op_attention_params *p)
{
	return (p->cap > 0 ? ABI_ATTENTION_FLAG_CAP : 0) |
	       (p->sinks ? ABI_ATTENTION_FLAG_SINKS : 0);
}

/* What all kernels are told. */
static struct abi_attention get_push(const struct op_attention_params *p)
{
	return (struct abi_attention){
		.qkv = p->qkv,
		.y = p->y,
		.rows = p->rows,
		.m = p->m,
		.table = p->table,
		.list = p->spans,
		.sinks = p->sinks,
		.partials = p->partials,
		.counters = p->counters,
		.n_head = p->n_head,
		.n_head_kv = p->n_head_kv,
		.n_slot_pages = p->n_slot_pages,
		.layer = p->layer,
		.window = p->window,
		.n_parts = 1,
		.part_keys = KV_PAGE_TOKENS,
		.scale = 1.0f / sqrtf((float)p->head_dim),
		.cap = p->cap,
	};
}

/* In parts of part_keys at least, so that one row has n_groups workgroups. */
static void set_parts(const struct op_attention_params *p, uint32_t n_groups, uint32_t n_blocks,
	uint32_t part_keys, struct abi_attention *push)
{
	uint32_t n = p->tune.n_parts ? p->tune.n_parts : max_u32(n_groups / n_blocks, 1);

	push->n_parts = p->partials && p->counters ? min_u32(n, ABI_ATTENTION_MAX_PARTS) : 1;
	push->part_keys = p->tune.part_keys ? p->tune.part_keys : part_keys;
}

static int record_row(struct op_pool *pool, struct vk_command *c,
	const struct op_attention_params *p, uint32_t n_vecs, struct err *ret_err)
{
	uint32_t n_heads = choose_heads(pool, p);
	uint32_t n_lanes = choose_lanes(pool, n_vecs);
	uint32_t n_splits = choose_splits(pool, p, n_lanes);
	const struct abi_attention push = get_push(p);
	const struct op_pool_kernel kernel = {
		.id = p->kv_type == KV_LAYOUT_Q8_0 ? KERNELS_ATTENTION_Q8_0 : KERNELS_ATTENTION_F16,
		.n_subgroups = n_splits,
		.n_spec = ABI_ATTENTION_SPEC_FLAGS + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_ATTENTION_SPEC_HEADS - ABI_SPEC_KERNEL] = n_heads,
			[ABI_ATTENTION_SPEC_HEAD_DIM - ABI_SPEC_KERNEL] = p->head_dim,
			[ABI_ATTENTION_SPEC_LANES - ABI_SPEC_KERNEL] = n_lanes,
			[ABI_ATTENTION_SPEC_SPLITS - ABI_SPEC_KERNEL] = n_splits,
			[ABI_ATTENTION_SPEC_FLAGS - ABI_SPEC_KERNEL] = get_flags(p)},
	};

	if (n_splits > OP_ATTENTION_ROW_MAX_SPLITS)
		return fail_context(p, ret_err);
	return op_pool_dispatch(
		pool, c, &kernel, &push, p->n_head / n_heads * n_splits, p->n_rows, ret_err);
}

/* Lanes that share a key of n_vecs loads of `size` numbers. BLOCK divides a page. */
static uint32_t choose_split_lanes(const struct op_pool *pool, const struct op_attention_params *p,
	uint32_t n_vecs, uint32_t n_unroll)
{
	uint32_t n_subgroup = op_pool_get_subgroup_size(pool);
	uint32_t size = p->kv_type == KV_LAYOUT_Q8_0 ? 16 : 8;
	uint32_t n = max_u32(n_subgroup * n_unroll / KV_PAGE_TOKENS, 1);

	if (p->tune.n_lanes)
		return min_u32(max_u32(p->tune.n_lanes, n), n_subgroup);
	while (n < n_subgroup && n < n_vecs && (n_vecs + n - 1) / n * size > LANE_SIZE)
		n *= 2;
	return n;
}

/* How the keys of rows that are taken one by one are cut. */
struct split {
	uint32_t n_heads;
	uint32_t n_blocks; /* of heads */
	uint32_t n_unroll;
	uint32_t n_lanes;
	uint32_t n_subgroups;
	uint32_t n_groups; /* for a row */
	uint32_t part_keys;
};

/* Of a workgroup: all heads' sums of each subgroup; heads made ready, and the new key and value. */
static uint32_t count_split_shared(
	const struct op_attention_params *p, const struct split *s, uint32_t n_vecs)
{
	uint32_t n_words = s->n_heads * s->n_subgroups * (p->head_dim + 2) + 4;

	if (p->rope)
		n_words += (s->n_heads + 2) * p->head_dim + 2 * n_vecs * 5;
	return 4 * n_words;
}

/*
 * The only row of a step with the rope has few keys. They are read again for each head, by cores
 * that have nothing else to do.
 */
static int choose_split(const struct op_pool *pool, const struct op_attention_params *p,
	uint32_t n_vecs, struct split *ret, struct err *ret_err)
{
	const struct vk_device_info *info = op_pool_get_info(pool);
	enum op_attention_kind kind = p->tune.kind;
	bool is_lone = p->rope && p->n_rows == 1;
	struct split s = {.n_heads = is_lone && !p->tune.n_heads ? 1 : choose_split_heads(p),
		.n_unroll = p->kv_type == KV_LAYOUT_Q8_0 ? LANE_KEYS_Q8_0 : LANE_KEYS_F16,
		.n_subgroups = is_lone ? LONE_SPLITS : PART_SPLITS,
		.n_groups = is_lone ? LONE_GROUPS : PART_GROUPS,
		.part_keys = is_lone ? LONE_PART_KEYS : SPLIT_PART_KEYS};

	if (info->is_software)
		s.n_subgroups = 1;
	s.n_blocks = p->n_head / s.n_heads;
	s.n_unroll = p->tune.n_unroll ? p->tune.n_unroll : s.n_unroll;
	s.n_lanes = choose_split_lanes(pool, p, n_vecs, s.n_unroll);
	if (p->tune.n_splits && (!kind || kind == OP_ATTENTION_SPLIT || kind == OP_ATTENTION_FUSED))
		s.n_subgroups = p->tune.n_splits;
	while (s.n_subgroups > 1 &&
		(count_split_shared(p, &s, n_vecs) > info->max_shared_bytes ||
			s.n_subgroups * info->subgroup_size > info->max_invocations))
		s.n_subgroups /= 2;
	if (info->is_software) {
		uint64_t n_rounds = (uint64_t)p->n_slot_pages * KV_PAGE_TOKENS /
				    (s.n_unroll * info->subgroup_size / s.n_lanes);

		while (s.n_subgroups < OP_ATTENTION_MAX_SPLITS &&
			n_rounds / s.n_subgroups > MAX_ROUNDS)
			s.n_subgroups *= 2;
		if (n_rounds / s.n_subgroups > MAX_ROUNDS)
			return fail_context(p, ret_err);
	}
	*ret = s;
	return 0;
}

static struct op_pool_kernel get_split_kernel(
	const struct op_attention_params *p, const struct split *s, uint32_t flags)
{
	return (struct op_pool_kernel){
		.id = p->kv_type == KV_LAYOUT_Q8_0 ? KERNELS_ATTENTION_SPLIT_Q8_0
						   : KERNELS_ATTENTION_SPLIT_F16,
		.n_subgroups = s->n_subgroups,
		.n_spec = ABI_ATTENTION_SPEC_UNROLL + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_ATTENTION_SPEC_HEADS - ABI_SPEC_KERNEL] = s->n_heads,
			[ABI_ATTENTION_SPEC_HEAD_DIM - ABI_SPEC_KERNEL] = p->head_dim,
			[ABI_ATTENTION_SPEC_LANES - ABI_SPEC_KERNEL] = s->n_lanes,
			[ABI_ATTENTION_SPEC_SPLITS - ABI_SPEC_KERNEL] = s->n_subgroups,
			[ABI_ATTENTION_SPEC_FLAGS - ABI_SPEC_KERNEL] = get_flags(p) | flags,
			[ABI_ATTENTION_SPEC_UNROLL - ABI_SPEC_KERNEL] = s->n_unroll},
	};
}

/* Workgroups of each block of heads, for n_rows rows. */
static uint32_t count_split_places(const struct split *s, uint32_t n_rows, uint32_t n_parts)
{
	return max_u32(n_rows, min_u32(ABI_ATTENTION_SLOTS / s->n_blocks, n_rows * n_parts));
}

/* is_listed: the rows that are in no tile, else all. */
static int record_split(struct op_pool *pool, struct vk_command *c,
	const struct op_attention_params *p, uint32_t n_vecs, bool is_listed, struct err *ret_err)
{
	struct abi_attention push = get_push(p);
	struct split s;
	int r = choose_split(pool, p, n_vecs, &s, ret_err);

	if (r)
		return r;
	set_parts(p, s.n_groups, s.n_blocks, s.part_keys, &push);
	if (is_listed)
		push.list += list_bytes(p->n_spans);
	const struct op_pool_kernel kernel =
		get_split_kernel(p, &s, is_listed ? ABI_ATTENTION_FLAG_LIST : 0);
	/* Listed rows are few, as a rule; workgroups take several where they are not. */
	uint32_t n_rows = is_listed ? min_u32(p->n_rows, LISTED_ROWS) : p->n_rows;
	return op_pool_dispatch(pool, c, &kernel, &push, s.n_blocks * s.n_subgroups,
		count_split_places(&s, n_rows, push.n_parts), ret_err);
}

bool op_attention_takes_rope(const struct op_pool *pool, const struct op_attention_params *p)
{
	if (!p->is_spread)
		return false;
	return p->tune.kind == OP_ATTENTION_FUSED ||
	       (p->tune.kind == OP_ATTENTION_AUTO && !p->is_exact && !op_pool_is_software(pool));
}

bool op_attention_has_next(const struct op_attention_params *p)
{
	return p->head_dim % KV_LAYOUT_BLOCK == 0;
}

static uint32_t float_bits(float v)
{
	uint32_t bits;

	memcpy(&bits, &v, sizeof(bits));
	return bits;
}

static int record_fused(struct op_pool *pool, struct vk_command *c,
	const struct op_attention_params *p, uint32_t n_vecs, struct err *ret_err)
{
	const struct op_rope_kv_params *rope = p->rope;
	struct abi_attention parts = get_push(p);
	struct split s;
	int r = choose_split(pool, p, n_vecs, &s, ret_err);

	if (!r && (rope->n_rot % 2 || rope->n_rot > p->head_dim ||
			  (p->next && !op_attention_has_next(p))))
		r = err_set(ret_err, EINVAL, "attention: found heads of %u, %u of them turn%s",
			p->head_dim, rope->n_rot, p->next ? ", and bytes" : "");
	if (r)
		return r;
	set_parts(p, s.n_groups, s.n_blocks, s.part_keys, &parts);
	/* Without a division: see cut_fast(). */
	if (p->n_rows == 1) {
		uint32_t n_most = min_u32(parts.n_parts, ABI_ATTENTION_SLOTS / s.n_blocks);
		while (n_most & (n_most - 1))
			n_most &= n_most - 1;
		parts.n_parts = max_u32(n_most, 1);
		parts.part_keys = max_u32(parts.part_keys, KV_PAGE_TOKENS);
	}
	const struct abi_attention_fused push = {
		.qkv = p->qkv,
		.y = p->y,
		.rows = p->rows,
		.m = p->m,
		.table = p->table,
		.sinks = p->sinks,
		.partials = p->partials,
		.counters = p->counters,
		.q_gain = rope->q_gain,
		.k_gain = rope->k_gain,
		.turns = rope->turns,
		.next = p->next,
		.n_head = p->n_head,
		.n_head_kv = p->n_head_kv,
		.n_slot_pages = p->n_slot_pages,
		.layer = p->layer,
		.window = p->window,
		.n_parts = parts.n_parts,
		.part_keys = parts.part_keys,
		.eps = rope->eps,
	};
	struct op_pool_kernel kernel = get_split_kernel(p, &s,
		(p->n_rows == 1 ? ABI_ATTENTION_FLAG_ONE : 0) |
			(rope->is_interleaved ? ABI_ATTENTION_FLAG_NEIGHBOURS : 0));
	kernel.id = p->kv_type == KV_LAYOUT_Q8_0 ? KERNELS_ATTENTION_FUSED_Q8_0
						 : KERNELS_ATTENTION_FUSED_F16;
	kernel.n_spec = ABI_ATTENTION_SPEC_GROUP + 1 - ABI_SPEC_KERNEL;
	kernel.spec[ABI_ATTENTION_SPEC_ROT - ABI_SPEC_KERNEL] = rope->n_rot;
	kernel.spec[ABI_ATTENTION_SPEC_CAP - ABI_SPEC_KERNEL] = float_bits(p->cap);
	kernel.spec[ABI_ATTENTION_SPEC_NEXT - ABI_SPEC_KERNEL] = p->next ? 1 + p->next_order : 0;
	kernel.spec[ABI_ATTENTION_SPEC_GROUP - ABI_SPEC_KERNEL] = p->n_head / p->n_head_kv;
	return op_pool_dispatch(pool, c, &kernel, &push, s.n_blocks * s.n_subgroups,
		count_split_places(&s, p->n_rows, push.n_parts), ret_err);
}

/* A software driver counts rounds: some for each quarter of a head and key of a tile. */
static bool is_too_long(const struct vk_device_info *info, const struct op_attention_params *p)
{
	return info->is_software &&
	       (uint64_t)p->n_slot_pages * (p->head_dim / 4 + TILE_ROUNDS) > MAX_ROUNDS;
}

static int record_tiles(struct op_pool *pool, struct vk_command *c,
	const struct op_attention_params *p, const struct tile *t, struct err *ret_err)
{
	static const enum kernels_id ids[][KV_LAYOUT_N_TYPES] = {
		[OP_ATTENTION_TILE] = {[KV_LAYOUT_F16] = KERNELS_ATTENTION_TILE_F16,
			[KV_LAYOUT_Q8_0] = KERNELS_ATTENTION_TILE_Q8_0},
		[OP_ATTENTION_MATRIX] = {[KV_LAYOUT_F16] = KERNELS_ATTENTION_MATRIX_F16,
			[KV_LAYOUT_Q8_0] = KERNELS_ATTENTION_MATRIX_Q8_0},
	};
	bool is_matrix = t->kind == OP_ATTENTION_MATRIX;
	uint32_t n_blocks = p->n_head / t->n_heads;
	uint32_t n_most = p->n_rows / OP_ATTENTION_TILE_MIN_ROWS;
	uint32_t flags = get_flags(p) | (op_pool_is_software(pool) ? ABI_ATTENTION_FLAG_STEP : 0) |
			 (p->tune.is_ahead ? ABI_ATTENTION_FLAG_AHEAD : 0);
	struct abi_attention push = get_push(p);
	const struct op_pool_kernel kernel = {
		.id = ids[t->kind][p->kv_type],
		.n_subgroups = t->n_subgroups,
		.n_spec = (is_matrix ? ABI_ATTENTION_TILE_SPEC_K : ABI_ATTENTION_TILE_SPEC_M) + 1 -
			  ABI_SPEC_KERNEL,
		.spec = {[ABI_ATTENTION_TILE_SPEC_HEADS - ABI_SPEC_KERNEL] = t->n_heads,
			[ABI_ATTENTION_TILE_SPEC_HEAD_DIM - ABI_SPEC_KERNEL] = p->head_dim,
			[ABI_ATTENTION_TILE_SPEC_KEYS - ABI_SPEC_KERNEL] = t->n_keys,
			[ABI_ATTENTION_TILE_SPEC_ROWS - ABI_SPEC_KERNEL] = t->n_rows,
			[ABI_ATTENTION_TILE_SPEC_FLAGS - ABI_SPEC_KERNEL] = flags,
			[ABI_ATTENTION_TILE_SPEC_M - ABI_SPEC_KERNEL] =
				is_matrix ? t->matrix.m : t->n_queries,
			[ABI_ATTENTION_TILE_SPEC_N - ABI_SPEC_KERNEL] = t->matrix.n,
			[ABI_ATTENTION_TILE_SPEC_K - ABI_SPEC_KERNEL] = t->matrix.k},
	};

	if (is_too_long(op_pool_get_info(pool), p))
		return fail_context(p, ret_err);
	set_parts(p, PART_GROUPS, n_blocks, TILE_PART_KEYS, &push);
	if (push.n_parts > 1) {
		push.partials += count_split_bytes(p);
		push.counters += 4 * ABI_ATTENTION_SLOTS;
	}
	uint32_t n_x = max_u32(
		n_most, min_u32(ABI_ATTENTION_TILE_SLOTS / n_blocks, n_most * push.n_parts));
	return op_pool_dispatch(pool, c, &kernel, &push, n_x * t->n_subgroups, n_blocks, ret_err);
}

int op_attention_record(struct op_pool *pool, struct vk_command *c,
	const struct op_attention_params *p, struct err *ret_err)
{
	struct kv_layout layout = {0};
	struct tile tile = {0};
	int r = check(p, ret_err);

	if (!r && kv_layout_get(p->kv_type, p->n_head_kv, p->head_dim, &layout))
		r = err_set(ret_err, ENOTSUP, "attention: %u key heads are too many", p->n_head_kv);
	if (r)
		return r;
	enum op_attention_kind kind = choose_kind(op_pool_get_info(pool), p);
	uint32_t n_vecs = layout.n_row_bytes / KV_LAYOUT_ALIGN;
	if (kind == OP_ATTENTION_ROW)
		return record_row(pool, c, p, n_vecs, ret_err);
	if (kind == OP_ATTENTION_SPLIT)
		return record_split(pool, c, p, n_vecs, false, ret_err);
	if (kind == OP_ATTENTION_FUSED)
		return record_fused(pool, c, p, n_vecs, ret_err);
	if (!p->spans || !find_tile(op_pool_get_info(pool), p, &tile) || tile.kind != kind)
		return err_set(ret_err, ENOTSUP,
			"attention: tiles: not with heads of %u on this device, or no spans",
			p->head_dim);
	r = record_split(pool, c, p, n_vecs, true, ret_err);
	return r ? r : record_tiles(pool, c, p, &tile, ret_err);
}
