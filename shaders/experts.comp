#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows times the matrices of the experts that they take. A pair p = i n_used + rank is a row and one
 * of its experts, e(p) = choice[p].expert:
 *
 *	y[p][j] = finish(sum over k of W[e(p)][j][k] a[p / x_share][k])
 *	y[i][j] += sum over rank of choice[p].weight (sum over k of W[e(p)][j][k] a[p][k])  with MIX
 *
 *	a[i] = x[i], or x[i] gain / sqrt(mean(x[i]^2) + eps) with NORM
 *	finish: STORE v; GATE silu(y[p][j]) v; SWIGLU silu(v of w[0]) (v of w[1])
 *
 * ROWS says which pairs are multiplied together: CHOICE one (with MIX those of one row, one after
 * the other); ROUTE one, and choice is made from logits here and written for whoever comes next;
 * GROUP up to TILE_M of one expert, as group.comp left them.
 *
 * Shapes: w[] [n_expert] addresses of [n][k] each, x [m n_used / x_share][k] f32, y [m n_used][n]
 * f32, with MIX [m][n].
 * Grid: x: ceil(tiles / subgroups of a workgroup), tiles = ceil(n / TILE_N), with SWIGLU
 * ceil(n / (TILE_N / 2)); y: pairs, with MIX m, with GROUP slots of groups.
 * Bindings: none; addresses in struct abi_experts. Rows beyond *m are not computed.
 *
 * Only the matrices of experts that are taken are read, wherever their table says they are.
 */
#include "common.glsl"
#include "dtype.glsl"
#include "tile.glsl"
#include "far.glsl"
#include "route.glsl"

layout(constant_id = ABI_EXPERTS_SPEC_ROWS) const uint ROWS = ABI_EXPERTS_ROWS_CHOICE;
layout(constant_id = ABI_EXPERTS_SPEC_FAR) const uint FAR = 0;

layout(push_constant, std430) uniform Push
{
	abi_experts push;
};

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Groups
{
	abi_group at[];
};

/* The expert's rows of W from j on. Those behind the last are the last one again. */
void take_w(uint expert, uint j)
{
	uvec2 base = Pairs(push.w[0]).at[expert];
	uvec2 up = IS_SWIGLU ? Pairs(push.w[1]).at[expert] : base;

	[[unroll]] for (int r = 0; r < TILE_N; r++)
		w_rows[r] = address_at(r < TILE_OUT ? base : up,
			min(j + r % TILE_OUT, push.n - 1), push.n_row_bytes);
	[[unroll]] for (int g = 0; g < N_SHARED; g++) {
		uint r = shared_row(g);
		shared_rows[g] = address_at(r < TILE_OUT ? base : up,
			min(j + r % TILE_OUT, push.n - 1), push.n_row_bytes);
	}
}

void take_x(int c, uint pair)
{
	x_rows[c] = address_at(push.x, pair / push.x_share, 4 * push.k);
}

void sum_rows()
{
	if (FAR != 0)
		sum_far(push.k, push.gain);
	else
		sum_units(push.k, push.gain);
}

/* Column c of the tile is of this pair: its outputs from j on. */
void store(int c, uint pair, uint j)
{
	float scale = column_scale(c, push.k, push.eps);
	FloatsOut y = FloatsOut(address_at(push.y, pair, 4 * push.n));

	[[unroll]] for (int o0 = 0; o0 < TILE_OUT; o0 += N_LANE_OUT) {
		uint at = j + o0 + lane() / N_COPIES;
		float v = column_output(c, o0, scale);
		if (lane() % N_COPIES != 0 || at >= push.n)
			continue;
		y.at[at] = FINISH == ABI_TILE_FINISH_GATE ? silu(y.at[at]) * v : v;
	}
}

void compute_group(uint slot, uint n_pairs, uint j)
{
	if (slot >= n_pairs / ABI_GROUP_ROWS + push.n_expert)
		return;
	abi_group group = Groups(push.groups).at[slot];
	if (group.n == 0)
		return;
	uint pairs[TILE_M];
	[[unroll]] for (int c = 0; c < TILE_M; c++) {
		pairs[c] = Words(push.pairs).at[group.first + min(c, group.n - 1)];
		take_x(c, pairs[c]);
	}
	take_w(group.expert, j);
	sum_rows();
	[[unroll]] for (int c = 0; c < TILE_M; c++)
		if (c < group.n)
			store(c, pairs[c], j);
}

uint expert_of(uint pair)
{
	uint i = pair / push.n_used, rank = pair % push.n_used;

	if (ROWS != ABI_EXPERTS_ROWS_ROUTE)
		return Choices(push.choice).at[pair].expert;
	Floats logits = Floats(address_at(push.logits, i, 4 * push.n_expert));
	/* The pair that passes over all experts of the row anyway writes them down. */
	if (subgroup_x() != 0 || rank != push.n_used - 1)
		return route_one(logits, push.n_expert, rank);
	return route_all(logits, push.n_expert, push.n_used,
		ChoicesOut(address_at(push.choice, i, 8 * push.n_used)));
}

void compute_pair(uint pair, uint j)
{
	take_w(expert_of(pair), j);
	take_x(0, pair);
	sum_rows();
	store(0, pair, j);
}

const int N_PARTS = TILE_OUT / N_LANE_OUT;

void mix_row(uint i, uint j)
{
	float total[N_PARTS];
	FloatsOut y = FloatsOut(address_at(push.y, i, 4 * push.n));

	[[unroll]] for (int o = 0; o < N_PARTS; o++)
		total[o] = 0.0;
	for (uint rank = 0; rank < push.n_used; rank++) {
		uint pair = i * push.n_used + rank;
		abi_choice choice = Choices(push.choice).at[pair];
		take_w(choice.expert, j);
		take_x(0, pair);
		sum_rows();
		[[unroll]] for (int o = 0; o < N_PARTS; o++)
			total[o] = fma(
				choice.weight, column_output(0, o * N_LANE_OUT, 1.0), total[o]);
	}
	[[unroll]] for (int o = 0; o < N_PARTS; o++) {
		uint at = j + o * N_LANE_OUT + lane() / N_COPIES;
		if (lane() % N_COPIES == 0 && at < push.n)
			y.at[at] += total[o];
	}
}

void main()
{
	uint m = Words(push.m).at[0];
	uint i = gl_WorkGroupID.y;
	uint j = subgroup_x() * TILE_OUT;

	if (j >= push.n)
		return;
	if (ROWS == ABI_EXPERTS_ROWS_GROUP) {
		compute_group(i, m * push.n_used, j);
	} else if (FINISH == ABI_TILE_FINISH_MIX) {
		if (i < m)
			mix_row(i, j);
	} else if (i < m * push.n_used) {
		compute_pair(i, j);
	}
}
