#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rope-kv.comp, attention-split.comp and quantize.comp do one after the other, in one
 * dispatch, for rows that are each of another session: no row attends to what another one of them
 * adds. Each workgroup norms and turns its own queries. That of the part with the row's own
 * position makes the row's key and value, too, and attends to them out of shared memory, rounded as
 * the cache has them; one workgroup of each key head writes them to the cache, where nobody reads
 * them.
 *
 * With NEXT the workgroup that has y of its heads leaves it as bytes for the product behind it.
 *
 * Shapes: qkv [m][(n_head + 2 n_head_kv) head_dim] f32, which stays; y [m][n_head head_dim] f32;
 * pages as in workerd/kv-layout.h.
 * Grid: as attention-split.comp, not less than there are places. Bindings: none; addresses in
 * struct abi_attention_fused.
 *
 * What is loaded waits for memory four times, one after the other: the row, its entries of the page
 * table, keys and values, and where there are parts, their sums. So all that can be is loaded
 * before any of it is used.
 */
#define ATTENTION_PUSH abi_attention_fused
#define ATTENTION_CAP uintBitsToFloat(CAP)
#define QUANT_ORDER
#include "common.glsl"

layout(constant_id = ABI_ATTENTION_SPEC_ROT) const uint N_ROT = 0;
layout(constant_id = ABI_ATTENTION_SPEC_CAP) const uint CAP = 0;
layout(constant_id = ABI_ATTENTION_SPEC_NEXT) const uint NEXT = 0;

#define ATTENTION_BLOCKS_FIRST
#include "attention.glsl"
#include "attention-split.glsl"
#include "quant.glsl"
#include "rope.glsl"

layout(constant_id = ABI_ATTENTION_SPEC_GROUP) const uint GROUP = 1;
const bool IS_ONE = (FLAGS & ABI_ATTENTION_FLAG_ONE) != 0;
const bool IS_INTERLEAVED = (FLAGS & ABI_ATTENTION_FLAG_NEIGHBOURS) != 0;

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer QuadsOut
{
	uvec4 at[];
};

/* A lane's share of a head: pairs that turn, and what is behind them. */
const uint N_PAIRS = N_ROT / 2;
const uint N_REST = HEAD_DIM - 2 * N_PAIRS;
const int PAIR_ROUNDS = int((N_PAIRS + SUBGROUP - 1) / SUBGROUP);
const int REST_ROUNDS = int((N_REST + SUBGROUP - 1) / SUBGROUP);
const int PAIR_SIZE = PAIR_ROUNDS > 0 ? PAIR_ROUNDS : 1;
const int REST_SIZE = REST_ROUNDS > 0 ? REST_ROUNDS : 1;

/* Heads that a workgroup makes ready, a subgroup each: its queries, the key and the value. */
const uint KEY_JOB = HEADS;
const uint VALUE_JOB = HEADS + 1;
const uint N_JOBS = HEADS + 2;

shared float ready[N_JOBS * HEAD_DIM]; /* and then y */
shared uvec4 new_quads[2 * N_VECS];    /* the row's key and value as the cache has them */
shared uint new_scales[2 * N_VECS];    /* bits of an f16 */

/* The lane's share of a job's head as it is loaded. */
vec2 x_pairs[PAIR_SIZE];
vec2 x_gains[PAIR_SIZE];
uvec2 x_turns[PAIR_SIZE];
float x_rest[REST_SIZE];
float x_rest_gains[REST_SIZE];

/* The two numbers of pair i, the lower first. */
uvec2 pair(uint i)
{
	return IS_INTERLEAVED ? uvec2(2 * i, 2 * i + 1) : uvec2(i, i + N_PAIRS);
}

uvec2 gain_of(uint job)
{
	return job < KEY_JOB ? push.q_gain : job == KEY_JOB ? push.k_gain : uvec2(0);
}

/* Starts the loads of the job's head, and of what it is multiplied and turned by. */
void load_head(uvec2 x_row, uint h0, uint job)
{
	uint head = h0 / GROUP;
	uint at = job < KEY_JOB    ? h0 + job
		  : job == KEY_JOB ? push.n_head + head
				   : push.n_head + push.n_head_kv + head;
	Floats x = Floats(address_at(x_row, at, 4 * HEAD_DIM));
	Floats gain = Floats(gain_of(job));
	bool has_gain = any(notEqual(gain_of(job), uvec2(0)));

	[[unroll]] for (int r = 0; r < PAIR_ROUNDS; r++)
	{
		uint i = min(r * SUBGROUP + lane(), N_PAIRS - 1);
		uvec2 p = pair(i);
		x_pairs[r] = vec2(x.at[p.x], x.at[p.y]);
		x_turns[r] = Pairs(push.turns).at[i];
		x_gains[r] = vec2(1.0);
		if (has_gain)
			x_gains[r] = vec2(gain.at[p.x], gain.at[p.y]);
	}
	[[unroll]] for (int r = 0; r < REST_ROUNDS; r++)
	{
		uint e = min(2 * N_PAIRS + r * SUBGROUP + lane(), HEAD_DIM - 1);
		x_rest[r] = x.at[e];
		x_rest_gains[r] = 1.0;
		if (has_gain)
			x_rest_gains[r] = gain.at[e];
	}
}

