#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i][h] = sum over keys j of softmax_j(scale q[i][h] . k[j][h / group]) v[j][h / group]
 *
 * over the keys j of the row's session up to p = rows[i].position, all of them or, with a window,
 * those of p - window < j <= p; group = n_head / n_head_kv. With CAP the score s = scale q . k is
 * cap tanh(s / cap), with SINKS the softmax has one more score, sinks[h], that has no value.
 *
 * This is the kernel of a row: other rows of a step never change its bits. attention-split.comp and
 * attention-matrix.comp are faster where a step has few rows and many.
 *
 * Shapes: qkv [m][(n_head + 2 n_head_kv) HEAD_DIM] f32, pages as in workerd/kv-layout.h (KV_F16 or
 * KV_Q8_0), y [m][n_head HEAD_DIM] f32.
 * Grid: x: n_head / HEADS workgroups of SPLITS subgroups, HEADS query heads that share a key head;
 * y: m.
 * Bindings: none; addresses in struct abi_attention. Rows beyond *m are not computed.
 *
 * LANES lanes share a key, each with 16 bytes of it at a time, so that a subgroup has KEYS keys at
 * once, and takes BLOCK a round with a running maximum (online softmax) for each group of lanes.
 * Subgroup s of a workgroup takes every SPLITS-th block. In the end the groups are added together,
 * then the subgroups through shared memory. So the order of sums depends on the position alone.
 *
 * The software driver allows an invocation 65,535 rounds: SPLITS is chosen so that the longest
 * context needs fewer.
 */
#include "attention.glsl"

layout(constant_id = ABI_ATTENTION_SPEC_HEADS) const int HEADS = 1;
layout(constant_id = ABI_ATTENTION_SPEC_HEAD_DIM) const uint HEAD_DIM = 64;
layout(constant_id = ABI_ATTENTION_SPEC_LANES) const uint LANES = 8; /* a power of two */
layout(constant_id = ABI_ATTENTION_SPEC_SPLITS) const uint SPLITS = 1;

const uint N_VECS = (HEAD_DIM + KV_VEC - 1) / KV_VEC;
const int LANE_VECS = int((N_VECS + LANES - 1) / LANES);
const int LANE_SIZE = LANE_VECS * VEC;
const uint KEYS = SUBGROUP / LANES;
const int UNROLL = ABI_ATTENTION_UNROLL;
const uint BLOCK = UNROLL * KEYS; /* divides ABI_KV_PAGE_TOKENS */

/* Of each subgroup: highest and weight of each head, then its sums. */
const uint PART = HEADS * (HEAD_DIM + 2);
shared float parts[SPLITS * PART];

/* The state of the sums: of the numbers that the lane has, of each head. */
float q[HEADS][LANE_SIZE];
float sums[HEADS][LANE_SIZE];
float highest[HEADS]; /* score so far */
float weight[HEADS];  /* sum of exp(score - highest) */

/* Vector w of the lane: in the head, and clamped to it for loads of lanes beyond its end. */
uint vec_at(int w)
{
	return lane() % LANES + uint(w) * LANES;
}

uint vec_in(int w)
{
	return min(vec_at(w), N_VECS - 1);
}

/* Which of the keys that a subgroup has at once. */
uint group()
{
	return lane() / LANES;
}

void load_queries(uvec2 x_row, uint h0)
{
	[[unroll]] for (int h = 0; h < HEADS; h++)
	{
		Floats x = Floats(address_at(x_row, h0 + h, 4 * HEAD_DIM));
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			[[unroll]] for (int e = 0; e < VEC; e++)
			{
				uint at = vec_at(w) * KV_VEC + e;
				float v = push.scale * x.at[min(at, HEAD_DIM - 1)];
				q[h][w * VEC + e] = at < HEAD_DIM ? v : 0.0;
				sums[h][w * VEC + e] = 0.0;
			}
		}
		highest[h] = LOWEST;
		weight[h] = 0.0;
	}
}

/* What is behind the head is 0. */
void unpack(uvec4 raw, int w, out float v[VEC])
{
	unpack_vec(raw, v);
	if (HEAD_DIM % KV_VEC != 0) {
		[[unroll]] for (int e = 0; e < VEC; e++) v[e] =
			vec_in(w) * KV_VEC + e < HEAD_DIM ? v[e] : 0.0;
	}
}

