#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.comp's formula for steps of many rows where there are no cooperative matrices: tiles as
 * attention-matrix.comp's, in f32.
 *
 * The workgroup brings a page of keys into shared memory, makes their scores with all queries of
 * the tile, a score an invocation at a time, raises the highest score of each query, and adds the
 * page's values, whose place the keys had, to the sums, 4 numbers of some queries in each
 * invocation.
 *
 * Shapes: as attention.comp. Keys and values are f16 in shared memory: of Q8_0 they are rounded.
 * Grid: x: places (see find_place), for the most spans; y: n_head / HEADS.
 * Bindings: none; addresses in struct abi_attention. What has no span or part leaves at once.
 */
#extension GL_GOOGLE_include_directive : require
#include "abi.h"

layout(constant_id = ABI_ATTENTION_TILE_SPEC_M) const uint QUERIES = 8;

#include "attention-tile.glsl"

const uint PAGE = ABI_KV_PAGE_TOKENS;
const uint N_VECS = (HEAD_DIM + KV_VEC - 1) / KV_VEC;
const uint QUARTERS = (HEAD_DIM + 3) / 4; /* of a head, 4 numbers each */
const uint KV_STRIDE = 2 * QUARTERS + 1;  /* words; odd, so that keys lie in other banks */
const uint P_STRIDE = PAGE + 1;
/* Scores and quarters of sums of an invocation. */
const int N_SCORES = int((QUERIES * PAGE + LOCAL_SIZE - 1) / LOCAL_SIZE);
const int N_SUMS = int((QUERIES * QUARTERS + LOCAL_SIZE - 1) / LOCAL_SIZE);

shared vec4 q_tile[QUERIES * QUARTERS];
shared uint kv_tile[PAGE * KV_STRIDE];
shared float p_tile[QUERIES * P_STRIDE]; /* scores, then weights */
shared vec2 state[QUERIES];              /* highest score, in powers of 2, and sum of weights */
shared float shrink[QUERIES];
shared uvec2 visible[QUERIES]; /* first and last key */

vec4 sums[N_SUMS];

uint query_of_score(int k)
{
	return (gl_LocalInvocationIndex + k * LOCAL_SIZE) / PAGE;
}

uint key_of_score(int k)
{
	return (gl_LocalInvocationIndex + k * LOCAL_SIZE) % PAGE;
}

uint query_of_sum(int k)
{
	return (gl_LocalInvocationIndex + k * LOCAL_SIZE) / QUARTERS;
}

uint quarter_of_sum(int k)
{
	return (gl_LocalInvocationIndex + k * LOCAL_SIZE) % QUARTERS;
}

vec4 kv_quarter(uint key, uint quarter)
{
	uint at = key * KV_STRIDE + 2 * quarter;

	return vec4(unpackHalf2x16(kv_tile[at]), unpackHalf2x16(kv_tile[at + 1]));
}

void load_queries(abi_span span, uint h0)
{
	uint n_x_bytes = 4 * HEAD_DIM * (push.n_head + 2 * push.n_head_kv);
	float scale = HAS_CAP ? push.scale : push.scale * LOG2_E;

	for (uint i = gl_LocalInvocationIndex; i < QUERIES * QUARTERS; i += LOCAL_SIZE) {
		uint query = i / QUARTERS, e = 4 * (i % QUARTERS);
		vec4 v = vec4(0.0);

		if (query / HEADS < span.n) {
			uvec2 row = address_at(push.qkv, span.first + query / HEADS, n_x_bytes);
			Floats x = Floats(address_at(row, h0 + query % HEADS, 4 * HEAD_DIM));
			[[unroll]] for (uint d = 0; d < 4; d++) if (e + d < HEAD_DIM) v[d] =
				scale * x.at[e + d];
		}
		q_tile[i] = v;
	}
	for (uint i = gl_LocalInvocationIndex; i < QUERIES; i += LOCAL_SIZE) {
		uint last = position_of(span, i);
		visible[i] = uvec2(first_key(last), last);
		state[i] = vec2(LOWEST, 0.0);
	}
	[[unroll]] for (int k = 0; k < N_SUMS; k++) sums[k] = vec4(0.0);
}

/* The rows of a page's part from position j0 on, those of [first, last]; others are 0. */
void load_page(uvec2 part_at, uint head, uint j0, uint first, uint last)
{
	Halves scales = Halves(kv_scales_at(part_at, push.n_head_kv, HEAD_DIM));

	for (uint i = gl_LocalInvocationIndex; i < PAGE * N_VECS; i += LOCAL_SIZE) {
		uint key = i / N_VECS, e = i % N_VECS * KV_VEC;
		uint row = kv_row(head, key);
		float v[VEC];

		[[unroll]] for (int k = 0; k < VEC; k++) v[k] = 0.0;
		if (j0 + key >= first && j0 + key <= last) {
			float scale = scale_of(scales, row, e, HEAD_DIM);
			unpack_vec(Quads(part_at).at[row * N_VECS + i % N_VECS], v);
			[[unroll]] for (int k = 0; k < VEC; k++) v[k] =
				e + k < HEAD_DIM ? v[k] * scale : 0.0;
		}
		[[unroll]] for (int k = 0; k < VEC; k += 2) if (e + k < 4 * QUARTERS)
			kv_tile[key * KV_STRIDE + (e + k) / 2] = packHalf2x16(vec2(v[k], v[k + 1]));
	}
}

