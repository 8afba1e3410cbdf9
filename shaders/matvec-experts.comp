#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows times the matrices of the experts that they take, with integer dot products. A pair
 * p = i n_used + rank is a row and one of its experts, e(p) = choice[p].expert:
 *
 *	y[p][j] = silu(w[0][e(p)][j] . a[i]) (w[1][e(p)][j] . a[i])                       SWIGLU
 *	y[i][j] += sum over rank of choice[p].weight (w[0][e(p)][j] . x[p])               MIX
 *
 *	a: rows of staging (abi.h); with NORM times 1 / sqrt(mean of the squares + eps)
 *
 * With MIX each workgroup makes the bytes of x itself, and y is staged too where NEXT is set. With
 * ROUTE choice is made from logits here and written for whoever comes next.
 *
 * Shapes: w[] [n_expert] addresses of [n][k] each, x [m n_used][k] f32, y [m n_used][n] f32, with MIX
 * [m][n]; k % 64 == 0, with NEXT n % 64 == 0.
 * Grid: x: at most ceil(n / TILE_OUT / subgroups of a workgroup), of fewer each takes several, with
 * NEXT at most n / 32; y: pairs, with MIX m.
 * Bindings: none; addresses in struct abi_matvec_experts. Rows beyond *m are not computed.
 *
 * Only the matrices of experts that are taken are read. With MIX the rows j of all of a row's experts
 * are one row, n_used k long, that lanes share: matrices of experts are narrow, and a subgroup
 * would have more lanes than one of their rows has units. A unit's sum is multiplied by its expert's
 * weight.
 */
#include "common.glsl"
#include "quant.glsl"
#include "matvec-tile.glsl"

const bool IS_MIX = FINISH == ABI_TILE_FINISH_MIX;

layout(constant_id = ABI_MATVEC_SPEC_UNITS) const uint UNITS = 0;
layout(constant_id = ABI_MATVEC_EXPERTS_SPEC_X) const int X = 0;
const int HOLD = IS_MIX ? 0 : X;
const uint ROW_UNITS = IS_MIX ? uint(X) : 1; /* of one expert */

layout(push_constant, std430) uniform Push
{
	abi_matvec_experts push;
};

/* Of rows that lie in one piece; fetch_round() here is for those that do not, too. */
#define fetch_round fetch_whole_round
#include "matvec-dtype.glsl"
#undef fetch_round
#include "matvec-dot.glsl"
#include "choose.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vecs { vec4 at[]; };

/* Of the expert of rank lane(), with SWIGLU of the only one: its matrices and weight. */
uvec2 gate_of;
uvec2 up_of;
float weight_of;

/* Where an expert's rows begin. */
uvec2 matrix_of(uint part, uint expert)
{
	return push.n_expert_bytes != 0 ? address_at(push.w[part], expert, push.n_expert_bytes)
					: Pairs(push.w[part]).at[expert];
}

/* Of that rank, of the row that pair i is of; in all invocations. */
uint expert_of(uint i)
{
	if (GATHER == 0)
		return Choices(push.choice).at[i].expert;
	rank_experts(address_at(push.logits, i / push.n_used, 4 * push.n_expert), push.n_expert,
		push.n_used);
	return chosen[i % push.n_used];
}

/* False: there is no such row, whose choice may be anything. */
bool find_experts(uint i)
{
	/* It is on its way while others are. */
	uint m = Words(push.m).at[0];

	if (IS_MIX) {
		abi_choice choice = Choices(push.choice).at[
			i * push.n_used + min(lane(), push.n_used - 1)];
		if (i >= m)
			return false;
		gate_of = matrix_of(0, choice.expert);
		weight_of = choice.weight;
		return true;
	}
	uint expert = expert_of(i);
	if (i >= m * push.n_used)
		return false;
	gate_of = matrix_of(0, expert);
	up_of = matrix_of(1, expert);
	return true;
}

/* Units of a lane's row. */
uint count_units()
{
	return IS_MIX ? UNITS : push.k / 64;
}

uint row_first; /* the tile's first row of W */