float find_norm()
{
	float squares = 0.0;

	[[unroll]] for (int r = 0; r < PAIR_ROUNDS; r++) if (r * SUBGROUP + lane() < N_PAIRS)
		squares += dot(x_pairs[r], x_pairs[r]);
	[[unroll]] for (int r = 0; r < REST_ROUNDS; r++) if (r * SUBGROUP + lane() < N_REST)
		squares = fma(x_rest[r], x_rest[r], squares);
	return norm_scale(sum_lanes(squares), HEAD_DIM, push.eps);
}

/* Into shared memory; queries are scaled so that scores are powers of 2, or with a cap behind it.
 */
void put_head(uint job, uint position)
{
	float scale = job < KEY_JOB ? inversesqrt(float(HEAD_DIM)) * (HAS_CAP ? 1.0 : LOG2_E) : 1.0;
	uint base = job * HEAD_DIM;

	if (any(notEqual(gain_of(job), uvec2(0))))
		scale *= find_norm();
	[[unroll]] for (int r = 0; r < PAIR_ROUNDS; r++)
	{
		uint i = r * SUBGROUP + lane();
		vec2 t = job == VALUE_JOB ? vec2(1.0, 0.0) : rotation(x_turns[r], position);
		vec2 a = scale * x_gains[r] * x_pairs[r];
		uvec2 p = pair(i);
		if (i >= N_PAIRS)
			continue;
		ready[base + p.x] = fma(a.x, t.x, -(a.y * t.y));
		ready[base + p.y] = fma(a.y, t.x, a.x * t.y);
	}
	[[unroll]] for (int r = 0; r < REST_ROUNDS; r++)
	{
		uint i = r * SUBGROUP + lane();
		if (i < N_REST)
			ready[base + 2 * N_PAIRS + i] = scale * x_rest_gains[r] * x_rest[r];
	}
}

void take_queries()
{
	[[unroll]] for (int h = 0; h < HEADS; h++)
	{
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			[[unroll]] for (int e = 0; e < VEC; e++)
			{
				uint at = vec_at(w) * KV_VEC + e;
				float v = ready[h * HEAD_DIM + min(at, HEAD_DIM - 1)];
				q[h][w * VEC + e] = at < HEAD_DIM ? v : 0.0;
			}
		}
	}
}

/* Number e of the new key (or value); behind the head 0. */
float new_number(bool is_value, uint e)
{
	uint job = is_value ? VALUE_JOB : KEY_JOB;

	return e < HEAD_DIM ? ready[job * HEAD_DIM + e] : 0.0;
}

/* 16 bytes of the new key or value, as the cache has them, and their scale. */
uvec4 make_quad(bool is_value, uint vec, out uint scale)
{
	uvec4 quad = uvec4(0);

#if defined(KV_Q8_0)
	float top = 0.0;
	for (uint e = 0; e < KV_BLOCK; e++)
		top = max(top, abs(new_number(is_value, vec / 2 * KV_BLOCK + e)));
	float d = top / 127.0;
	float inverse = d > 0.0 ? 1.0 / d : 0.0;
	[[unroll]] for (uint e = 0; e < KV_VEC; e++)
	{
		float v = new_number(is_value, vec * KV_VEC + e);
		/* Away from 0 at the middle, as round() of C. */
		int n = int(sign(v) * floor(fma(abs(v), inverse, 0.5)));
		quad[e / 4] |= (uint(clamp(n, -127, 127)) & 255) << e % 4 * 8;
	}
	scale = packHalf2x16(vec2(d, 0.0));
#else
	[[unroll]] for (uint e = 0; e < KV_VEC; e += 2) quad[e / 2] =
		packHalf2x16(vec2(new_number(is_value, vec * KV_VEC + e),
			new_number(is_value, vec * KV_VEC + e + 1)));
	scale = 0;
#endif
	return quad;
}

/*
 * The new key or value, which the subgroup has made ready, for the workgroup as the cache has it,
 * and where this workgroup is the one, into the page.
 */
void put_new(uint job, uvec2 page, uint head, uint position, bool is_writer)
{
	bool is_value = job == VALUE_JOB;
	uvec2 part_at = is_value ? values_of(page, HEAD_DIM) : keys_of(page, HEAD_DIM);
	uint row = kv_row(head, position);

	subgroupMemoryBarrierShared();
	subgroupBarrier();
	for (uint vec = lane(); vec < N_VECS; vec += SUBGROUP) {
		uint scale;
		uvec4 quad = make_quad(is_value, vec, scale);

		new_quads[(is_value ? N_VECS : 0) + vec] = quad;
		new_scales[(is_value ? N_VECS : 0) + vec] = scale;
		if (!is_writer)
			continue;
		QuadsOut(part_at).at[row * N_VECS + vec] = quad;
#if defined(KV_Q8_0)
		HalvesOut scales = HalvesOut(kv_scales_at(part_at, push.n_head_kv, HEAD_DIM));
		if (vec % 2 == 0)
			scales.at[row * kv_scales(HEAD_DIM) + vec / 2] = float16_t(half_low(scale));
#endif
	}
}

