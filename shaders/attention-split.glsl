/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_ATTENTION_SPLIT_GLSL
#define SHADERS_ATTENTION_SPLIT_GLSL

/*
 * Rows one by one, the keys of each in parts: what attention-split.comp and attention-fused.comp
 * have in common. A part is a workgroup's, its subgroups take blocks of keys in turns. Included
 * behind attention.glsl.
 */
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

/* The kernel's: pair i of numbers of all heads of y, finished. */
void put_y(uint row, uint h0, uint i, vec2 y);

void clear_sums()
{
	[[unroll]] for (int h = 0; h < HEADS; h++)
	{
		[[unroll]] for (int e = 0; e < LANE_SIZE; e++) sums[h][e] = 0.0;
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

/* The keys and values of a block, as they are loaded. */
uvec4 keys_raw[UNROLL][LANE_VECS];
uvec4 values_raw[UNROLL][LANE_VECS];
float key_scales[UNROLL][LANE_VECS];
float value_scales[UNROLL][LANE_VECS];

/* Those that are computed with, while the next ones may be loaded. */
uvec4 keys_held[UNROLL][LANE_VECS];
uvec4 values_held[UNROLL][LANE_VECS];
float key_scales_held[UNROLL][LANE_VECS];
float value_scales_held[UNROLL][LANE_VECS];

void hold_block()
{
	[[unroll]] for (int b = 0; b < UNROLL; b++)
	{
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			keys_held[b][w] = keys_raw[b][w];
			values_held[b][w] = values_raw[b][w];
			key_scales_held[b][w] = key_scales[b][w];
			value_scales_held[b][w] = value_scales[b][w];
		}
	}
}

/* The first key of [first, ...) in the page of j0. */
uint first_of_page(uint j0, uint first)
{
	return max(first, j0 - j0 % ABI_KV_PAGE_TOKENS);
}

/* Are there any of [first, end) in the page of j0? */
bool has_keys(uint j0, uint first, uint end)
{
	return first_of_page(j0, first) < end;
}

/*
 * Starts the loads of the keys from j0 on, of those in [first, end) of the page; a lane that has
 * none of them loads another's. Where there are none at all, nothing is loaded.
 */
void fetch_block(uvec2 page, uint head, uint j0, uint first, uint end)
{
	uvec2 keys_at = keys_of(page, HEAD_DIM), values_at = values_of(page, HEAD_DIM);
	Quads keys = Quads(keys_at), values = Quads(values_at);
	Halves keys_scales = Halves(kv_scales_at(keys_at, push.n_head_kv, HEAD_DIM));
	Halves values_scales = Halves(kv_scales_at(values_at, push.n_head_kv, HEAD_DIM));
	uint low = first_of_page(j0, first);

	if (low >= end)
		return;
	[[unroll]] for (int b = 0; b < UNROLL; b++)
	{
		uint row = kv_row(head, clamp(j0 + b * KEYS + group(), low, end - 1));
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			uint e = vec_in(w) * KV_VEC;
			keys_raw[b][w] = keys.at[row * N_VECS + vec_in(w)];
			values_raw[b][w] = values.at[row * N_VECS + vec_in(w)];
			key_scales[b][w] = scale_of(keys_scales, row, e, HEAD_DIM);
			value_scales[b][w] = scale_of(values_scales, row, e, HEAD_DIM);
		}
	}
}

/* Adds what is held, as far as it is in [first, last]; a lane that has none of them adds weight
   to LOWEST, which the others' takes nothing of. */
void add_block(uint j0, uint first, uint last)
{
	float p[HEADS][UNROLL];

	[[unroll]] for (int b = 0; b < UNROLL; b++)
	{
		uint j = j0 + b * KEYS + group();
		[[unroll]] for (int h = 0; h < HEADS; h++) p[h][b] = 0.0;
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			float x[VEC];
			unpack(keys_held[b][w], w, x);
			[[unroll]] for (int h = 0; h < HEADS; h++)
			{
				float dot = 0.0;
				[[unroll]] for (int e = 0; e < VEC; e++) dot =
					fma(q[h][w * VEC + e], x[e], dot);
				p[h][b] = fma(key_scales_held[b][w], dot, p[h][b]);
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
			unpack(values_held[b][w], w, x);
			[[unroll]] for (int h = 0; h < HEADS; h++)
			{
				float n = p[h][b] * value_scales_held[b][w];
				[[unroll]] for (int e = 0; e < VEC; e++) sums[h][w * VEC + e] =
					fma(n, x[e], sums[h][w * VEC + e]);
			}
		}
	}
}

