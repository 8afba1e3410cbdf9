#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][h] = sum over keys j of softmax_j(scale q[i][h] . k[j][h / group]) v[j][h / group]
 *
 * over the keys j = 0 .. rows[i].position of the row's session, group = n_head / n_head_kv.
 *
 * Shapes: qkv [m][(n_head + 2 n_head_kv) HEAD_DIM] f32, pages as in workerd/kv.h (f16),
 * y [m][n_head HEAD_DIM] f32. HEAD_DIM is even.
 * Grid: x: ceil(n_head / HEADS / subgroups of a workgroup), a subgroup HEADS query heads that share
 * a key head; y: m.
 * Bindings: none; addresses in struct abi_attention. Rows beyond *m are not computed.
 *
 * The lanes share the elements of a head, two (a word of f16) at a time; keys are taken BLOCK at a
 * time with a running maximum (online softmax), so that the order depends on the position alone.
 */
#include "common.glsl"

layout(constant_id = ABI_ATTENTION_SPEC_HEADS) const int HEADS = 1;
layout(constant_id = ABI_ATTENTION_SPEC_HEAD_DIM) const uint HEAD_DIM = 64;

const int BLOCK = 4; /* keys; divides ABI_KV_PAGE_TOKENS */
const uint N_WORDS = HEAD_DIM / 2;
const int LANE_WORDS = int((N_WORDS + SUBGROUP - 1) / SUBGROUP);

layout(push_constant, std430) uniform Push
{
	abi_attention push;
};

/* Word w of the lane: in the head, and clamped to it for loads of lanes beyond its end. */
uint word_at(int w)
{
	return lane() + uint(w) * SUBGROUP;
}

uint word_in(int w)
{
	return min(word_at(w), N_WORDS - 1);
}

/* The state of the sums: of the elements that the lane has, of each head. */
vec2 q[HEADS][LANE_WORDS];
vec2 sums[HEADS][LANE_WORDS];
float highest[HEADS]; /* score so far */
float weight[HEADS];  /* sum of exp(score - highest) */

const float LOWEST = -3.4e38; /* below any score */

void load_queries(uvec2 x_row, uint h0)
{
	[[unroll]] for (int h = 0; h < HEADS; h++) {
		Floats x = Floats(address_at(x_row, h0 + h, 4 * HEAD_DIM));
		[[unroll]] for (int w = 0; w < LANE_WORDS; w++) {
			uint at = 2 * word_in(w);
			vec2 v = push.scale * vec2(x.at[at], x.at[at + 1]);
			q[h][w] = word_at(w) < N_WORDS ? v : vec2(0.0);
			sums[h][w] = vec2(0.0);
		}
		highest[h] = LOWEST;
		weight[h] = 0.0;
	}
}

/* The scores of a key, whose words begin at `at`, with each head. */
void score(Words keys, uint at, out float dots[HEADS])
{
	[[unroll]] for (int h = 0; h < HEADS; h++)
		dots[h] = 0.0;
	[[unroll]] for (int w = 0; w < LANE_WORDS; w++) {
		vec2 k = unpackHalf2x16(keys.at[at + word_in(w)]);
		[[unroll]] for (int h = 0; h < HEADS; h++) {
			dots[h] = fma(q[h][w].x, k.x, dots[h]);
			dots[h] = fma(q[h][w].y, k.y, dots[h]);
		}
	}
	[[unroll]] for (int h = 0; h < HEADS; h++)
		dots[h] = sum_lanes(dots[h]);
}

/* Scores of a block become weights of its values; what was summed before shrinks to their scale. */
void weigh(int h, inout float p[BLOCK])
{
	float top = highest[h];

	[[unroll]] for (int b = 0; b < BLOCK; b++)
		top = max(top, p[b]);
	float shrink = exp(highest[h] - top);
	highest[h] = top;
	weight[h] *= shrink;
	[[unroll]] for (int w = 0; w < LANE_WORDS; w++)
		sums[h][w] *= shrink;
	[[unroll]] for (int b = 0; b < BLOCK; b++) {
		p[b] = exp(p[b] - top);
		weight[h] += p[b];
	}
}

/* Adds keys j0 to j0 + BLOCK of a page; `words`: of one position, at: of the head in it. */
void add_block(Words keys, Words values, uint words, uint at, uint j0, uint last)
{
	float p[HEADS][BLOCK];

	[[unroll]] for (int b = 0; b < BLOCK; b++) {
		/* Keys behind the row's own weigh nothing; its own is read in their place. */
		uint j = min(j0 + b, last) % ABI_KV_PAGE_TOKENS;
		float dots[HEADS];
		score(keys, j * words + at, dots);
		[[unroll]] for (int h = 0; h < HEADS; h++)
			p[h][b] = j0 + b <= last ? dots[h] : LOWEST;
	}
	[[unroll]] for (int h = 0; h < HEADS; h++)
		weigh(h, p[h]);
	[[unroll]] for (int b = 0; b < BLOCK; b++) {
		uint j = min(j0 + b, last) % ABI_KV_PAGE_TOKENS;
		[[unroll]] for (int w = 0; w < LANE_WORDS; w++) {
			vec2 v = unpackHalf2x16(values.at[j * words + at + word_in(w)]);
			[[unroll]] for (int h = 0; h < HEADS; h++)
				sums[h][w] = fma(vec2(p[h][b]), v, sums[h][w]);
		}
	}
}

void store(uvec2 y_row, uint h0)
{
	[[unroll]] for (int h = 0; h < HEADS; h++) {
		FloatsOut y = FloatsOut(address_at(y_row, h0 + h, 4 * HEAD_DIM));
		[[unroll]] for (int w = 0; w < LANE_WORDS; w++) {
			vec2 v = sums[h][w] / weight[h];
			if (word_at(w) < N_WORDS) {
				y.at[2 * word_at(w)] = v.x;
				y.at[2 * word_at(w) + 1] = v.y;
			}
		}
	}
}

void main()
{
	uint i = gl_WorkGroupID.y;
	uint h0 = subgroup_x() * HEADS;

	if (i >= Words(push.m).at[0] || h0 >= push.n_head)
		return;
	abi_row row = Rows(push.rows).at[i];
	uint n_x_bytes = 4 * HEAD_DIM * (push.n_head + 2 * push.n_head_kv);
	load_queries(address_at(push.qkv, i, n_x_bytes), h0);

	uint words = push.n_head_kv * N_WORDS;
	uint at = h0 / (push.n_head / push.n_head_kv) * N_WORDS;
	uint first = 2 * push.layer * ABI_KV_PAGE_TOKENS;
	for (uint j0 = 0; j0 <= row.position; j0 += BLOCK) {
		uint entry = row.slot * push.n_slot_pages + j0 / ABI_KV_PAGE_TOKENS;
		uvec2 page = Pairs(push.table).at[entry];
		Words keys = Words(address_at(page, first, 4 * words));
		Words values = Words(address_at(page, first + ABI_KV_PAGE_TOKENS, 4 * words));
		add_block(keys, values, words, at, j0, row.position);
	}
	store(address_at(push.y, i, 4 * HEAD_DIM * push.n_head), h0);
}