/* Of each expert; behind the last one the last one again. */
void start_rows(uint j)
{
	row_first = j;
	if (IS_MIX)
		return;
	[[unroll]] for (int r = 0; r < ROWS; r++)
		w_rows[r] = address_at(r < TILE_OUT ? gate_of : up_of,
			min(j + r % TILE_OUT, push.n - 1), push.n_row_bytes);
}

/* Row r of the tile of the expert of that rank, which differs between lanes. */
uvec2 mixed_row(int r, uint rank)
{
	return address_at(subgroupShuffle(gate_of, rank), min(row_first + r, push.n - 1),
		push.n_row_bytes);
}

/* The lane's unit u of a round: its number among those of all ranks. */
uint mixed_unit(uint round, int u)
{
	uint unit = round * ROUND_UNITS + u * SUBGROUP + lane();

	return WHOLE != 0 ? unit : min(unit, count_units() - 1);
}

#if defined(IS_IN_PLACE)

void fetch_mixed_round(uint round)
{
	[[unroll]] for (int u = 0; u < UNROLL; u++) {
		uint number = mixed_unit(round, u);
		uint rank = number / ROW_UNITS, unit = number % ROW_UNITS;
		[[unroll]] for (int r = 0; r < ROWS; r++) {
			Quads row = Quads(mixed_row(r, rank));
			uint block = 9 * (unit / 4);
			w_next[r][3 * u] = row.at[block];
			w_next[r][3 * u + 1] = row.at[block + 1 + 2 * (unit % 4)];
			w_next[r][3 * u + 2] = row.at[block + 2 + 2 * (unit % 4)];
		}
	}
}

#else

/* Words of rows that are whole words lie behind each other as units do. */
void fetch_mixed_round(uint round)
{
	uint n_words = push.n_row_bytes / 4;

	[[unroll]] for (int i = 0; i < N_RAW; i++) {
		uint number = round * ROUND_WORDS + lane() + i * SUBGROUP;
		number = min(number, push.n_used * n_words - 1);
		uint rank = number / n_words;
		[[unroll]] for (int r = 0; r < ROWS; r++)
			w_next[r][i] = Words(mixed_row(r, rank)).at[number % n_words];
	}
}

#endif

void fetch_round(uint round)
{
	if (IS_MIX)
		fetch_mixed_round(round);
	else
		fetch_whole_round(round);
}