/*
 * A subgroup's way through a part's keys [first, last]: block after block, those of the workgroup's
 * other subgroups between them. The lanes hold entries of the page table from `base` on.
 */
struct walk {
	uint slot;
	uint head;
	uint first;
	uint last;
	uint end; /* of what is in the cache: keys from here on are not read there */
	uint page_end;
	uint base;
	uvec2 entries;
	uint j;
	uint j_end;
};

void load_entries(inout walk w)
{
	w.base = min(w.j / ABI_KV_PAGE_TOKENS, w.page_end - 1);
	w.entries = page_at(w.slot, min(w.base + lane(), w.page_end - 1));
}

void fetch(walk w)
{
	uint i = min(w.j / ABI_KV_PAGE_TOKENS - w.base, SUBGROUP - 1);

	fetch_block(subgroupShuffle(w.entries, i), w.head, w.j, w.first, w.end);
}

/* Begins it; the first block is being loaded, if there is one. */
walk begin_walk(uint slot, uint head, pages part, uint first, uint last, uint end)
{
	walk w;

	w.slot = slot;
	w.head = head;
	w.first = first;
	w.last = last;
	w.end = end;
	w.page_end = part.end;
	w.j = part.first * ABI_KV_PAGE_TOKENS + gl_SubgroupID * BLOCK;
	w.j_end = min(part.end * ABI_KV_PAGE_TOKENS, last + 1);
	/* Blocks before the first key would weigh nothing, but be read. */
	while (w.j + BLOCK <= first)
		w.j += SPLITS * BLOCK;
	load_entries(w);
	if (w.j < w.j_end)
		fetch(w);
	return w;
}

/* On to the next block; false: there is none. */
bool continue_walk(inout walk w)
{
	w.j += SPLITS * BLOCK;
	if (w.j >= w.j_end)
		return false;
	if (w.j / ABI_KV_PAGE_TOKENS - w.base >= SUBGROUP)
		load_entries(w);
	fetch(w);
	return true;
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

/* Adds the n parts from a slot on, as they come. */
void add_parts(uint row, uint h0, uint slot, uint n)
{
	Partials partials = Partials(push.partials);

	for (uint i = gl_LocalInvocationIndex; i < PAIRS; i += LOCAL_SIZE) {
		uint h = i / (HEAD_DIM / 2);
		uint at = ABI_ATTENTION_SLOTS * HEADS + slot * PAIRS + i;
		float top = LOWEST, weights = 0.0;
		vec2 y = vec2(0.0);

		for (uint p0 = 0; p0 < n; p0 += BATCH) {
			vec2 more[BATCH], stats[BATCH];
			[[unroll]] for (uint b = 0; b < BATCH; b++)
			{
				uint p = min(p0 + b, n - 1);
				stats[b] = partials.at[(slot + p) * HEADS + h];
				more[b] = partials.at[at + p * PAIRS];
			}
			float before = top;
			[[unroll]] for (uint b = 0; b < BATCH; b++) top = max(top, stats[b].x);
			float shrink = exp2(before - top);
			weights *= shrink;
			y *= shrink;
			[[unroll]] for (uint b = 0; b < BATCH; b++)
			{
				float mine = p0 + b < n ? exp2(stats[b].x - top) : 0.0;
				weights = fma(mine, stats[b].y, weights);
				y = fma(vec2(mine), more[b], y);
			}
		}
		put_y(row, h0, i, divided(y, vec2(top, weights), h0 + h));
	}
}

/*
 * What all subgroups of the workgroup have shared becomes y, or its part of it; whichever workgroup
 * is the last of the row's parts finds them all. True in the workgroup that made y.
 */
bool finish_part(place at, pages part, uint row, uint h0)
{
	Partials partials = Partials(push.partials);
	uint slot = slot_of(at, at.part);

	for (uint k = gl_LocalInvocationIndex; k < PAIRS; k += LOCAL_SIZE) {
		vec2 stat;
		vec2 y = add_shares(k, stat);
		if (part.n_parts == 1) {
			put_y(row, h0, k, divided(y, stat, h0 + k / (HEAD_DIM / 2)));
			continue;
		}
		partials.at[ABI_ATTENTION_SLOTS * HEADS + slot * PAIRS + k] = y;
		if (k % (HEAD_DIM / 2) == 0)
			partials.at[slot * HEADS + k / (HEAD_DIM / 2)] = stat;
	}
	if (part.n_parts == 1)
		return true;
	if (!is_last_part(unit_block(at), part.n_parts))
		return false;
	add_parts(row, h0, slot_of(at, 0), part.n_parts);
	return true;
}

#endif
