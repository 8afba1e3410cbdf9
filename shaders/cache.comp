#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a layer's experts have a slot in device memory: those that the rows of a step take, as
 * far as there are slots, in place of those that were not used for the longest time. What is to be
 * copied into which slot is left in misses, for cache-fill.comp; the tables say already where.
 *
 * Shapes: choice [m][n_used] struct abi_choice, slots [n_slots] struct abi_cache_slot.
 * Grid: one subgroup. Bindings: none; addresses in struct abi_cache.
 *
 * A lane has every SUBGROUPth slot, and nobody else touches it. All hits are marked before the
 * first slot is given away, so that no expert of the step loses its own.
 */
#include "common.glsl"

layout(push_constant, std430) uniform Push
{
	abi_cache push;
};

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Choices
{
	abi_choice at[];
};
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Layer
{
	abi_cache_layer at;
};
layout(buffer_reference, std430, buffer_reference_align = 4) buffer State { abi_cache_state at; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Slots { abi_cache_slot at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Misses
{
	abi_cache_miss at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Counts { abi_cache_counts at; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer PairsOut { uvec2 at[]; };

const uint NO_SLOT = 0xffffffffu;

uint expert_of(uint pair)
{
	return Choices(push.choice).at[pair].expert;
}

uint join_lanes(uint bits)
{
	[[unroll]] for (int level = 1; level <= MAX_LEVELS; level++) {
		uint d = SUBGROUP >> level;
		if (d > 0)
			bits |= subgroupShuffleXor(bits, d);
	}
	return bits;
}

/*
 * Marks the lane's slots whose experts are wanted; how many they are. ret_hits: a bit for each of
 * the first 32 pairs that is in one of them.
 */
uint mark(uint n_pairs, uint clock, out uint ret_hits)
{
	Slots slots = Slots(push.slots);
	uint n_found = 0;

	ret_hits = 0;
	for (uint s = lane(); s < push.n_slots; s += SUBGROUP) {
		uint expert = slots.at[s].expert;
		bool is_wanted = false;
		for (uint i = 0; i < n_pairs; i++) {
			if (expert_of(i) != expert)
				continue;
			is_wanted = true;
			ret_hits |= i < 32 ? 1u << i : 0;
		}
		if (is_wanted) {
			slots.at[s].used = clock;
			n_found++;
		}
	}
	return n_found;
}

/*
 * In all lanes: has the expert a slot, and if not, of those that the step does not use the one that
 * was used first.
 */
bool find(uint expert, uint clock, out uint ret_slot)
{
	Slots slots = Slots(push.slots);
	uint is_here = 0;
	uvec2 oldest = uvec2(0, NO_SLOT); /* used, slot */

	for (uint s = lane(); s < push.n_slots; s += SUBGROUP) {
		abi_cache_slot slot = slots.at[s];
		if (slot.expert == expert)
			is_here = 1;
		if (slot.used != clock && (oldest.y == NO_SLOT || slot.used < oldest.x))
			oldest = uvec2(slot.used, s);
	}
	[[unroll]] for (int level = 1; level <= MAX_LEVELS; level++) {
		uint d = SUBGROUP >> level;
		if (d == 0)
			continue;
		uvec2 other = subgroupShuffleXor(oldest, d);
		bool is_older = other.x < oldest.x || (other.x == oldest.x && other.y < oldest.y);
		if (other.y != NO_SLOT && (oldest.y == NO_SLOT || is_older))
			oldest = other;
	}
	ret_slot = oldest.y;
	return sum_lanes(is_here) > 0;
}

/* By the lane that has the slot: from whoever is there to the expert. */
void give(uint s, uint expert, uint clock, uint miss)
{
	abi_cache_layer layer = Layer(push.layer).at;
	Slots slots = Slots(push.slots);
	uint before = slots.at[s].expert;

	for (uint p = 0; p < ABI_CACHE_PARTS; p++) {
		PairsOut table = PairsOut(layer.tables[p]);
		if (before != ABI_CACHE_NO_EXPERT)
			table.at[before] =
				address_at(layer.home[p], before, layer.n_part_bytes[p]);
		uvec2 slot = address_at(layer.slots, s, layer.n_slot_bytes);
		table.at[expert] = address_at(slot, 1, layer.part_at[p]);
	}
	slots.at[s] = abi_cache_slot(expert, clock);
	Misses(push.misses).at[miss] = abi_cache_miss(expert, s);
}

void main()
{
	if (subgroup_x() != 0)
		return;
	uint n_pairs = Words(push.m).at[0] * push.n_used;
	uint clock = 0;
	if (lane() == 0)
		clock = State(push.state).at.clock + 1;
	clock = subgroupShuffle(clock, 0);
	uint hits, n_misses = 0, n_direct = 0, slot;
	uint n_found = sum_lanes(mark(n_pairs, clock, hits));
	hits = join_lanes(hits);

	for (uint i = 0; i < n_pairs; i++) {
		/* A search takes longer than the experts of a step that are all here. */
		if (i < 32 && (hits >> i & 1) != 0)
			continue;
		uint expert = expert_of(i);
		if (find(expert, clock, slot))
			continue;
		if (slot == NO_SLOT) {
			n_direct++;
			continue;
		}
		if (slot % SUBGROUP == lane())
			give(slot, expert, clock, n_misses);
		n_misses++;
	}
	if (lane() != 0)
		return;
	State(push.state).at = abi_cache_state(clock, n_misses);
	Counts counts = Counts(push.counts);
	counts.at.n_found += n_found;
	counts.at.n_fetched += n_misses;
	counts.at.n_direct += n_direct;
}
