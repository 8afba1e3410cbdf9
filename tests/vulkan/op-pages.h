/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VULKAN_OP_PAGES_H
#define TESTS_VULKAN_OP_PAGES_H

/* KV pages and their table in an arena, as workerd/kv.h lays them out, for the kernels' tests. */
#include "tests/vulkan/op-arena.h"
#include "workerd/kv.h"

struct op_pages {
	uint32_t n_layers;
	uint32_t n_head_kv;
	uint32_t head_dim;
	uint32_t n_slots;
	uint32_t n_slot_pages;
	uint64_t table; /* offset of [n_slots][n_slot_pages] u64 */
};

/* An empty table. */
static inline void op_pages_init(struct op_arena *a, struct op_pages *p)
{
	uint64_t n_bytes = sizeof(uint64_t) * p->n_slots * p->n_slot_pages;

	p->table = op_arena_take(a, n_bytes, 0);
	memset(a->map + p->table, 0, n_bytes);
}

/* The offset of the page of a position, taken from the arena (and poisoned) at its first use. */
static inline uint64_t op_pages_get(
	struct op_arena *a, const struct op_pages *p, uint32_t slot, uint32_t position)
{
	uint64_t *entry = (uint64_t *)(a->map + p->table) + slot * p->n_slot_pages +
			  position / KV_PAGE_TOKENS;

	if (*entry == 0) {
		uint64_t n = 2ull * p->n_layers * KV_PAGE_TOKENS * p->n_head_kv * p->head_dim;
		*entry = op_arena_address(a, op_arena_take(a, n * sizeof(uint16_t), 0));
	}
	return *entry - op_arena_address(a, 0);
}

/* The offset of a position's key (is_value: value) of the layer and head, [head_dim] f16. */
static inline uint64_t op_pages_find(struct op_arena *a, const struct op_pages *p, uint32_t slot,
	uint32_t position, uint32_t layer, bool is_value, uint32_t head)
{
	uint64_t row = (2ull * layer + is_value) * KV_PAGE_TOKENS + position % KV_PAGE_TOKENS;

	return op_pages_get(a, p, slot, position) +
	       sizeof(uint16_t) * (row * p->n_head_kv + head) * p->head_dim;
}

#endif