void score(uint j0)
{
	float dots[N_SCORES];

	[[unroll]] for (int k = 0; k < N_SCORES; k++) dots[k] = 0.0;
	for (uint d = 0; d < QUARTERS; d++) {
		[[unroll]] for (int k = 0; k < N_SCORES; k++)
		{
			uint query = min(query_of_score(k), QUERIES - 1);
			vec4 a = q_tile[query * QUARTERS + d];
			vec4 b = kv_quarter(key_of_score(k), d);
			dots[k] =
				fma(a.x, b.x, fma(a.y, b.y, fma(a.z, b.z, fma(a.w, b.w, dots[k]))));
		}
	}
	[[unroll]] for (int k = 0; k < N_SCORES; k++)
	{
		uint query = query_of_score(k), key = key_of_score(k);

		if (query >= QUERIES)
			continue;
		bool is_seen = j0 + key >= visible[query].x && j0 + key <= visible[query].y;
		float s = HAS_CAP ? LOG2_E * capped(dots[k]) : dots[k];
		p_tile[query * P_STRIDE + key] = is_seen ? s : LOWEST;
	}
}

/* The scores of a query become weights; a subgroup a query. */
void weigh()
{
	for (uint query = gl_SubgroupID; query < QUERIES; query += LOCAL_SIZE / SUBGROUP) {
		vec2 before = state[query];
		float top = before.x, n = 0.0;

		for (uint c = lane(); c < PAGE; c += SUBGROUP)
			top = max(top, p_tile[query * P_STRIDE + c]);
		[[unroll]] for (int level = 1; level <= MAX_LEVELS; level++)
		{
			uint d = SUBGROUP >> level;
			if (d > 0)
				top = max(top, subgroupShuffleXor(top, d));
		}
		for (uint c = lane(); c < PAGE; c += SUBGROUP) {
			uint at = query * P_STRIDE + c;
			/* Where nothing has been seen LOWEST is the highest: no key weighs. */
			float w = top > LOWEST ? exp2(p_tile[at] - top) : 0.0;
			p_tile[at] = w;
			n += w;
		}
		n = sum_lanes(n);
		if (lane() == 0) {
			float f = exp2(before.x - top);
			shrink[query] = f;
			state[query] = vec2(top, fma(f, before.y, n));
		}
	}
}

void add_values()
{
	[[unroll]] for (int k = 0; k < N_SUMS; k++) sums[k] *=
		shrink[min(query_of_sum(k), QUERIES - 1)];
	for (uint key = 0; key < PAGE; key++) {
		[[unroll]] for (int k = 0; k < N_SUMS; k++)
		{
			uint query = min(query_of_sum(k), QUERIES - 1);
			float w = p_tile[query * P_STRIDE + key];
			sums[k] = fma(vec4(w), kv_quarter(key, quarter_of_sum(k)), sums[k]);
		}
	}
}

/* To y, divided, or as they are to a slot. */
void store(abi_span span, uint h0, uint slot, bool is_whole)
{
	Partials partials = Partials(push.partials);

	for (uint i = gl_LocalInvocationIndex; !is_whole && i < QUERIES; i += LOCAL_SIZE)
		partials.at[slot * QUERIES + i] = state[i];
	[[unroll]] for (int k = 0; k < N_SUMS; k++)
	{
		uint query = query_of_sum(k), e = 4 * quarter_of_sum(k);

		if (query >= QUERIES || query / HEADS >= span.n)
			continue;
		if (is_whole) {
			FloatsOut y = y_of(span, h0, query);
			float f = last_factor(state[query].x, state[query].y, h0 + query % HEADS);
			[[unroll]] for (uint d = 0; d < 4; d++) if (e + d < HEAD_DIM) y.at[e + d] =
				f * sums[k][d];
			continue;
		}
		uint at = sums_at(slot, query, e / 2);
		partials.at[at] = sums[k].xy;
		if (e + 2 < HEAD_DIM)
			partials.at[at + 1] = sums[k].zw;
	}
}

void main()
{
	uint h0 = gl_WorkGroupID.y * HEADS;
	uint n_units = Spans(push.list).n;
	uint n_most = count_most(n_units, ABI_ATTENTION_TILE_SLOTS);

	if (gl_WorkGroupID.x >= n_units * n_most)
		return;
	place at = find_place(gl_WorkGroupID.x, n_units, n_most);
	abi_span span = Spans(push.list).at[at.unit];
	uint head = h0 / (push.n_head / push.n_head_kv);
	uint first = first_key(position_of(span, 0)), last = position_of(span, QUERIES);
	pages part = cut(at, first, last);
	if (part.first >= part.end)
		return;
	load_queries(span, h0);
	for (uint page0 = part.first; page0 < part.end; page0 += SUBGROUP) {
		uvec2 entry = page_at(span.slot, min(page0 + lane(), part.end - 1));

		for (uint i = 0; i < min(SUBGROUP, part.end - page0); i++) {
			uvec2 page = subgroupShuffle(entry, i);
			uint j0 = (page0 + i) * PAGE;
			barrier();
			load_page(keys_of(page, HEAD_DIM), head, j0, first, last);
			barrier();
			score(j0);
			barrier();
			weigh();
			load_page(values_of(page, HEAD_DIM), head, j0, first, last);
			barrier();
			add_values();
		}
	}
	barrier();
	store(span, h0, slot_of(at, at.part), part.n_parts == 1);
	if (part.n_parts > 1 && is_last_part(unit_block(at), part.n_parts))
		add_parts(span, h0, slot_of(at, 0), part.n_parts);
}
