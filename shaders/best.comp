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
 * struct abi_best; where there are fewer, the last have the index ABI_BEST_NONE.
 * Grid: PARTS x: n_parts workgroups, MERGE x: 1; y: rows. Rows beyond *m are not computed.
 * Bindings: none; addresses in struct abi_best_push.
 *
 * Nothing is sorted but the result: a radix select finds the value of the last one that is taken,
 * digit by digit from the top, counting in shared memory.
 */
#include "common.glsl"

layout(push_constant, std430) uniform Push
{
	abi_best_push push;
};

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Bests { abi_best at[]; };

const uint N_DIGIT = 256;
const uint N_COARSE = 16; /* runs of digits that are counted together, so that few are walked */
const uint N_FINE = N_DIGIT / N_COARSE;

shared uint counts[N_DIGIT];
shared uint coarse_counts[N_COARSE];
shared uint chosen_digit;
shared uint n_above;  /* with larger digits than the chosen one */
shared uint n_taken;
shared uint lowest;
shared uint taken_key[ABI_BEST_N];
shared uint taken_index[ABI_BEST_N];

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
uint first; /* of the part */

uint n_items()
{
#if defined(BEST_PARTS)
	uint n_part = (push.n + push.n_parts - 1) / push.n_parts;

	first = gl_WorkGroupID.x * n_part;
	return first < push.n ? min(n_part, push.n - first) : 0;
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
	index = Bests(at).at[i].index;
	key = index == ABI_BEST_NONE ? 0 : key_of(Bests(at).at[i].logit);
#endif
}

uint local_id()
{
	return gl_LocalInvocationID.x;
}

/* Of those whose key begins with prefix, how many have each next digit. */
void count_digits(uint n, uint mask, uint prefix, uint shift)
{
	for (uint d = local_id(); d < N_DIGIT; d += LOCAL_SIZE)
		counts[d] = 0;
	barrier();
	for (uint i = local_id(); i < n; i += LOCAL_SIZE) {
		uint key, index;
		load(i, key, index);
		if (key != 0 && (key & mask) == prefix)
			atomicAdd(counts[(key >> shift) & (N_DIGIT - 1)], 1);
	}
	barrier();
}

/* The digit that the n_left-th from above has; 0 where there are fewer. */
void choose_digit(uint n_left)
{
	for (uint c = local_id(); c < N_COARSE; c += LOCAL_SIZE) {
		uint n = 0;
		for (uint d = 0; d < N_FINE; d++)
			n += counts[c * N_FINE + d];
		coarse_counts[c] = n;
	}
	barrier();
	if (local_id() == 0) {
		uint n = 0, c = N_COARSE - 1;
		while (c > 0 && n + coarse_counts[c] < n_left)
			n += coarse_counts[c--];
		uint d = (c + 1) * N_FINE - 1;
		while (d > 0 && n + counts[d] < n_left)
			n += counts[d--];
		chosen_digit = d;
		n_above = n;
	}
	barrier();
}

/* The key of the last one to be taken, and how many with just this key are. */
uint find_last(uint n, out uint n_equal)
{
	uint prefix = 0, mask = 0, n_left = ABI_BEST_N;

	[[unroll]] for (int shift = 24; shift >= 0; shift -= 8) {
		count_digits(n, mask, prefix, shift);
		choose_digit(n_left);
		prefix |= chosen_digit << shift;
		mask |= (N_DIGIT - 1) << shift;
		n_left -= n_above;
	}
	n_equal = n_left;
	return prefix;
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
	uint n = n_items(), n_equal = 0;
	uint last = n > ABI_BEST_N ? find_last(n, n_equal) : 0; /* 0: all are taken */
	bool is_crowded = last != 0 && counts[last & (N_DIGIT - 1)] > n_equal;

	if (local_id() == 0)
		n_taken = 0;
	barrier();
	for (uint i = local_id(); i < n; i += LOCAL_SIZE) {
		uint key, index;
		load(i, key, index);
		if (key != 0 && (key > last || (key == last && !is_crowded)))
			take(key, index);
	}
	barrier();
	if (is_crowded)
		take_lowest(n, last, n_equal);
	barrier();
}

void store(uint at, uint i)
{
#if defined(BEST_PARTS)
	uvec2 y = address_at(push.parts, row * push.n_parts + gl_WorkGroupID.x, ABI_BEST_N * 8);
#else
	uvec2 y = address_at(push.y, row, ABI_BEST_N * 8);
#endif
	bool is_one = i < n_taken;
	Bests(y).at[at].logit = is_one ? float_of(taken_key[i]) : 0.0;
	Bests(y).at[at].index = is_one ? taken_index[i] : ABI_BEST_NONE;
}

/* How many of those taken are better than i. */
uint rank(uint i)
{
	uint n = 0;

	for (uint k = 0; k < n_taken; k++)
		if (taken_key[k] > taken_key[i] ||
			(taken_key[k] == taken_key[i] && taken_index[k] < taken_index[i]))
			n++;
	return n;
}

void main()
{
	row = gl_WorkGroupID.y;
	if (row >= Words(push.m).at[0])
		return;
	select();
	for (uint i = local_id(); i < ABI_BEST_N; i += LOCAL_SIZE) {
#if defined(BEST_PARTS)
		store(i, i);
#else
		store(i < n_taken ? rank(i) : i, i);
#endif
	}
}
