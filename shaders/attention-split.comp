#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.comp's formula for steps of few rows: a row's keys are cut into parts over workgroups,
 * as many as its position asks for. Each part's sums go to a slot of partials; whichever workgroup
 * of a row ends last adds them up, in the order of parts. So the sums are the same for the same
 * rows of a step, but not for a row beside others.
 *
 * Shapes: as attention.comp.
 * Grid: x: any, best so many as there are places (see find_place), workgroups of SPLITS subgroups;
 * y: n_head / HEADS. With LIST a span of it is one row.
 * Bindings: none; addresses in struct abi_attention. What has no place or part leaves at once.
 *
 * LANES lanes share a key, each with 16 bytes of it at a time; a subgroup has UNROLL keys a lane in
 * flight, and their values. Page table entries, which are in host memory, are read by the lanes for
 * many pages at once.
 */
#include "attention.glsl"

layout(constant_id = ABI_ATTENTION_SPEC_HEADS) const int HEADS = 1;
layout(constant_id = ABI_ATTENTION_SPEC_HEAD_DIM) const uint HEAD_DIM = 64;
layout(constant_id = ABI_ATTENTION_SPEC_LANES) const uint LANES = 8; /* a power of two */
layout(constant_id = ABI_ATTENTION_SPEC_SPLITS) const uint SPLITS = 1;
layout(constant_id = ABI_ATTENTION_SPEC_UNROLL) const int UNROLL = 2;

const uint N_VECS = (HEAD_DIM + KV_VEC - 1) / KV_VEC;
const int LANE_VECS = int((N_VECS + LANES - 1) / LANES);
const int LANE_SIZE = LANE_VECS * VEC;
const uint KEYS = SUBGROUP / LANES;
const uint BLOCK = UNROLL * KEYS; /* divides ABI_KV_PAGE_TOKENS */

/* Of each subgroup: highest and weight of each head, then its sums. */
const uint SHARE = HEADS * (HEAD_DIM + 2);
shared float shares[SPLITS * SHARE];
shared vec2 stats[HEADS * ABI_ATTENTION_MAX_PARTS];

float q[HEADS][LANE_SIZE];
float sums[HEADS][LANE_SIZE];
float highest[HEADS]; /* score so far, in powers of 2 */
float weight[HEADS];  /* sum of 2^(score - highest) */

uint vec_at(int w)
{
	return lane() % LANES + uint(w) * LANES;
}

uint vec_in(int w)
{
	return min(vec_at(w), N_VECS - 1);
}

uint group()
{
	return lane() / LANES;
}

