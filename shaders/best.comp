#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ABI_BEST_N largest of each row of logits, best first; of equal ones the lowest index is the
 * better. What is not finite is none of them.
 *
 *	BEST_PARTS   a workgroup finds those of one part of a row, in any order
 *	BEST_MERGE   a workgroup finds those of all parts of a row, and sorts them
 *
 * Shapes: logits [m][n] f32, parts [m][n_parts][ABI_BEST_N] struct abi_best, y [m][ABI_BEST_N]
 * struct abi_best; where there are fewer, the last have the index ABI_BEST_NONE. MERGE writes the
 * index of the first of y to picked [m] u32 too, for whoever computes the next step. Of a row of
 * which the best alone is asked for, the rest is as where there are no more.
 * Grid: PARTS x: n_parts workgroups, MERGE x: 1; y: rows. Rows beyond *m are not computed.
 * Bindings: none; addresses in struct abi_best_push.
 *
 * Nothing is sorted but the result: the key of the last one that is taken is found bit by bit from the
 * top, by counting those that are at least as large, until just so many are. The first N_HELD keys of
 * an invocation stay in registers meanwhile.
 */
#include "common.glsl"

layout(push_constant, std430) uniform Push
{
	abi_best_push push;
};

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Bests { abi_best at[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer PairsOut { uvec2 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer WordsOut { uint at[]; };

const uint N_SUBGROUPS = LOCAL_SIZE / SUBGROUP;
const uint N_HELD = (ABI_BEST_HELD + LOCAL_SIZE - 1) / LOCAL_SIZE;

uint held_keys[N_HELD];
shared uint counts[2][N_SUBGROUPS]; /* in turn, so that one barrier a count is enough */
shared uint n_taken;
shared uint lowest;
shared uint taken_key[ABI_BEST_N];
shared uint taken_index[ABI_BEST_N];
shared uvec2 results[ABI_BEST_N];

/* Unsigned numbers in the order of the floats, and 0 for what is not finite. */
uint key_of(float v)
{
	uint u = floatBitsToUint(v);

	if ((u & 0x7f800000u) == 0x7f800000u)
		return 0;
	/* Both zeros are one number. */
	return (u & 0x80000000u) == 0 ? u | 0x80000000u : u == 0x80000000u ? u : ~u;
}

float float_of(uint key)
{
	return uintBitsToFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

uint row;
uint first; /* of the part; what is there can be read also where the part is empty */

uint n_items()
{
#if defined(BEST_PARTS)
	uint n_part = (push.n + push.n_parts - 1) / push.n_parts;

	uint at = gl_WorkGroupID.x * n_part;
	first = min(at, push.n - 1);
	return at < push.n ? min(n_part, push.n - at) : 0;
#else
	return push.n_parts * ABI_BEST_N;
#endif
}

void load(uint i, out uint key, out uint index)
{
#if defined(BEST_PARTS)
	key = key_of(Floats(address_at(push.logits, row, 4 * push.n)).at[first + i]);
	index = first + i;
#else
	uvec2 at = address_at(push.parts, row, push.n_parts * ABI_BEST_N * 8);
	abi_best best = Bests(at).at[i];
	index = best.index;
	key = index == ABI_BEST_NONE ? 0 : key_of(best.logit);
#endif
}

uint local_id()
{
	return gl_LocalInvocationID.x;
}

/* All loads are under way before the first is waited for: no branch is between them. */
void hold_keys(uint n)
{
	[[unroll]] for (uint h = 0; h < N_HELD; h++) {
		uint i = h * LOCAL_SIZE + local_id(), index;
		load(min(i, max(n, 1) - 1), held_keys[h], index);
		held_keys[h] = i < n ? held_keys[h] : 0;
	}
}

/* How many keys are at least this one, which is not 0; turn: another one than of the call before. */
uint count_from(uint n, uint least, uint turn)
{
	uint sum = 0;

	[[unroll]] for (uint h = 0; h < N_HELD; h++)
		sum += held_keys[h] >= least ? 1 : 0;
	for (uint i = N_HELD * LOCAL_SIZE + local_id(); i < n; i += LOCAL_SIZE) {
		uint key, index;
		load(i, key, index);
		sum += key >= least ? 1 : 0;
	}
	sum = sum_lanes(sum);
	if (lane() == 0)
		counts[turn][gl_SubgroupID] = sum;
	barrier();
	sum = 0;
	[[unroll]] for (uint s = 0; s < N_SUBGROUPS; s++)
		sum += counts[turn][s];
	return sum;
}

/*
 * The key of the last one to be taken, 0 where all can be; n_equal: of those with just this key so
 * many, 0: all.
 */
uint find_last(uint n, out uint n_equal)
{
	uint last = 0, n_from = 0;

	n_equal = 0;
	for (int bit = 31; bit >= 0 && n_from != ABI_BEST_N; bit--) {
		uint least = last | 1u << bit;
		uint n_least = count_from(n, least, bit & 1);
		if (n_least < ABI_BEST_N)
			continue;
		last = least;
		n_from = n_least;
	}
	if (n_from > ABI_BEST_N) {
		barrier(); /* the last count was of any turn */
		n_equal = ABI_BEST_N - count_from(n, last + 1, 0);
	}
	return last;
}

void take(uint key, uint index)
{
	uint at = atomicAdd(n_taken, 1);

	if (at < ABI_BEST_N) {
		taken_key[at] = key;
		taken_index[at] = index;
	}
}

/* Of those with the last key, which are more than there is room for, the n with the lowest index. */
void take_lowest(uint n_all, uint last, uint n)
{
	uint from = 0; /* the index from which on none has been taken */

	for (uint k = 0; k < n; k++) {
		if (local_id() == 0)
			lowest = ABI_BEST_NONE;
		barrier();
		for (uint i = local_id(); i < n_all; i += LOCAL_SIZE) {
			uint key, index;
			load(i, key, index);
			if (key == last && index >= from)
				atomicMin(lowest, index);
		}
		barrier();
		if (local_id() == 0)
			take(last, lowest);
		from = lowest + 1;
		barrier();
	}
}

void select()
{
	uint n = n_items(), n_equal;

	hold_keys(n);
	uint last = find_last(n, n_equal);
	bool is_crowded = n_equal > 0;
	if (local_id() == 0)
		n_taken = 0;
	barrier();
	uint least = max(is_crowded ? last + 1 : last, 1), key, index;
	[[unroll]] for (uint h = 0; h < N_HELD; h++)
		if (held_keys[h] >= least) {
			load(h * LOCAL_SIZE + local_id(), key, index);
			take(key, index);
		}
	for (uint i = N_HELD * LOCAL_SIZE + local_id(); i < n; i += LOCAL_SIZE) {
		load(i, key, index);
		if (key >= least)
			take(key, index);
	}
	barrier();
	if (is_crowded)
		take_lowest(n, last, n_equal);
	barrier();
}

/* The better of two, as select orders them; 0 is none. */
void keep_better(inout uint key, inout uint index, uint other_key, uint other_index)
{
	if (other_key > key || (other_key == key && other_index < index)) {
		key = other_key;
		index = other_index;
	}
}

/* The best alone; of parts the first of each, which is all that there is. */
void select_first()
{
#if defined(BEST_PARTS)
	const uint stride = 1;
#else
	const uint stride = ABI_BEST_N;
#endif
	uint n = n_items(), best = 0, best_index = ABI_BEST_NONE;

	for (uint i = local_id() * stride; i < n; i += LOCAL_SIZE * stride) {
		uint key, index;
		load(i, key, index);
		keep_better(best, best_index, key, index);
	}
	[[unroll]] for (int level = 0; level < MAX_LEVELS; level++)
		if ((1u << level) < SUBGROUP) {
			uint key = subgroupShuffleXor(best, 1u << level);
			uint index = subgroupShuffleXor(best_index, 1u << level);
			keep_better(best, best_index, key, index);
		}
	if (lane() == 0) {
		taken_key[gl_SubgroupID] = best;
		taken_index[gl_SubgroupID] = best_index;
	}
	barrier();
	if (local_id() == 0) {
		for (uint s = 1; s < LOCAL_SIZE / SUBGROUP; s++)
			keep_better(best, best_index, taken_key[s], taken_index[s]);
		taken_key[0] = best;
		taken_index[0] = best_index;
		n_taken = best != 0 ? 1 : 0;
	}
	barrier();
}

/* How many of those taken are better than i. */
uint rank(uint i)
{
	uint n = 0;

	[[unroll]] for (uint k = 0; k < ABI_BEST_N; k++)
		if (k < n_taken && (taken_key[k] > taken_key[i] ||
					   (taken_key[k] == taken_key[i] &&
						   taken_index[k] < taken_index[i])))
			n++;
	return n;
}

/* Of the i-th taken, its float's bits and index, as struct abi_best. */
uvec2 result_of(uint i)
{
	return i < n_taken ? uvec2(floatBitsToUint(float_of(taken_key[i])), taken_index[i])
			   : uvec2(0, ABI_BEST_NONE);
}

void main()
{
	row = gl_WorkGroupID.y;
	if (row >= Words(push.m).at[0])
		return;
	if (push.asked != uvec2(0) && Words(push.asked).at[row] == 1)
		select_first();
	else
		select();
#if defined(BEST_PARTS)
	PairsOut y = PairsOut(
		address_at(push.parts, row * push.n_parts + gl_WorkGroupID.x, ABI_BEST_N * 8));
	for (uint i = local_id(); i < ABI_BEST_N; i += LOCAL_SIZE)
		y.at[i] = result_of(i);
#else
	/* Sorted here, as y may be memory of the host: that takes few long writes, not many short ones. */
	PairsOut y = PairsOut(address_at(push.y, row, ABI_BEST_N * 8));
	for (uint i = local_id(); i < ABI_BEST_N; i += LOCAL_SIZE)
		results[i < n_taken ? rank(i) : i] = result_of(i);
	barrier();
	for (uint i = local_id(); i < ABI_BEST_N; i += LOCAL_SIZE)
		y.at[i] = results[i];
	if (local_id() == 0 && push.picked != uvec2(0))
		WordsOut(push.picked).at[row] = n_taken > 0 ? results[0].y : 0;
#endif
}