/* The sum over the lanes that share a key, in each of them. */
float sum_group(float v)
{
	[[unroll]] for (int level = 1; level <= MAX_LEVELS; level++)
	{
		uint d = LANES >> level;
		if (d > 0)
			v += subgroupShuffleXor(v, d);
	}
	return v;
}

/* The scores of a key with each head. */
void score(Quads keys, Halves scales, uint row, out float dots[HEADS])
{
	[[unroll]] for (int h = 0; h < HEADS; h++) dots[h] = 0.0;
	[[unroll]] for (int w = 0; w < LANE_VECS; w++)
	{
		float k[VEC];
		float scale = scale_of(scales, row, vec_in(w) * KV_VEC, HEAD_DIM);
		unpack(keys.at[row * N_VECS + vec_in(w)], w, k);
		[[unroll]] for (int h = 0; h < HEADS; h++)
		{
			float dot = 0.0;
			[[unroll]] for (int e = 0; e < VEC; e++) dot =
				fma(q[h][w * VEC + e], k[e], dot);
			dots[h] = fma(scale, dot, dots[h]);
		}
	}
	[[unroll]] for (int h = 0; h < HEADS; h++) dots[h] = capped(sum_group(dots[h]));
}

/* Scores of a block become weights of its values; what was summed before shrinks to their scale. */
void weigh(int h, inout float p[UNROLL])
{
	float top = highest[h];

	[[unroll]] for (int b = 0; b < UNROLL; b++) top = max(top, p[b]);
	float shrink = exp(highest[h] - top);
	highest[h] = top;
	weight[h] *= shrink;
	[[unroll]] for (int e = 0; e < LANE_SIZE; e++) sums[h][e] *= shrink;
	[[unroll]] for (int b = 0; b < UNROLL; b++)
	{
		p[b] = exp(p[b] - top);
		weight[h] += p[b];
	}
}

/* The row of key j0 + b * KEYS + group(), or of the nearest one of those that count. */
uint row_at(uint head, uint j0, int b, uint first, uint last)
{
	return kv_row(head, clamp(j0 + b * KEYS + group(), first, last));
}

/* Adds the keys from j0 on, of [first, last]. Of a lane that has none of them the others' weight
   takes nothing: its highest score stays LOWEST. */
void add_block(uvec2 keys_at, uvec2 values_at, uint head, uint j0, uint first, uint last)
{
	Quads keys = Quads(keys_at), values = Quads(values_at);
	Halves key_scales = Halves(kv_scales_at(keys_at, push.n_head_kv, HEAD_DIM));
	Halves value_scales = Halves(kv_scales_at(values_at, push.n_head_kv, HEAD_DIM));
	float p[HEADS][UNROLL];

	[[unroll]] for (int b = 0; b < UNROLL; b++)
	{
		uint j = j0 + b * KEYS + group();
		float dots[HEADS];
		score(keys, key_scales, row_at(head, j0, b, first, last), dots);
		[[unroll]] for (int h = 0; h < HEADS; h++) p[h][b] =
			j >= first && j <= last ? dots[h] : LOWEST;
	}
	[[unroll]] for (int h = 0; h < HEADS; h++) weigh(h, p[h]);
	[[unroll]] for (int b = 0; b < UNROLL; b++)
	{
		uint row = row_at(head, j0, b, first, last);
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			float v[VEC];
			float scale = scale_of(value_scales, row, vec_in(w) * KV_VEC, HEAD_DIM);
			unpack(values.at[row * N_VECS + vec_in(w)], w, v);
			[[unroll]] for (int h = 0; h < HEADS; h++)
			{
				float part = p[h][b] * scale;
				[[unroll]] for (int e = 0; e < VEC; e++) sums[h][w * VEC + e] =
					fma(part, v[e], sums[h][w * VEC + e]);
			}
		}
	}
}

