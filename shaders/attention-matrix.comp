#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.comp's formula for steps of many rows, on cooperative matrices (f16, sums in f32).
 *
 * A tile is ROWS rows of one session (a span of the list) by HEADS query heads of one key head:
 * query r of it is row r / HEADS, head r % HEADS. Each subgroup has M of its queries, the workgroup
 * brings KEYS keys and values at a time into shared memory as f16. A tile's keys may be cut into
 * parts, as attention-split.comp's.
 *
 * Scores S = Q K^T come out of the matrices relative to a reference of their row, in powers of 2:
 * the sum begins with minus the reference. While none is above HOT, weights are 2^S as they are,
 * and nobody asks which element of a matrix a lane has. Else, and where keys are masked, `settle`
 * goes through shared memory, raises references to the highest score of their row and shrinks what
 * was summed. So f16 holds every weight, and sums have no loss but at the end of their range.
 *
 * Shapes: as attention.comp; HEAD_DIM a multiple of N and K.
 * Grid: x: places (see find_place), for the most spans; y: n_head / HEADS.
 * Bindings: none; addresses in struct abi_attention. What has no span or part leaves at once.
 */
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#extension GL_GOOGLE_include_directive : require
#include "abi.h"

layout(constant_id = ABI_ATTENTION_TILE_SPEC_M) const uint M = 16;
#define QUERIES (LOCAL_SIZE / SUBGROUP * M)
#include "attention-tile.glsl"

layout(constant_id = ABI_ATTENTION_TILE_SPEC_N) const uint N = 16;
layout(constant_id = ABI_ATTENTION_TILE_SPEC_K) const uint K = 16;

const uint WIDTH = 2 * (N > K ? N : K); /* keys at once; divides ABI_KV_PAGE_TOKENS */
const uint S_BLOCKS = WIDTH / N;
const uint P_BLOCKS = WIDTH / K;
const uint Q_BLOCKS = HEAD_DIM / K;
const uint O_BLOCKS = HEAD_DIM / N;
const uint ROW_LANES = SUBGROUP / M; /* that share a query in settle */
const float HOT = 8.0;

#define MATRIX_A coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define MATRIX_B coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define MATRIX_C coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define MATRIX_P coopmat<float16_t, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

/* Rows of shared memory, in units of 8 f16; one more, so that rows lie in other banks. */
const uint KV_STRIDE = HEAD_DIM / 8 + 1;
const uint P_STRIDE = WIDTH / 8 + 1;
const uint S_STRIDE = WIDTH + 4;

shared uvec4 keys[KEYS * KV_STRIDE];
shared uvec4 values[KEYS * KV_STRIDE];
shared uvec4 weights[QUERIES * P_STRIDE];
shared float scratch[QUERIES * S_STRIDE];

MATRIX_A q[Q_BLOCKS];
MATRIX_C o[O_BLOCKS];
MATRIX_C total; /* of weights, column by column */
MATRIX_C base;  /* minus the reference, in every column */

/* Of the lane's query. */
float reference = 0.0;
bool is_seen = false; /* has it had a key that it sees? */
uint key_first;       /* that it sees */
uint key_last;

bool is_all_seen = false; /* in all lanes */

uint query_of_lane()
{
	return lane() / ROW_LANES;
}

/* Where the subgroup's scratch begins, and the lane's row of it. */
uint scratch_at()
{
	return gl_SubgroupID * M * S_STRIDE;
}

uint scratch_row()
{
	return scratch_at() + query_of_lane() * S_STRIDE;
}

/*
 * Lanes of the subgroup see what they wrote. The software driver makes subgroupBarrier one of the
 * workgroup, which subgroups that come to it more often than others do not survive (Mesa 26.1); its
 * lanes run in step.
 */
void sync()
{
	if ((FLAGS & ABI_ATTENTION_FLAG_STEP) == 0)
		subgroupBarrier();
	else
		subgroupMemoryBarrierShared();
}