float new_scale(uint i)
{
#if defined(KV_Q8_0)
	return half_low(new_scales[i]);
#else
	return 1.0;
#endif
}

/*
 * Of the block from j0 on the lane that has the row's own position takes its key and value; where
 * none of the block was loaded, the others have zeros.
 */
void take_new(uint j0, uint first, uint position)
{
	bool has_none = !has_keys(j0, first, position);

	[[unroll]] for (int b = 0; b < UNROLL; b++)
	{
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			if (has_none)
				keys_held[b][w] = values_held[b][w] = uvec4(0);
			if (has_none)
				key_scales_held[b][w] = value_scales_held[b][w] = 0.0;
		}
		if (j0 + b * KEYS + group() != position)
			continue;
		[[unroll]] for (int w = 0; w < LANE_VECS; w++)
		{
			keys_held[b][w] = new_quads[vec_in(w)];
			values_held[b][w] = new_quads[N_VECS + vec_in(w)];
			key_scales_held[b][w] = new_scale(vec_in(w));
			value_scales_held[b][w] = new_scale(N_VECS + vec_in(w));
		}
	}
}

void put_y(uint row, uint h0, uint i, vec2 y)
{
	if (NEXT != 0) {
		ready[2 * i] = y.x;
		ready[2 * i + 1] = y.y;
	}
	if (NEXT != 0 && push.y == uvec2(0))
		return;
	uvec2 y_row = address_at(push.y, row, 4 * HEAD_DIM * push.n_head);
	FloatsOut to = FloatsOut(address_at(y_row, h0, 4 * HEAD_DIM));
	to.at[2 * i] = y.x;
	to.at[2 * i + 1] = y.y;
}

/* The y of this workgroup's heads as bytes; HEAD_DIM is whole 32. */
void stage_heads(uint row, uint h0)
{
	uint k = HEAD_DIM * push.n_head;
	uvec2 next = address_at(push.next, row, ABI_QUANT_ROW_BYTES(k));

	barrier();
	for (uint i = gl_SubgroupID * SUBGROUP + lane(); i < HEADS * HEAD_DIM / 4;
		i += LOCAL_SIZE) {
		vec4 v;
		[[unroll]] for (uint b = 0; b < 4; b++) v[b] =
			ready[i / 8 * 32 + quant_number(NEXT - 1, i % 8, b)];
		put_word(next, k, h0 * (HEAD_DIM / 4) + i, quant_word(v), false, 0.0);
	}
}

/* A part of a row; all invocations. */
void add_place(place at)
{
	uint h0 = block_id() * HEADS, head = h0 / GROUP, job = gl_SubgroupID;
	uint n_x_bytes = 4 * HEAD_DIM * (push.n_head + 2 * push.n_head_kv);
	uvec2 x_row = address_at(push.qkv, at.unit, n_x_bytes);
	abi_row row = Rows(push.rows).at[at.unit];
	load_head(x_row, h0, min(job, N_JOBS - 1));
	uint first = first_key(row.position), last = row.position;
	pages part = IS_ONE ? cut_fast(at, first, last) : cut(at, first, last);
	if (part.first >= part.end)
		return;
	/* What is behind the row's own position is in no cache, and nor is that. */
	uvec2 last_page = page_at(row.slot, last / ABI_KV_PAGE_TOKENS);
	walk w = begin_walk(row.slot, head, part, first, last, last);
	if (IS_ONE)
		part.n_parts = count_parts(first, last, part.n_parts);
	bool has_new = last / ABI_KV_PAGE_TOKENS < part.end;
	uint n_jobs = has_new ? N_JOBS : HEADS;
	while (job < n_jobs) {
		put_head(job, last);
		if (job >= KEY_JOB)
			put_new(job, last_page, head, last, h0 % GROUP == 0);
		job += SPLITS;
		/* Not where there is no second: code has to be loaded, too. */
		if (SPLITS >= N_JOBS)
			break;
		if (job < n_jobs)
			load_head(x_row, h0, job);
	}
	barrier();
	take_queries();
	clear_sums();
	bool has_block = w.j < w.j_end;
	while (has_block) {
		uint j = w.j;
		hold_block();
		has_block = continue_walk(w);
		if (j <= last && last < j + BLOCK)
			take_new(j, first, last);
		add_block(j, first, last);
	}
	add_groups();
	share();
	barrier();
	if (finish_part(at, part, at.unit, h0) && NEXT != 0)
		stage_heads(at.unit, h0);
}

void main()
{
	uint x = first_place();

	/* Each place has a workgroup. */
	if (IS_ONE) {
		add_place(place(0, x, push.n_parts));
		return;
	}
	uint n_units = Words(push.m).at[0];
	uint n_most = count_most(n_units, ABI_ATTENTION_SLOTS);
	if (x < n_units * n_most)
		add_place(find_place(x, n_units, n_most));
}
