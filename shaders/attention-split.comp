#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.comp's formula for steps of few rows: a row's keys are cut into parts over workgroups,
 * as many as its position asks for. Each part's sums go to a slot of partials; whichever workgroup
 * of a row ends last adds them up, in the order of parts. So the sums are the same for the same
 * rows of a step, but not for a row beside others.
 *
 * Shapes: as attention.comp.
 * Grid: x: n_head / HEADS workgroups of SPLITS subgroups; y: any, best so many as there are places
 * (see find_place). With LIST a span of it is one row.
 * Bindings: none; addresses in struct abi_attention. What has no place or part leaves at once.
 *
 * LANES lanes share a key, each with 16 bytes of it at a time; a subgroup has UNROLL keys a lane in
 * flight, and their values. Page table entries, which are in host memory, are read by the lanes for
 * many pages at once.
 */
#define ATTENTION_BLOCKS_FIRST
#include "attention.glsl"
#include "attention-split.glsl"

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
			}
		}
	}
}

void put_y(uint row, uint h0, uint i, vec2 y)
{
	uvec2 y_row = address_at(push.y, row, 4 * HEAD_DIM * push.n_head);
	FloatsOut to = FloatsOut(address_at(y_row, h0, 4 * HEAD_DIM));

	to.at[2 * i] = y.x;
	to.at[2 * i + 1] = y.y;
}

/* A part of a row; all invocations. */
void add_place(place at)
{
	uint h0 = block_id() * HEADS;
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
	uint head = h0 / (push.n_head / push.n_head_kv);
	walk w = begin_walk(span.slot, head, part, first, last, last + 1);
	load_queries(address_at(push.qkv, span.first, n_x_bytes), h0);
	clear_sums();
	bool has_block = w.j < w.j_end;
	while (has_block) {
		hold_block();
		add_block(w.j, first, last);
		has_block = continue_walk(w);
	}
	add_groups();
	share();
	barrier();
	finish_part(at, part, span.first, h0);
}

void main()
{
	uint n_units = HAS_LIST ? Spans(push.list).n : Words(push.m).at[0];
	uint n_most = count_most(n_units, ABI_ATTENTION_SLOTS);

	for (uint x = first_place(); x < n_units * n_most; x += n_first_places()) {
		barrier(); /* what is shared is free again */
		add_place(find_place(x, n_units, n_most));
	}
}