/* A matrix that has v of the lane's query in all columns. */
MATRIX_C spread(float v)
{
	MATRIX_C y;

	sync();
	for (uint c = lane() % ROW_LANES; c < N; c += ROW_LANES)
		scratch[scratch_row() + c] = v;
	sync();
	coopMatLoad(y, scratch, scratch_at(), S_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
	return y;
}

/*
 * Scores of the keys from j on: masks them, and raises references that are lower than one of them.
 */
void settle(inout MATRIX_C s[S_BLOCKS], uint j)
{
	float top = LOWEST;

	sync();
	[[unroll]] for (uint b = 0; b < S_BLOCKS; b++) coopMatStore(
		s[b], scratch, scratch_at() + b * N, S_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
	sync();
	for (uint c = lane() % ROW_LANES; c < WIDTH; c += ROW_LANES)
		if (j + c >= key_first && j + c <= key_last)
			top = max(top, scratch[scratch_row() + c]);
	[[unroll]] for (uint d = 1; d < ROW_LANES; d *= 2) top =
		max(top, subgroupShuffleXor(top, d));
	bool has_key = top > LOWEST;
	float up = is_seen ? max(top, 0.0) : has_key ? top : 0.0;
	for (uint c = lane() % ROW_LANES; c < WIDTH; c += ROW_LANES) {
		bool is_visible = j + c >= key_first && j + c <= key_last;
		uint at = scratch_row() + c;
		scratch[at] = is_visible ? scratch[at] - up : LOWEST;
	}
	sync();
	[[unroll]] for (uint b = 0; b < S_BLOCKS; b++) coopMatLoad(
		s[b], scratch, scratch_at() + b * N, S_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
	/* Where nothing has been seen there is nothing to shrink. */
	float shrink = is_seen ? exp2(-up) : 1.0;
	reference += up;
	is_seen = is_seen || has_key;
	is_all_seen = subgroupAll(is_seen);
	if (!subgroupAny(up != 0.0))
		return;
	MATRIX_C f = spread(shrink);
	[[unroll]] for (uint b = 0; b < O_BLOCKS; b++) o[b] = o[b] * f;
	total = total * f;
	base = spread(-reference);
}

/* Adds WIDTH keys, j the first and at its place in the tile. */
void add_keys(uint j, uint at, bool is_masked)
{
	MATRIX_C s[S_BLOCKS];
	MATRIX_B b_kv;
	MATRIX_A p;
	bool is_hot = false;

	[[unroll]] for (uint b = 0; b < S_BLOCKS; b++)
	{
		if (HAS_CAP)
			s[b] = MATRIX_C(0.0);
		else
			s[b] = base;
	}
	[[unroll]] for (uint d = 0; d < Q_BLOCKS; d++)
	{
		[[unroll]] for (uint b = 0; b < S_BLOCKS; b++)
		{
			coopMatLoad(b_kv, keys, (at + b * N) * KV_STRIDE + d * (K / 8), KV_STRIDE,
				gl_CooperativeMatrixLayoutColumnMajor);
			s[b] = coopMatMulAdd(q[d], b_kv, s[b]);
		}
	}
	[[unroll]] for (uint b = 0; b < S_BLOCKS; b++)
	{
		if (HAS_CAP) {
			[[unroll]] for (int e = 0; e < s[b].length(); e++) s[b][e] =
				LOG2_E * capped(s[b][e]) + base[e];
		}
		[[unroll]] for (int e = 0; e < s[b].length(); e++) is_hot = is_hot || s[b][e] > HOT;
	}
	if (is_masked || !is_all_seen || subgroupAny(is_hot))
		settle(s, j);
	sync();
	[[unroll]] for (uint b = 0; b < S_BLOCKS; b++)
	{
		[[unroll]] for (int e = 0; e < s[b].length(); e++) s[b][e] = exp2(s[b][e]);
		total = total + s[b];
		coopMatStore(MATRIX_P(s[b]), weights, gl_SubgroupID * M * P_STRIDE + b * (N / 8),
			P_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
	}
	sync();
	[[unroll]] for (uint c = 0; c < P_BLOCKS; c++)
	{
		coopMatLoad(p, weights, gl_SubgroupID * M * P_STRIDE + c * (K / 8), P_STRIDE,
			gl_CooperativeMatrixLayoutRowMajor);
		[[unroll]] for (uint b = 0; b < O_BLOCKS; b++)
		{
			coopMatLoad(b_kv, values, (at + c * K) * KV_STRIDE + b * (N / 8), KV_STRIDE,
				gl_CooperativeMatrixLayoutRowMajor);
			o[b] = coopMatMulAdd(p, b_kv, o[b]);
		}
	}
}

#if defined(KV_Q8_0)
/* Half of 16 bytes as f16. */
uvec4 halves_of(uvec4 raw, int half_of, float scale)
{
	uvec4 y;

	[[unroll]] for (int i = 0; i < 4; i++)
	{
		int e = 8 * half_of + 2 * i;
		y[i] = packHalf2x16(
			vec2(byte_float(raw[e / 4], e % 4), byte_float(raw[e / 4], e % 4 + 1)) *
			scale);
	}
	return y;
}
#endif

/* Keys and values on their way to shared memory, 16 bytes of each row here and there. */
const uint N_VECS = HEAD_DIM / KV_VEC;
const int N_FETCHED = int((KEYS * N_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE);
uvec4 k_raw[N_FETCHED];
uvec4 v_raw[N_FETCHED];
float k_scale[N_FETCHED];
float v_scale[N_FETCHED];

uint entry_page = 0xffffffff; /* that the first lane has the table's entry of */
uvec2 entry;

/* The rows of keys from j0 on, those of [first, last]; others are 0. */
void fetch(uint slot, uint head, uint j0, uint first, uint last)
{
	uint page0 = j0 / ABI_KV_PAGE_TOKENS;

	if (entry_page > page0 || page0 + KEYS / ABI_KV_PAGE_TOKENS > entry_page + SUBGROUP) {
		entry_page = page0;
		entry = page_at(slot, min(page0 + lane(), last / ABI_KV_PAGE_TOKENS));
	}
	[[unroll]] for (int s = 0; s < N_FETCHED; s++)
	{
		uint i = gl_LocalInvocationIndex + s * LOCAL_SIZE;
		uint j = j0 + i / N_VECS, v = i % N_VECS;
		uvec2 page = subgroupShuffle(
			entry, min(j / ABI_KV_PAGE_TOKENS - entry_page, SUBGROUP - 1));

		k_raw[s] = uvec4(0);
		v_raw[s] = uvec4(0);
		k_scale[s] = 0.0;
		v_scale[s] = 0.0;
		if (i < KEYS * N_VECS && j >= first && j <= last) {
			uvec2 k_at = keys_of(page, HEAD_DIM), v_at = values_of(page, HEAD_DIM);
			uint row = kv_row(head, j);
			k_raw[s] = Quads(k_at).at[row * N_VECS + v];
			v_raw[s] = Quads(v_at).at[row * N_VECS + v];
			k_scale[s] = scale_of(Halves(kv_scales_at(k_at, push.n_head_kv, HEAD_DIM)),
				row, v * KV_VEC, HEAD_DIM);
			v_scale[s] = scale_of(Halves(kv_scales_at(v_at, push.n_head_kv, HEAD_DIM)),
				row, v * KV_VEC, HEAD_DIM);
		}
	}
}

/* What was fetched, as f16 into shared memory. */
void put()
{
	[[unroll]] for (int s = 0; s < N_FETCHED; s++)
	{
		uint i = gl_LocalInvocationIndex + s * LOCAL_SIZE;
		uint at = i / N_VECS * KV_STRIDE + i % N_VECS * (KV_VEC / 8);

		if (i >= KEYS * N_VECS)
			continue;
#if defined(KV_Q8_0)
		[[unroll]] for (int k = 0; k < 2; k++)
		{
			keys[at + k] = halves_of(k_raw[s], k, k_scale[s]);
			values[at + k] = halves_of(v_raw[s], k, v_scale[s]);
		}
#else
		keys[at] = k_raw[s];
		values[at] = v_raw[s];
#endif
	}
}

/* The queries of the span become f16 in shared memory, KEYS at a time, and then matrices. */
void load_queries(abi_span span, uint h0)
{
	const uint n_vecs = HEAD_DIM / 8;
	uint n_x_bytes = 4 * HEAD_DIM * (push.n_head + 2 * push.n_head_kv);
	float scale = HAS_CAP ? push.scale : push.scale * LOG2_E;

	for (uint r0 = 0; r0 < QUERIES; r0 += KEYS) {
		barrier();
		for (uint i = gl_LocalInvocationIndex; i < KEYS * n_vecs; i += LOCAL_SIZE) {
			uint r = r0 + i / n_vecs, v = i % n_vecs;
			uvec4 packed = uvec4(0);

			if (r / HEADS < span.n) {
				uvec2 row = address_at(push.qkv, span.first + r / HEADS, n_x_bytes);
				Quads x = Quads(address_at(row, h0 + r % HEADS, 4 * HEAD_DIM));
				vec4 low = scale * uintBitsToFloat(x.at[2 * v]);
				vec4 high = scale * uintBitsToFloat(x.at[2 * v + 1]);
				packed = uvec4(packHalf2x16(low.xy), packHalf2x16(low.zw),
					packHalf2x16(high.xy), packHalf2x16(high.zw));
			}
			keys[i / n_vecs * KV_STRIDE + v] = packed;
		}
		barrier();
		uint mine = gl_SubgroupID * M;
		if (mine < r0 || mine >= r0 + KEYS)
			continue;
		[[unroll]] for (uint d = 0; d < Q_BLOCKS; d++)
			coopMatLoad(q[d], keys, (mine - r0) * KV_STRIDE + d * (K / 8), KV_STRIDE,
				gl_CooperativeMatrixLayoutRowMajor);
	}
}

/* The sum of the lane's query's weights. */
float sum_weights()
{
	float n = 0.0;

	sync();
	coopMatStore(total, scratch, scratch_at(), S_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
	sync();
	for (uint c = lane() % ROW_LANES; c < N; c += ROW_LANES)
		n += scratch[scratch_row() + c];
	[[unroll]] for (uint d = 1; d < ROW_LANES; d *= 2) n += subgroupShuffleXor(n, d);
	return n;
}

/* The subgroup's sums to y, divided, or as they are to a slot. */
void store(abi_span span, uint h0, uint slot, bool is_whole)
{
	uint first = gl_SubgroupID * M, mine = first + query_of_lane();
	float n = sum_weights();
	Partials partials = Partials(push.partials);

	if (is_whole) {
		MATRIX_C f = spread(last_factor(reference, n, h0 + mine % HEADS));
		[[unroll]] for (uint b = 0; b < O_BLOCKS; b++) o[b] = o[b] * f;
	} else if (lane() % ROW_LANES == 0) {
		partials.at[slot * QUERIES + mine] = vec2(is_seen ? reference : LOWEST, n);
	}
	[[unroll]] for (uint b = 0; b < O_BLOCKS; b++)
	{
		sync();
		coopMatStore(
			o[b], scratch, scratch_at(), S_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
		sync();
		for (uint i = lane(); i < M * N / 2; i += SUBGROUP) {
			uint r = i / (N / 2), e = 2 * (i % (N / 2)), from = r * S_STRIDE + e;
			vec2 y = vec2(
				scratch[scratch_at() + from], scratch[scratch_at() + from + 1]);
			uint query = first + r;

			if (query / HEADS >= span.n)
				continue;
			if (is_whole) {
				FloatsOut to = y_of(span, h0, query);
				to.at[b * N + e] = y.x;
				to.at[b * N + e + 1] = y.y;
			} else {
				partials.at[sums_at(slot, query, (b * N + e) / 2)] = y;
			}
		}
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
	uint first = first_key(position_of(span, 0)), last = position_of(span, QUERIES);
	pages part = cut(at, first, last);
	if (part.first >= part.end)
		return;
	uint head = h0 / (push.n_head / push.n_head_kv);
	uint mine = gl_SubgroupID * M;
	bool is_busy = mine / HEADS < span.n;
	/* Of the subgroup's queries: the last position, and between which keys all are seen. */
	uint all_last = position_of(span, mine), any_last = position_of(span, mine + M - 1);
	uint any_first = first_key(all_last), all_first = first_key(any_last);

	key_last = position_of(span, mine + query_of_lane());
	key_first = first_key(key_last);
	load_queries(span, h0);
	total = MATRIX_C(0.0);
	base = MATRIX_C(0.0);
	[[unroll]] for (uint b = 0; b < O_BLOCKS; b++) o[b] = MATRIX_C(0.0);
	const bool is_ahead = (FLAGS & ABI_ATTENTION_FLAG_AHEAD) != 0;
	uint j_first = part.first * ABI_KV_PAGE_TOKENS;
	uint end = min(part.end * ABI_KV_PAGE_TOKENS, last + 1);
	if (is_ahead)
		fetch(span.slot, head, j_first, first, end - 1);
	for (uint j0 = j_first; j0 < end; j0 += KEYS) {
		if (!is_ahead)
			fetch(span.slot, head, j0, first, end - 1);
		barrier();
		put();
		barrier();
		if (is_ahead && j0 + KEYS < end)
			fetch(span.slot, head, j0 + KEYS, first, end - 1);
		for (uint j = j0; is_busy && j < min(j0 + KEYS, end); j += WIDTH) {
			bool is_masked = j < all_first || j + WIDTH - 1 > all_last;
			if (j <= any_last && j + WIDTH > any_first)
				add_keys(j, j - j0, is_masked);
		}
	}
	if (is_busy)
		store(span, h0, slot_of(at, at.part), part.n_parts == 1);
	if (part.n_parts > 1 && is_last_part(unit_block(at), part.n_parts))
		add_parts(span, h0, slot_of(at, 0), part.n_parts);
}
