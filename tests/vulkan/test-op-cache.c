/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of experts against a plain list in order of use, over many steps of one layer: which
 * experts have slots, what lies in them, where the tables point, and what was counted.
 */
#include <inttypes.h>

#include "tests/vulkan/op-arena.h"
#include "workerd/ops/cache.h"

enum { MAX_EXPERTS = 96, MAX_SLOTS = 96, MAX_PAIRS = 64, N_STEPS = 24 };

static uint64_t seed;

struct shape {
	uint32_t n_expert;
	uint32_t n_slots;
	uint32_t n_used;
	uint32_t n_rows; /* most of a step */
	uint32_t n_liked;
};

/* The layer in the arena: offsets; and what it should look like. */
struct layer {
	struct abi_cache_layer abi;
	struct op_cache_layer op;
	uint64_t at, state, slots, misses, counts, choice, m;
	uint64_t tables[ABI_CACHE_PARTS], home[ABI_CACHE_PARTS], places;
	uint32_t owner[MAX_SLOTS];
	uint32_t used[MAX_SLOTS];
	struct abi_cache_counts expected;
};

static uint64_t take_zeroes(struct op_arena *a, uint64_t n_bytes)
{
	uint64_t at = op_arena_take(a, n_bytes, 0);

	memset(a->map + at, 0, n_bytes);
	return at;
}

static void layer_init(struct op_arena *a, const struct shape *s, struct layer *l)
{
	struct abi_cache_layer *abi = &l->abi;

	*l = (struct layer){0};
	for (uint32_t p = 0; p < ABI_CACHE_PARTS; p++) {
		abi->n_part_bytes[p] = 16 * op_arena_random(a, 1, 40);
		abi->part_at[p] = abi->n_slot_bytes;
		abi->n_slot_bytes += (abi->n_part_bytes[p] + 255) / 256 * 256;
		l->home[p] = op_arena_take_floats(
			a, (uint64_t)s->n_expert * abi->n_part_bytes[p] / sizeof(float));
		l->tables[p] = op_arena_take(a, sizeof(uint64_t) * s->n_expert, 0);
		abi->home[p] = op_arena_address(a, l->home[p]);
		abi->tables[p] = op_arena_address(a, l->tables[p]);
		for (uint32_t e = 0; e < s->n_expert; e++)
			((uint64_t *)(a->map + l->tables[p]))[e] =
				abi->home[p] + (uint64_t)e * abi->n_part_bytes[p];
	}
	l->places = take_zeroes(a, (uint64_t)s->n_slots * abi->n_slot_bytes);
	abi->slots = op_arena_address(a, l->places);
	l->at = op_arena_take(a, sizeof(*abi), 0);
	memcpy(a->map + l->at, abi, sizeof(*abi));
	l->state = take_zeroes(a, sizeof(struct abi_cache_state));
	l->slots = take_zeroes(a, sizeof(struct abi_cache_slot) * s->n_slots);
	l->misses = take_zeroes(a, sizeof(struct abi_cache_miss) * s->n_slots);
	l->counts = take_zeroes(a, sizeof(struct abi_cache_counts));
	l->choice = take_zeroes(a, sizeof(struct abi_choice) * MAX_PAIRS);
	l->m = op_arena_take_u32(a, 0);
	for (uint32_t i = 0; i < s->n_slots; i++) {
		l->owner[i] = ABI_CACHE_NO_EXPERT;
		((struct abi_cache_slot *)(a->map + l->slots))[i].expert = ABI_CACHE_NO_EXPERT;
	}
	l->op = (struct op_cache_layer){.layer = op_arena_address(a, l->at),
		.state = op_arena_address(a, l->state),
		.slots = op_arena_address(a, l->slots),
		.misses = op_arena_address(a, l->misses),
		.counts = op_arena_address(a, l->counts),
		.n_slots = s->n_slots,
		.n_expert_bytes = abi->n_slot_bytes};
}

static void run_step(struct op_arena *a, const struct shape *s, const struct layer *l, uint32_t m)
{
	struct op_cache_params p = {.layer = &l->op,
		.choice = op_arena_address(a, l->choice),
		.m = op_arena_address(a, l->m),
		.n_used = s->n_used,
		.n_rows = s->n_rows};
	struct err e = ERR_NULL;

	memcpy(a->map + l->m, &m, sizeof(m));
	op_arena_expect(a, l->state, sizeof(struct abi_cache_state));
	op_arena_expect(a, l->slots, sizeof(struct abi_cache_slot) * s->n_slots);
	op_arena_expect(a, l->misses, sizeof(struct abi_cache_miss) * s->n_slots);
	op_arena_expect(a, l->counts, sizeof(struct abi_cache_counts));
	op_arena_expect(a, l->places, (uint64_t)s->n_slots * l->abi.n_slot_bytes);
	for (uint32_t p2 = 0; p2 < ABI_CACHE_PARTS; p2++)
		op_arena_expect(a, l->tables[p2], sizeof(uint64_t) * s->n_expert);
	on_device_check(op_cache_record(a->pool, op_arena_begin(a), &p, &e), &e, "record");
	op_arena_run(a);
}