/* The sums of all groups, in the lanes of each. */
void add_groups()
{
	[[unroll]] for (int level = 0; level < MAX_LEVELS; level++)
	{
		uint d = LANES << level;
		if (d >= SUBGROUP)
			continue;
		[[unroll]] for (int h = 0; h < HEADS; h++)
		{
			float other = subgroupShuffleXor(highest[h], d);
			float top = max(highest[h], other);
			float mine = exp(highest[h] - top), theirs = exp(other - top);
			float more = theirs * subgroupShuffleXor(weight[h], d);

			highest[h] = top;
			weight[h] = fma(mine, weight[h], more);
			[[unroll]] for (int e = 0; e < LANE_SIZE; e++)
			{
				more = theirs * subgroupShuffleXor(sums[h][e], d);
				sums[h][e] = fma(mine, sums[h][e], more);
			}
		}
	}
}

/* y of a head: its sums and weight at a highest score, and what a sink adds to the weight. */
float divided(float y, float top, float n, uint head)
{
	if (!HAS_SINKS)
		return y / n;
	float sink = Floats(push.sinks).at[head];
	float higher = max(top, sink);
	float shrink = exp(top - higher);

	return y * (shrink / fma(shrink, n, exp(sink - higher)));
}

void store(uvec2 y_row, uint h0)
{
	[[unroll]] for (int h = 0; h < HEADS; h++)
	{
		FloatsOut y = FloatsOut(address_at(y_row, h0 + h, 4 * HEAD_DIM));
		[[unroll]] for (int e = 0; e < LANE_SIZE; e++)
		{
			uint at = vec_at(e / VEC) * KV_VEC + e % VEC;
			if (at < HEAD_DIM && group() == 0)
				y.at[at] = divided(sums[h][e], highest[h], weight[h], h0 + h);
		}
	}
}

/* This subgroup's sums, for the workgroup. */
void share()
{
	[[unroll]] for (int h = 0; h < HEADS; h++)
	{
		uint base = gl_SubgroupID * PART + h * (HEAD_DIM + 2);

		if (lane() == 0) {
			parts[base] = highest[h];
			parts[base + 1] = weight[h];
		}
		[[unroll]] for (int e = 0; e < LANE_SIZE; e++)
		{
			uint at = vec_at(e / VEC) * KV_VEC + e % VEC;
			if (at < HEAD_DIM && group() == 0)
				parts[base + 2 + at] = sums[h][e];
		}
	}
}

/* Adds what the subgroups shared, each invocation some numbers of y. */
void add_splits(uvec2 y_row, uint h0)
{
	for (uint i = gl_LocalInvocationIndex; i < HEADS * HEAD_DIM; i += LOCAL_SIZE) {
		uint base = i / HEAD_DIM * (HEAD_DIM + 2), e = i % HEAD_DIM;
		float top = LOWEST, y = 0.0, n = 0.0;

		[[unroll]] for (uint s = 0; s < SPLITS; s++) top = max(top, parts[s * PART + base]);
		[[unroll]] for (uint s = 0; s < SPLITS; s++)
		{
			float mine = exp(parts[s * PART + base] - top);
			n = fma(mine, parts[s * PART + base + 1], n);
			y = fma(mine, parts[s * PART + base + 2 + e], y);
		}
		uint head = h0 + i / HEAD_DIM;
		FloatsOut(address_at(y_row, head, 4 * HEAD_DIM)).at[e] = divided(y, top, n, head);
	}
}

void main()
{
	uint i = gl_WorkGroupID.y;
	uint h0 = gl_WorkGroupID.x * HEADS;

	if (i >= Words(push.m).at[0])
		return;
	abi_row row = Rows(push.rows).at[i];
	uint n_x_bytes = 4 * HEAD_DIM * (push.n_head + 2 * push.n_head_kv);
	uvec2 y_row = address_at(push.y, i, 4 * HEAD_DIM * push.n_head);
	load_queries(address_at(push.qkv, i, n_x_bytes), h0);

	uint head = h0 / (push.n_head / push.n_head_kv);
	uint last = row.position;
	uint first = first_key(last);
	for (uint j0 = (first / BLOCK + gl_SubgroupID) * BLOCK; j0 <= last; j0 += SPLITS * BLOCK) {
		uvec2 page = page_at(row.slot, j0 / ABI_KV_PAGE_TOKENS);
		add_block(
			keys_of(page, HEAD_DIM), values_of(page, HEAD_DIM), head, j0, first, last);
	}
	add_groups();
	if (SPLITS == 1) {
		store(y_row, h0);
		return;
	}
	share();
	barrier();
	add_splits(y_row, h0);
}
