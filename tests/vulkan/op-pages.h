/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VULKAN_OP_PAGES_H
#define TESTS_VULKAN_OP_PAGES_H

/* KV pages and their table in an arena, as workerd/kv-layout.h has them, for the kernels' tests. */
#include <math.h>

#include "tests/ref/ref-ops.h"
#include "tests/vulkan/op-arena.h"
#include "workerd/kv-layout.h"

enum { OP_PAGES_MAX_DIM = 256 };

struct op_pages {
	enum kv_layout_type type;
	uint32_t n_layers;
	uint32_t n_head_kv;
	uint32_t head_dim;
	uint32_t n_slots;
	uint32_t n_slot_pages;
	struct kv_layout layout;
	uint64_t table; /* offset of [n_slots][n_slot_pages] u64 */
};

/* An empty table. */
static inline void op_pages_init(struct op_arena *a, struct op_pages *p)
{
	uint64_t n_bytes = sizeof(uint64_t) * p->n_slots * p->n_slot_pages;

	assert_int_equal(kv_layout_get(p->type, p->n_head_kv, p->head_dim, &p->layout), 0);
	p->table = op_arena_take(a, n_bytes, 0);
	memset(a->map + p->table, 0, n_bytes);
}

static inline uint64_t *op_pages_entry(
	struct op_arena *a, const struct op_pages *p, uint32_t slot, uint32_t position)
{
	return (uint64_t *)(a->map + p->table) + slot * p->n_slot_pages + position / KV_PAGE_TOKENS;
}

/* The offset of the page of a position, taken from the arena (and poisoned) at its first use. */
static inline uint64_t op_pages_get(
	struct op_arena *a, const struct op_pages *p, uint32_t slot, uint32_t position)
{
	uint64_t *entry = op_pages_entry(a, p, slot, position);

	if (*entry == 0)
		*entry = op_arena_address(
			a, op_arena_take(a, 2 * p->n_layers * p->layout.n_part_bytes, 0));
	return *entry - op_arena_address(a, 0);
}

/* Offsets of a head's key (is_value: value) at a position: its numbers, and its scales. */
struct op_pages_row {
	uint64_t numbers;
	uint64_t scales;
};

static inline struct op_pages_row op_pages_find(struct op_arena *a, const struct op_pages *p,
	uint32_t slot, uint32_t position, uint32_t layer, bool is_value, uint32_t head)
{
	uint64_t row = (uint64_t)head * KV_PAGE_TOKENS + position % KV_PAGE_TOKENS;
	uint64_t part = op_pages_get(a, p, slot, position) +
			(2ull * layer + is_value) * p->layout.n_part_bytes;

	return (struct op_pages_row){
		.numbers = part + row * p->layout.n_row_bytes,
		.scales = part + p->layout.scales_at + row * p->layout.n_scales * sizeof(uint16_t),
	};
}

/* x [head_dim] in the type of the pages. */
static inline void op_pages_write(struct op_arena *a, const struct op_pages *p,
	const struct op_pages_row *row, const float *x)
{
	uint16_t *halves = (uint16_t *)(a->map + row->numbers);
	int8_t *bytes = (int8_t *)(a->map + row->numbers);
	uint16_t *scales = (uint16_t *)(a->map + row->scales);

	for (uint32_t i = 0; p->type == KV_LAYOUT_F16 && i < p->head_dim; i++)
		halves[i] = ref_ops_to_half(x[i]);
	for (uint32_t i = 0; p->type == KV_LAYOUT_Q8_0 && i < p->head_dim; i += 32)
		ref_ops_quantize_block(x + i, p->head_dim - i < 32 ? p->head_dim - i : 32,
			&scales[i / 32], bytes + i);
}

/* The numbers that a row stands for, [head_dim]. */
static inline void op_pages_read(const struct op_arena *a, const struct op_pages *p,
	const struct op_pages_row *row, float *ret_x)
{
	const uint16_t *halves = (const uint16_t *)(a->map + row->numbers);
	const int8_t *bytes = (const int8_t *)(a->map + row->numbers);
	const uint16_t *scales = (const uint16_t *)(a->map + row->scales);

	for (uint32_t i = 0; i < p->head_dim; i++)
		ret_x[i] = p->type == KV_LAYOUT_F16
				   ? ref_ops_from_half(halves[i])
				   : ref_ops_from_half(scales[i / 32]) * (float)bytes[i];
}

/* Of Q8_0: blocks that were checked, and numbers beside the reference's. */
struct op_pages_seen {
	uint32_t n_blocks;
	uint32_t n_near;
};

/*
 * Fails unless a row is the reference of expected [head_dim]. f16 is rounded either way: Vulkan
 * leaves the direction to the device. So it is with a scale of Q8_0; its numbers are the
 * reference's but where x / scale is within a few roundings of a half.
 */
static inline void op_pages_check(struct op_arena *a, const struct op_pages *p,
	const struct op_pages_row *row, const float *expected, struct op_pages_seen *seen,
	const char *what, uint64_t at)
{
	const int8_t *numbers = (const int8_t *)(a->map + row->numbers);
	const uint16_t *scales = (const uint16_t *)(a->map + row->scales);
	int8_t same[KV_LAYOUT_BLOCK];
	float found[OP_PAGES_MAX_DIM];
	uint16_t scale;

	op_pages_read(a, p, row, found);
	if (p->type == KV_LAYOUT_F16) {
		for (uint32_t i = 0; i < p->head_dim; i++)
			op_arena_check_near(a, found[i], expected[i],
				fabsf(expected[i]) * 0x1p-10f + 1e-6f, what, at * p->head_dim + i);
		return;
	}
	for (uint32_t e = 0; e < p->head_dim; e += KV_LAYOUT_BLOCK) {
		const float *x = expected + e;
		uint32_t n = p->head_dim - e < KV_LAYOUT_BLOCK ? p->head_dim - e : KV_LAYOUT_BLOCK;
		ref_ops_quantize_block(x, n, &scale, same);
		float whole = ref_ops_from_half(scale);
		op_arena_check_near(a, ref_ops_from_half(scales[e / KV_LAYOUT_BLOCK]), whole,
			whole * 0x1p-10f + 0x1p-24f, what, at * p->head_dim + e);
		for (uint32_t i = 0; i < n; i++) {
			float exact = whole > 0.0f ? x[i] / whole : 0.0f;
			/* The scale was rounded by 2^-11, so exact by 127 / 2^11 at most. */
			bool is_near_half = fabsf(fabsf(exact - truncf(exact)) - 0.5f) < 0.07f;
			op_arena_check_near(a, numbers[e + i], same[i], is_near_half ? 1.0f : 0.0f,
				what, at * p->head_dim + e + i);
			seen->n_blocks += i == 0;
			seen->n_near += numbers[e + i] != same[i];
		}
	}
}

#endif
