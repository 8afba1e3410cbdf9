#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows times the matrices of the experts that they take, with integer dot products. A pair
 * p = i n_used + rank is a row and one of its experts, e(p) = choice[p].expert:
 *
 *	z[p][j] = silu(w[0][e(p)][j] . a[i]) (w[1][e(p)][j] . a[i])                       SWIGLU
 *	y[i][j] += sum over rank of choice[p].weight (w[0][e(p)][j] . a[p])               MIX
 *
 *	a: rows of staging (abi.h); with NORM times 1 / sqrt(mean of the squares + eps)
 *
 * z is only staged, for MIX; y too where NEXT is set. With ROUTE choice is made from logits here and
 * written for whoever comes next.
 *
 * Shapes: w[] [n_expert] addresses of [n][k] each, y [m][n] f32, n % 64 == 0.
 * Grid: x: at most n / 32 with NEXT, else ceil(n / TILE_OUT / subgroups of a workgroup); y: pairs,
 * with MIX m.
 * Bindings: none; addresses in struct abi_matvec_experts. Rows beyond *m are not computed.
 *
 * Only the matrices of experts that are taken are read. MIX adds up in the lanes, and over the lanes
 * once in the end.
 */
#include "common.glsl"
#include "quant.glsl"
#include "matvec-tile.glsl"

layout(push_constant, std430) uniform Push
{
	abi_matvec_experts push;
};

const uint UNITS = 0;
const int HOLD = 0;

#include "matvec-dtype.glsl"
#include "matvec-dot.glsl"
#include "route.glsl"

const bool IS_MIX = FINISH == ABI_TILE_FINISH_MIX;

/* Of the expert of rank lane(), with SWIGLU of the only one: its matrices and weight. */
uvec2 gate_of;
uvec2 up_of;
float weight_of;

/* The expert of a row with that rank; the last one's finder writes the row's choices down. */
uint route(uint i, uint rank)
{
	Floats logits = Floats(address_at(push.logits, i, 4 * push.n_expert));

	if (subgroup_x() != 0 || rank != push.n_used - 1)
		return route_one(logits, push.n_expert, rank);
	return route_all(logits, push.n_expert, push.n_used,
		ChoicesOut(address_at(push.choice, i, 8 * push.n_used)));
}

void find_experts(uint i)
{
	if (IS_MIX) {
		/* All at once: each is three loads behind each other. */
		abi_choice choice = Choices(push.choice).at[
			i * push.n_used + min(lane(), push.n_used - 1)];
		gate_of = Pairs(push.w[0]).at[choice.expert];
		weight_of = choice.weight;
		return;
	}
	uint expert = GATHER != 0 ? route(i / push.n_used, i % push.n_used)
				  : Choices(push.choice).at[i].expert;
	gate_of = Pairs(push.w[0]).at[expert];
	up_of = Pairs(push.w[1]).at[expert];
}

/* The rows of W of the expert of that rank from j on; behind the last the last one again. */
void start_rank(uint rank, uint j)
{
	uvec2 gate = IS_MIX ? subgroupShuffle(gate_of, rank) : gate_of;

	[[unroll]] for (int r = 0; r < ROWS; r++)
		w_rows[r] = address_at(r < TILE_OUT ? gate : up_of,
			min(j + r % TILE_OUT, push.n - 1), push.n_row_bytes);
}

/* i: the row of x of rank 0. */
void find_x(uint i, uint rank)
{
	find_row(0, address_at(push.staging, i + rank, ABI_QUANT_ROW_BYTES(push.k)));
}

float totals[ROWS];

/* All of a tile's sums, over all ranks. */
void sum_tile(uint i, uint j)
{
	uint n_rounds = (push.k / 64 + ROUND_UNITS - 1) / ROUND_UNITS;
	uint n_ranks = IS_MIX ? push.n_used : 1;
	bool is_fetched = false;

	[[unroll]] for (int r = 0; r < ROWS; r++)
		totals[r] = 0.0;
	for (uint rank = 0; rank < n_ranks; rank++) {
		if (IS_MIX)
			find_x(i * push.n_used, rank);
		clear_sums();
		for (uint round = 0; round < n_rounds; round++) {
			bool is_last = round + 1 == n_rounds;
			if (!is_fetched && round == 0)
				start_rank(rank, j);
			if (!is_fetched)
				fetch_round(round);
			is_fetched = AHEAD != 0;
			hold_round();
			if (AHEAD != 0 && is_last && rank + 1 < n_ranks)
				start_rank(rank + 1, j);
			if (AHEAD != 0 && (!is_last || rank + 1 < n_ranks))
				fetch_round(is_last ? 0 : round + 1);
			add_round(round);
		}
		if (!IS_MIX)
			continue;
		float weight = subgroupShuffle(weight_of, rank);
		[[unroll]] for (int r = 0; r < ROWS; r++)
			totals[r] = fma(weight, sums[r][0], totals[r]);
	}
	if (IS_MIX)
		[[unroll]] for (int r = 0; r < ROWS; r++)
			sums[r][0] = totals[r];
}

/* i: the row of the output. */
void finish_tile(uint i, uint j)
{
	float v = fold_outputs(0, 0);

	if (IS_SWIGLU)
		v = silu(v) * fold_outputs(0, TILE_OUT);
	uint at = j + lane() / N_COPIES;
	if (lane() % N_COPIES != 0 || at >= push.n)
		return;
	if (IS_MIX) {
		FloatsOut y = FloatsOut(address_at(push.y, i, 4 * push.n));
		v += y.at[at];
		y.at[at] = v;
	}
	if (NEXT != 0)
		run_outputs[at % 32] = v;
}

void main()
{
	uint i = gl_WorkGroupID.y;

	if (i >= Words(push.m).at[0] * (IS_MIX ? 1 : push.n_used))
		return;
	find_experts(i);
	if (!IS_MIX) {
		find_x(i / push.n_used, 0);
		if (NORM != 0)
			x_scales[0] = find_scale(0, push.eps);
	}
	for (uint t = 0; tile_number(t) * TILE_OUT < push.n; t++) {
		uint j = tile_number(t) * TILE_OUT;
		sum_tile(i, j);
		finish_tile(i, j);
		if (NEXT == 0 || (t + 1) % N_RUN != 0)
			continue;
		barrier();
		if (gl_SubgroupID == 0 && lane() < 8)
			stage_outputs(0, j / 32, address_at(push.next, i, ABI_QUANT_ROW_BYTES(push.n)),
				push.n, push.next_gain);
		barrier();
	}
}
