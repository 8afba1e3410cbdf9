#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pairs (row, rank of an expert it takes) sorted by expert, and cut into groups of up to
 * ABI_GROUP_ROWS of one expert, and of wide_rows too where `wide` has a place for them: a counting
 * sort in which each expert counts for itself.
 *
 * Shapes: choice [m][n_used] struct abi_choice, pairs [n] u32, n = m n_used, groups
 * [n / ABI_GROUP_ROWS + n_expert] struct abi_group, wide [n / wide_rows + n_expert].
 * Grid: x: n_expert, a workgroup an expert.
 * Bindings: none; addresses in struct abi_group_push.
 *
 * An expert whose pairs are [first, first + count) has the slots of groups from
 * first / ABI_GROUP_ROWS + expert up to where the next expert's begin. There are always enough of
 * them, floor(a + b) + 1 >= floor(a) + ceil(b), at most n_expert of all are not used, and no expert
 * needs to know how many groups those before it have.
 */
#include "common.glsl"

layout(push_constant, std430) uniform Push
{
	abi_group_push push;
};

layout(buffer_reference, std430, buffer_reference_align = 4) buffer WordsOut { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Groups { abi_group at[]; };

const uint STEP = 4; /* pairs that an invocation looks at in a round */
const uint N_SUBGROUPS = LOCAL_SIZE / SUBGROUP;

shared uvec2 parts[N_SUBGROUPS]; /* of each subgroup: pairs of experts before, and its own */

uint expert_of(uint pair)
{
	return Words(push.choice).at[2 * pair];
}

/* The sum over the lanes before this one. */
uint sum_lanes_before(uint v)
{
	uint sum = v;

	for (uint d = 1; d < SUBGROUP; d *= 2) {
		uint other = subgroupShuffle(sum, lane() - min(d, lane()));
		sum += lane() >= d ? other : 0;
	}
	return sum - v;
}

void put_groups(uvec2 groups, uint n_rows, uint expert, uint first, uint count)
{
	uint slot = first / n_rows + expert;
	uint end = (first + count) / n_rows + expert + 1;

	for (uint i = gl_LocalInvocationIndex; slot + i < end; i += LOCAL_SIZE) {
		uint at = min(i * n_rows, count);
		Groups(groups).at[slot + i] =
			abi_group(expert, first + at, min(count - at, n_rows));
	}
}

void main()
{
	uint expert = gl_WorkGroupID.x;
	uint n = Words(push.m).at[0] * push.n_used;
	/* An invocation has neighbours: so all of them are in order. */
	uint n_each = (n + LOCAL_SIZE - 1) / LOCAL_SIZE;
	uint begin = min(gl_LocalInvocationIndex * n_each, n), end = min(begin + n_each, n);
	uint n_before = 0, n_own = 0;

	for (uint i0 = begin; i0 < end; i0 += STEP) {
		[[unroll]] for (uint s = 0; s < STEP; s++) {
			uint other = expert_of(min(i0 + s, n - 1));
			bool is_pair = i0 + s < end;
			n_before += is_pair && other < expert ? 1 : 0;
			n_own += is_pair && other == expert ? 1 : 0;
		}
	}
	uint own_before = sum_lanes_before(n_own);
	uvec2 part = uvec2(sum_lanes(n_before), sum_lanes(n_own));
	if (lane() == 0)
		parts[gl_SubgroupID] = part;
	barrier();
	uint first = 0, count = 0, at = own_before;
	for (uint s = 0; s < N_SUBGROUPS; s++) {
		first += parts[s].x;
		at += s < gl_SubgroupID ? parts[s].y : 0;
		count += parts[s].y;
	}
	at += first;
	put_groups(push.groups, ABI_GROUP_ROWS, expert, first, count);
	if (push.wide != uvec2(0))
		put_groups(push.wide, push.wide_rows, expert, first, count);
	if (n_own == 0)
		return;
	for (uint i = begin; i < end; i++)
		if (expert_of(i) == expert)
			WordsOut(push.pairs).at[at++] = i;
}