static uint32_t find_slot(const struct layer *l, const struct shape *s, uint32_t expert)
{
	uint32_t i = 0;

	while (i < s->n_slots && l->owner[i] != expert)
		i++;
	return i;
}

/* What the step should do: all hits first, then the least recently used for each miss. */
static void expect_step(struct layer *l, const struct shape *s, const struct abi_choice *choice,
	uint32_t n_pairs, uint32_t clock)
{
	for (uint32_t i = 0; i < n_pairs; i++) {
		uint32_t slot = find_slot(l, s, choice[i].expert);
		if (slot == s->n_slots)
			continue;
		l->expected.n_found += l->used[slot] != clock;
		l->used[slot] = clock;
	}
	for (uint32_t i = 0; i < n_pairs; i++) {
		uint32_t oldest = s->n_slots;
		if (find_slot(l, s, choice[i].expert) < s->n_slots)
			continue;
		for (uint32_t slot = 0; slot < s->n_slots; slot++)
			if (l->used[slot] != clock &&
				(oldest == s->n_slots || l->used[slot] < l->used[oldest]))
				oldest = slot;
		if (oldest == s->n_slots) {
			l->expected.n_direct++;
			continue;
		}
		l->owner[oldest] = choice[i].expert;
		l->used[oldest] = clock;
		l->expected.n_fetched++;
	}
}

static void check_step(const struct op_arena *a, const struct shape *s, const struct layer *l)
{
	const struct abi_cache_slot *slots = (struct abi_cache_slot *)(a->map + l->slots);

	assert_memory_equal(a->map + l->counts, &l->expected, sizeof(l->expected));
	for (uint32_t i = 0; i < s->n_slots; i++) {
		assert_int_equal(slots[i].expert, l->owner[i]);
		assert_int_equal(slots[i].used, l->used[i]);
	}
	for (uint32_t p = 0; p < ABI_CACHE_PARTS; p++) {
		const uint64_t *table = (uint64_t *)(a->map + l->tables[p]);
		uint32_t n_bytes = l->abi.n_part_bytes[p];
		for (uint32_t e = 0; e < s->n_expert; e++) {
			uint32_t slot = find_slot(l, s, e);
			uint64_t home = (uint64_t)e * n_bytes;
			uint64_t place = (uint64_t)slot * l->abi.n_slot_bytes + l->abi.part_at[p];
			if (slot == s->n_slots) {
				assert_int_equal(table[e], l->abi.home[p] + home);
				continue;
			}
			assert_int_equal(table[e], l->abi.slots + place);
			assert_memory_equal(
				a->map + l->places + place, a->map + l->home[p] + home, n_bytes);
		}
	}
}

static void run_shape(struct op_arena *a, const struct shape *s)
{
	struct layer l;

	op_arena_reset(a);
	layer_init(a, s, &l);
	struct abi_choice *choice = (struct abi_choice *)(a->map + l.choice);
	for (uint32_t step = 1; step <= N_STEPS; step++) {
		uint32_t m = op_arena_random(a, 1, s->n_rows);
		for (uint32_t i = 0; i < m * s->n_used; i++)
			choice[i].expert = i % s->n_used == 0
						   ? op_arena_random(a, 0, s->n_liked - 1)
						   : (choice[i - 1].expert + 1) % s->n_expert;
		run_step(a, s, &l, m);
		expect_step(&l, s, choice, m * s->n_used, step);
		check_step(a, s, &l);
	}
}

static void test_shapes(void **state)
{
	struct op_arena a;

	(void)state;
	op_arena_init(&a, 4 << 20, seed);
	for (uint32_t i = 0; i < 20; i++) {
		struct shape s = {.n_expert = op_arena_random(&a, 1, MAX_EXPERTS)};
		s.n_slots = i % 4 == 0 ? 1 : op_arena_random(&a, 1, s.n_expert);
		s.n_used = op_arena_random(&a, 1, s.n_expert < 8 ? s.n_expert : 8);
		s.n_rows = op_arena_random(&a, 1, MAX_PAIRS / s.n_used);
		s.n_rows = i % 2 ? 1 : s.n_rows;
		s.n_liked = op_arena_random(&a, 1, s.n_expert);
		run_shape(&a, &s);
	}
	op_arena_fini(&a);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_shapes),
	};

	on_device_warm_up();
	seed = op_arena_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
