#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pairs (row, rank of an expert it takes) sorted by expert, and cut into groups of up to
 * ABI_GROUP_ROWS of one expert, and of ABI_MATRIX_GROUP_ROWS too where `wide` has a place for them: a
 * counting sort in which each expert counts for itself.
 *
 * Shapes: choice [m][n_used] struct abi_choice, pairs [n] u32, n = m n_used, groups
 * [n / ABI_GROUP_ROWS + n_expert] struct abi_group.
 * Grid: x: ceil(n_expert / subgroups of a workgroup), a subgroup an expert.
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

const uint STEP = 4; /* pairs that a lane looks at in a round */

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

	for (uint i = lane(); slot + i < end; i += SUBGROUP) {
		uint at = min(i * n_rows, count);
		Groups(groups).at[slot + i] =
			abi_group(expert, first + at, min(count - at, n_rows));
	}
}

void main()
{
	uint expert = subgroup_x();

	if (expert >= push.n_expert)
		return;
	uint n = Words(push.m).at[0] * push.n_used;
	uint n_before = 0, n_own = 0;
	for (uint i0 = lane(); i0 < n; i0 += STEP * SUBGROUP) {
		[[unroll]] for (uint s = 0; s < STEP; s++) {
			uint other = expert_of(min(i0 + s * SUBGROUP, n - 1));
			bool is_pair = i0 + s * SUBGROUP < n;
			n_before += is_pair && other < expert ? 1 : 0;
			n_own += is_pair && other == expert ? 1 : 0;
		}
	}
	uint first = sum_lanes(n_before);
	uint count = sum_lanes(n_own);
	uint at = first + sum_lanes_before(n_own);
	put_groups(push.groups, ABI_GROUP_ROWS, expert, first, count);
	if (push.wide != uvec2(0))
		put_groups(push.wide, ABI_MATRIX_GROUP_ROWS, expert, first, count);
	if (count == 0)
		return;
	for (uint i0 = lane(); i0 < n; i0 += STEP * SUBGROUP) {
		[[unroll]] for (uint s = 0; s < STEP; s++) {
			uint i = i0 + s * SUBGROUP;
			if (i < n && expert_of(i) == expert)
				WordsOut(push.pairs).at[at++] = i;
		}
	}
}