/* Words of x that an invocation loads before it makes any. */
const uint N_OWN_WORDS = (16 * UNITS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const int N_BATCH = N_OWN_WORDS < 1 ? 1 : N_OWN_WORDS < 8 ? int(N_OWN_WORDS) : 8;

vec4 load_word(uvec2 row, uint i)
{
	vec4 v;

	if (ORDER == ABI_QUANT_ORDER_PLAIN)
		return Vecs(row).at[i];
	[[unroll]] for (uint b = 0; b < 4; b++)
		v[b] = Floats(row).at[i / 8 * 32 + quant_number(ORDER, i % 8, b)];
	return v;
}

/* x of all of row i's pairs, which are one row of UNITS, into the workgroup's memory. */
void quant_pairs(uint i)
{
	uvec2 row = address_at(push.x, i * push.n_used, 4 * push.k);

	for (uint first = gl_SubgroupID * SUBGROUP; first < 16 * UNITS;
		first += N_BATCH * LOCAL_SIZE) {
		vec4 v[N_BATCH];
		[[unroll]] for (int b = 0; b < N_BATCH; b++)
			v[b] = load_word(row, min(first + b * LOCAL_SIZE + lane(), 16 * UNITS - 1));
		[[unroll]] for (int b = 0; b < N_BATCH; b++) {
			uint at = first + b * LOCAL_SIZE + lane();
			quant s = quant_word(v[b]);
			if (at >= 16 * UNITS)
				continue;
			x_quads[quad_of_word(at, UNITS)][at % 4] = s.word;
			if (at % 8 == 0)
				x_halves[half_of_word(at, UNITS)] =
					uvec2(floatBitsToUint(s.scale), s.sums);
		}
	}
	barrier();
}

float totals[ROWS];

void add_mixed_round(uint round)
{
	[[unroll]] for (int u = 0; u < UNROLL; u++) {
		uint number = mixed_unit(round, u);
		float weight = subgroupShuffle(weight_of, number / ROW_UNITS);
		if (WHOLE == 0 && round * ROUND_UNITS + u * SUBGROUP + lane() >= count_units())
			continue;
		clear_sums();
		add_unit(u, number, UNITS);
		[[unroll]] for (int r = 0; r < ROWS; r++)
			totals[r] = fma(weight, sums[r][0], totals[r]);
	}
}

bool is_fetched; /* without AHEAD: the round's loads were started before */

/*
 * A round; the loads of what comes next, of the tile from next_j on behind the last, are started
 * behind its own.
 */
void compute_round(uint round, uint n_rounds, bool has_next, uint next_j)
{
	bool is_last = round + 1 == n_rounds;

	if (AHEAD == 0 && !is_fetched)
		fetch_round(round);
	is_fetched = false;
	hold_round();
	if (is_last && has_next)
		start_rows(next_j);
	if (AHEAD != 0 && (!is_last || has_next))
		fetch_round(is_last ? 0 : round + 1);
	if (IS_MIX)
		add_mixed_round(round);
	else
		add_round(round);
}

/* The rounds of a tile whose x is kept, a row after the other; w_rows are those of the next tile. */
void fetch_kept(int r, int h)
{
	fetch_slot(h * ROWS + r, r, kept_round(h));
}

void add_kept(bool has_next)
{
	[[unroll]] for (int h = 0; h < HOLD; h++) {
		[[unroll]] for (int r = 0; r < ROWS; r++) {
			hold_slots(h * ROWS + r);
			if (AHEAD != 0 && has_next)
				fetch_kept(r, h);
			sums[r][0] = add_sums(sums[r][0], sum_kept(h));
		}
	}
}

/* Starts the loads of a tile. */
void fetch_tile()
{
	if (HOLD == 0) {
		fetch_round(0);
		return;
	}
	[[unroll]] for (int h = 0; h < HOLD; h++)
		[[unroll]] for (int r = 0; r < ROWS; r++)
			fetch_kept(r, h);
}

/* All of a tile's sums. */
void sum_tile(uint n_rounds, bool has_next, uint next_j)
{
	clear_sums();
	if (HOLD > 0) {
		if (!is_fetched)
			fetch_tile();
		is_fetched = AHEAD != 0;
		if (has_next)
			start_rows(next_j);
		add_kept(has_next);
		return;
	}
	[[unroll]] for (int r = 0; r < ROWS; r++)
		totals[r] = 0.0;
	for (uint round = 0; round < n_rounds; round++)
		compute_round(round, n_rounds, has_next, next_j);
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
	FloatsOut y = FloatsOut(address_at(push.y, i, 4 * push.n));
	if (IS_MIX)
		v += y.at[at];
	y.at[at] = v;
	if (NEXT != 0)
		run_outputs[at % 32] = v;
}

void main()
{
	uint i = gl_WorkGroupID.y;
	uint n_rounds = (count_units() + ROUND_UNITS - 1) / ROUND_UNITS;

	if (!find_experts(i))
		return;
	uint j = tile_number(0) * TILE_OUT;
	is_fetched = j < push.n;
	if (is_fetched) {
		start_rows(j);
		fetch_tile();
	}
	if (GATHER != 0 && gl_WorkGroupID.x == 0 && i % push.n_used == 0)
		put_choices(push.n_used, address_at(push.choice, i, 8));
	if (IS_MIX) {
		quant_pairs(i);
	} else {
		find_row(0, address_at(push.x, i / push.n_used, ABI_QUANT_ROW_BYTES(push.k)));
		fetch_x();
		keep_x();
		if (NORM != 0)
			x_scales[0] = find_scale(0, push.eps);
	}
	for (uint t = 0; j < push.n; t++) {
		uint next_j = tile_number(t + 1) * TILE_OUT;
		sum_tile(n_rounds, next_j < push.n, next_j);
		finish_tile(i, j);
		if (NEXT != 0 && (t + 1) % N_RUN == 0) {
			barrier();
			if (gl_SubgroupID == 0 && lane() < 8)
				stage_outputs(0, j / 32,
					address_at(push.next, i, ABI_QUANT_ROW_BYTES(push.n)), push.n,
					push.next_gain);
			barrier();
		}
		j = next_j;
	}
}
