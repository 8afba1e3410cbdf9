/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_ATTENTION_TILE_GLSL
#define SHADERS_ATTENTION_TILE_GLSL

/*
 * What the kernels for tiles share. A tile is up to ROWS rows of one session, a span of the list,
 * by HEADS query heads of one key head: query r of it is row r / HEADS, head r % HEADS. QUERIES is
 * defined: so many are computed, of which those beyond the span's are zeros.
 */
#include "attention.glsl"

layout(constant_id = ABI_ATTENTION_TILE_SPEC_HEADS) const uint HEADS = 1;
layout(constant_id = ABI_ATTENTION_TILE_SPEC_HEAD_DIM) const uint HEAD_DIM = 64;
layout(constant_id = ABI_ATTENTION_TILE_SPEC_KEYS) const uint KEYS = 32; /* pages */
layout(constant_id = ABI_ATTENTION_TILE_SPEC_ROWS) const uint ROWS = 16;

/* What sums of a query are multiplied by, of its reference and weights. */
float last_factor(float top, float n, uint head)
{
	if (!HAS_SINKS)
		return n > 0.0 ? 1.0 / n : 0.0;
	float sink = Floats(push.sinks).at[head] * LOG2_E;
	float higher = max(top, sink);
	float shrink = exp2(top - higher);

	return shrink / fma(shrink, n, exp2(sink - higher));
}

FloatsOut y_of(abi_span span, uint h0, uint query)
{
	uvec2 row = address_at(push.y, span.first + query / HEADS, 4 * HEAD_DIM * push.n_head);

	return FloatsOut(address_at(row, h0 + query % HEADS, 4 * HEAD_DIM));
}

uint position_of(abi_span span, uint query)
{
	return span.position + min(query / HEADS, span.n - 1);
}

/* Where partial sums begin at number 2 * pair of a query. */
uint sums_at(uint slot, uint query, uint pair)
{
	return ABI_ATTENTION_TILE_SLOTS * QUERIES + (slot * QUERIES + query) * (HEAD_DIM / 2) +
	       pair;
}

/* Adds the n parts from a slot on. */
void add_parts(abi_span span, uint h0, uint slot, uint n)
{
	const uint n_pairs = HEAD_DIM / 2;
	Partials partials = Partials(push.partials);
	uint n_queries = span.n * HEADS;

	for (uint i = gl_LocalInvocationIndex; i < n_queries * n_pairs; i += LOCAL_SIZE) {
		uint query = i / n_pairs, e = i % n_pairs;
		float top = LOWEST, sum = 0.0;
		vec2 y = vec2(0.0);

		for (uint p = 0; p < n; p++)
			top = max(top, partials.at[(slot + p) * QUERIES + query].x);
		for (uint p = 0; p < n; p++) {
			uint at = (slot + p) * QUERIES + query;
			vec2 stat = partials.at[at];
			float mine = exp2(stat.x - top);
			sum = fma(mine, stat.y, sum);
			y = fma(vec2(mine), partials.at[sums_at(slot + p, query, e)], y);
		}
		y *= last_factor(top, sum, h0 + query % HEADS);
		FloatsOut to = y_of(span, h0, query);
		to.at[2 * e] = y.x;
		to.at[2 * e + 1] = y.y;
	}
}

#endif