void load_queries(uvec2 x_row, uint h0)
{
	/* With a cap the scores are scaled behind it. */
	float scale = HAS_CAP ? push.scale : push.scale * LOG2_E;

	[[unroll]] for (int h = 0; h < HEADS; h++)
	{
		Floats x = Floats(address_at(x_row, h0 + h, 4 * HEAD_DIM));
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			[[unroll]] for (int e = 0; e < VEC; e++)
			{
				uint at = vec_at(w) * KV_VEC + e;
				float v = scale * x.at[min(at, HEAD_DIM - 1)];
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

/* Scores of a block become weights of its values; what was summed before shrinks to their scale. */
void weigh(int h, inout float p[UNROLL])
{
	float top = highest[h];

	[[unroll]] for (int b = 0; b < UNROLL; b++) top = max(top, p[b]);
	float shrink = exp2(highest[h] - top);
	highest[h] = top;
	weight[h] *= shrink;
	[[unroll]] for (int e = 0; e < LANE_SIZE; e++) sums[h][e] *= shrink;
	[[unroll]] for (int b = 0; b < UNROLL; b++)
	{
		p[b] = exp2(p[b] - top);
		weight[h] += p[b];
	}
}

/* Adds the keys from j0 on, of [first, last]; a lane that has none of them adds weight to LOWEST,
   which the others' takes nothing of. */
void add_block(uvec2 page, uint head, uint j0, uint first, uint last)
{
	uvec2 keys_at = keys_of(page, HEAD_DIM), values_at = values_of(page, HEAD_DIM);
	Quads keys = Quads(keys_at), values = Quads(values_at);
	Halves key_scales = Halves(kv_scales_at(keys_at, push.n_head_kv, HEAD_DIM));
	Halves value_scales = Halves(kv_scales_at(values_at, push.n_head_kv, HEAD_DIM));
	uvec4 k[UNROLL][LANE_VECS], v[UNROLL][LANE_VECS];
	float k_scale[UNROLL][LANE_VECS], v_scale[UNROLL][LANE_VECS];
	float p[HEADS][UNROLL];

	[[unroll]] for (int b = 0; b < UNROLL; b++)
	{
		uint row = kv_row(head, clamp(j0 + b * KEYS + group(), first, last));
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			k[b][w] = keys.at[row * N_VECS + vec_in(w)];
			v[b][w] = values.at[row * N_VECS + vec_in(w)];
			k_scale[b][w] = scale_of(key_scales, row, vec_in(w) * KV_VEC, HEAD_DIM);
			v_scale[b][w] = scale_of(value_scales, row, vec_in(w) * KV_VEC, HEAD_DIM);
		}
	}
	[[unroll]] for (int b = 0; b < UNROLL; b++)
	{
		uint j = j0 + b * KEYS + group();
		[[unroll]] for (int h = 0; h < HEADS; h++) p[h][b] = 0.0;
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			float x[VEC];
			unpack(k[b][w], w, x);
			[[unroll]] for (int h = 0; h < HEADS; h++)
			{
				float dot = 0.0;
				[[unroll]] for (int e = 0; e < VEC; e++) dot =
					fma(q[h][w * VEC + e], x[e], dot);
				p[h][b] = fma(k_scale[b][w], dot, p[h][b]);
			}
		}
		[[unroll]] for (int h = 0; h < HEADS; h++)
		{
			float score = sum_group(p[h][b]);
			if (HAS_CAP)
				score = LOG2_E * capped(score);
			p[h][b] = j >= first && j <= last ? score : LOWEST;
		}
	}
	[[unroll]] for (int h = 0; h < HEADS; h++) weigh(h, p[h]);
	[[unroll]] for (int b = 0; b < UNROLL; b++)
	{
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			float x[VEC];
			unpack(v[b][w], w, x);
			[[unroll]] for (int h = 0; h < HEADS; h++)
			{
				float n = p[h][b] * v_scale[b][w];
				[[unroll]] for (int e = 0; e < VEC; e++) sums[h][w * VEC + e] =
					fma(n, x[e], sums[h][w * VEC + e]);
			}
		}
	}
}

/* The keys [first, last] in the pages [page, end) of a slot. */
void add_pages(uint slot, uint head, uint page, uint end, uint first, uint last)
{
	for (; page < end; page += SUBGROUP) {
		uvec2 at = page_at(slot, min(page + lane(), end - 1));
		uint j0 = page * ABI_KV_PAGE_TOKENS + gl_SubgroupID * BLOCK;
		uint j_end = min(min(page + SUBGROUP, end) * ABI_KV_PAGE_TOKENS, last + 1);

		for (; j0 < j_end; j0 += SPLITS * BLOCK) {
			uint i = j0 / ABI_KV_PAGE_TOKENS - page;
			/* Others would weigh nothing, but be read. */
			if (j0 + BLOCK > first)
				add_block(subgroupShuffle(at, i), head, j0, first, last);
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
			float mine = exp2(highest[h] - top), theirs = exp2(other - top);
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

/* This subgroup's sums, for the workgroup. */
void share()
{
	[[unroll]] for (int h = 0; h < HEADS; h++)
	{
		uint base = gl_SubgroupID * SHARE + h * (HEAD_DIM + 2);

		if (lane() == 0) {
			shares[base] = highest[h];
			shares[base + 1] = weight[h];
		}
		[[unroll]] for (int e = 0; e < LANE_SIZE; e++)
		{
			uint at = vec_at(e / VEC) * KV_VEC + e % VEC;
			if (at < HEAD_DIM && group() == 0)
				shares[base + 2 + at] = sums[h][e];
		}
	}
}

/* y of the head: its sums and weight at a highest score, and what a sink adds to the weight. */
vec2 divided(vec2 y, vec2 stat, uint head)
{
	if (!HAS_SINKS)
		return y / stat.y;
	float sink = Floats(push.sinks).at[head] * LOG2_E;
	float top = max(stat.x, sink);
	float n = exp2(stat.x - top);

	return y * (n / fma(n, stat.y, exp2(sink - top)));
}

void store(uvec2 y_row, uint h0, uint i, vec2 y, vec2 stat)
{
	uint h = i / (HEAD_DIM / 2), e = 2 * (i % (HEAD_DIM / 2));
	FloatsOut to = FloatsOut(address_at(y_row, h0 + h, 4 * HEAD_DIM));

	y = divided(y, stat, h0 + h);
	to.at[e] = y.x;
	to.at[e + 1] = y.y;
}

/* Adds what the subgroups shared: pair i of numbers of all heads. */
vec2 add_shares(uint i, out vec2 stat)
{
	uint base = i / (HEAD_DIM / 2) * (HEAD_DIM + 2), e = 2 * (i % (HEAD_DIM / 2));
	float top = LOWEST, n = 0.0;
	vec2 y = vec2(0.0);

	[[unroll]] for (uint s = 0; s < SPLITS; s++) top = max(top, shares[s * SHARE + base]);
	[[unroll]] for (uint s = 0; s < SPLITS; s++)
	{
		uint at = s * SHARE + base;
		float mine = exp2(shares[at] - top);
		n = fma(mine, shares[at + 1], n);
		y = fma(vec2(mine), vec2(shares[at + 2 + e], shares[at + 3 + e]), y);
	}
	stat = vec2(top, n);
	return y;
}

const uint PAIRS = HEADS * HEAD_DIM / 2;
const uint BATCH = 8; /* loads of partial sums in flight */

/* Adds the n parts from a slot on. */
void add_parts(uvec2 y_row, uint h0, uint slot, uint n)
{
	Partials partials = Partials(push.partials);

	for (uint i = gl_LocalInvocationIndex; i < n * HEADS; i += LOCAL_SIZE)
		stats[i] = partials.at[slot * HEADS + i];
	barrier();
	for (uint i = gl_LocalInvocationIndex; i < PAIRS; i += LOCAL_SIZE) {
		uint h = i / (HEAD_DIM / 2);
		uint at = ABI_ATTENTION_SLOTS * HEADS + slot * PAIRS + i;
		float top = LOWEST, weights = 0.0;
		vec2 y = vec2(0.0);

		for (uint p = 0; p < n; p++)
			top = max(top, stats[p * HEADS + h].x);
		for (uint p0 = 0; p0 < n; p0 += BATCH) {
			vec2 more[BATCH];
			[[unroll]] for (uint b = 0; b < BATCH; b++) more[b] =
				partials.at[at + min(p0 + b, n - 1) * PAIRS];
			[[unroll]] for (uint b = 0; b < BATCH; b++)
			{
				if (p0 + b >= n)
					continue;
				vec2 stat = stats[(p0 + b) * HEADS + h];
				float mine = exp2(stat.x - top);
				weights = fma(mine, stat.y, weights);
				y = fma(vec2(mine), more[b], y);
			}
		}
		store(y_row, h0, i, y, vec2(top, weights));
	}
}

/* A part of a row; all invocations. */
void add_place(place at)
{
	uint h0 = gl_WorkGroupID.y * HEADS;
	abi_span span = abi_span(at.unit, 1, 0, 0);

	if (HAS_LIST) {
		span = Spans(push.list).at[at.unit];
	} else {
		abi_row row = Rows(push.rows).at[at.unit];
		span.slot = row.slot;
		span.position = row.position;
	}
	uint first = first_key(span.position), last = span.position;
	pages part = cut(at, first, last);
	if (part.first >= part.end)
		return;
	uint n_x_bytes = 4 * HEAD_DIM * (push.n_head + 2 * push.n_head_kv);
	uvec2 y_row = address_at(push.y, span.first, 4 * HEAD_DIM * push.n_head);
	load_queries(address_at(push.qkv, span.first, n_x_bytes), h0);
	add_pages(
		span.slot, h0 / (push.n_head / push.n_head_kv), part.first, part.end, first, last);
	add_groups();
	share();
	barrier();
	uint slot = slot_of(at, at.part);
	Partials partials = Partials(push.partials);
	for (uint k = gl_LocalInvocationIndex; k < PAIRS; k += LOCAL_SIZE) {
		vec2 stat;
		vec2 y = add_shares(k, stat);
		if (part.n_parts == 1) {
			store(y_row, h0, k, y, stat);
			continue;
		}
		partials.at[ABI_ATTENTION_SLOTS * HEADS + slot * PAIRS + k] = y;
		if (k % (HEAD_DIM / 2) == 0)
			partials.at[slot * HEADS + k / (HEAD_DIM / 2)] = stat;
	}
	if (part.n_parts > 1 && is_last_part(unit_block(at), part.n_parts))
		add_parts(y_row, h0, slot_of(at, 0), part.n_parts);
}

void main()
{
	uint n_units = HAS_LIST ? Spans(push.list).n : Words(push.m).at[0];
	uint n_most = count_most(n_units, ABI_ATTENTION_SLOTS);

	for (uint x = gl_WorkGroupID.x; x < n_units * n_most; x += gl_NumWorkGroups.x) {
		barrier(); /* what is shared is free again */
		add_place(find_place(x, n_units, n_most));
	}
}
