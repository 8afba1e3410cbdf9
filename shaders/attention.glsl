/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_ATTENTION_GLSL
#define SHADERS_ATTENTION_GLSL

/*
 * What the kernels for attention share: their push constants, numbers out of 16 bytes of a key or
 * value, and how keys are cut into parts.
 */
#include "kv.glsl"

layout(constant_id = ABI_ATTENTION_SPEC_FLAGS) const uint FLAGS = 0;
const bool HAS_CAP = (FLAGS & ABI_ATTENTION_FLAG_CAP) != 0;
const bool HAS_SINKS = (FLAGS & ABI_ATTENTION_FLAG_SINKS) != 0;
const bool HAS_LIST = (FLAGS & ABI_ATTENTION_FLAG_LIST) != 0;

#ifndef ATTENTION_PUSH
#define ATTENTION_PUSH abi_attention
#define ATTENTION_CAP push.cap
#endif

layout(push_constant, std430) uniform Push
{
	ATTENTION_PUSH push;
};

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Spans
{
	uint n;
	uint pad[3];
	abi_span at[];
};

const int VEC = int(KV_VEC);
const float LOWEST = -3.4e38; /* below any score */
const float LOG2_E = 1.44269504088896341;

/* Numbers of 16 bytes, without their scale. */
void unpack_vec(uvec4 raw, out float v[VEC])
{
#if defined(KV_Q8_0)
	[[unroll]] for (int e = 0; e < VEC; e++) v[e] = byte_float(raw[e / 4], e % 4);
#else
	[[unroll]] for (int e = 0; e < VEC; e += 2)
	{
		vec2 pair = unpackHalf2x16(raw[e / 2]);
		v[e] = pair.x;
		v[e + 1] = pair.y;
	}
#endif
}

/* The scale of number e of a row. */
float scale_of(Halves scales, uint row, uint e, uint dim)
{
#if defined(KV_Q8_0)
	return unpackHalf2x16(uint(scales.at[row * kv_scales(dim) + e / KV_BLOCK])).x;
#else
	return 1.0;
#endif
}

/* tanh by its formula: a device may have one of 11 bits. */
float capped(float score)
{
	float cap = ATTENTION_CAP;

	return HAS_CAP ? cap - 2.0 * cap / (exp(2.0 / cap * score) + 1.0) : score;
}

/* The first key that a row at the position sees. */
uint first_key(uint position)
{
	return push.window > 0 && position >= push.window ? position + 1 - push.window : 0;
}

uvec2 page_at(uint slot, uint page)
{
	return Pairs(push.table).at[slot * push.n_slot_pages + page];
}

uvec2 keys_of(uvec2 page, uint dim)
{
	return kv_part_at(page, 2 * push.layer, push.n_head_kv, dim);
}

uvec2 values_of(uvec2 page, uint dim)
{
	return kv_part_at(page, 2 * push.layer + 1, push.n_head_kv, dim);
}

/*
 * The grid is places by blocks of heads: x and y of it, or with ATTENTION_BLOCKS_FIRST y and x.
 * Workgroups begin in the order of x first: so all blocks' first places begin before the others,
 * of which most have nothing to do where keys are few.
 */
#if defined(ATTENTION_BLOCKS_FIRST)
#define ATTENTION_GRID(id) (id).yx
#else
#define ATTENTION_GRID(id) (id).xy
#endif

uint first_place()
{
	return ATTENTION_GRID(gl_WorkGroupID).x;
}

uint n_first_places()
{
	return ATTENTION_GRID(gl_NumWorkGroups).x;
}

uint block_id()
{
	return ATTENTION_GRID(gl_WorkGroupID).y;
}

uint n_blocks()
{
	return ATTENTION_GRID(gl_NumWorkGroups).y;
}

/*
 * Of n_units rows or tiles each has so many parts at most, the fewer the more there are. Place x is
 * one part of one of them, the last unit first: in a prompt that has most keys.
 */
struct place {
	uint unit;
	uint part;
	uint n_most; /* parts of a unit */
};

uint count_most(uint n_units, uint n_slots)
{
	return clamp(n_slots / max(n_units * n_blocks(), 1), 1, push.n_parts);
}

/*
 * Beyond the last place it is a unit all the same: the software driver (Mesa 26.1) reads what the
 * lanes of a subgroup have in common also where none of them gets to.
 */
place find_place(uint x, uint n_units, uint n_most)
{
	uint last = max(n_units, 1) - 1;

	return place(last - min(x / n_most, last), x % n_most, n_most);
}

/* The number of a place's sums: counters and slots have it. */
uint unit_block(place at)
{
	return at.unit * n_blocks() + block_id();
}

uint slot_of(place at, uint part)
{
	return unit_block(at) * at.n_most + part;
}

/* Pages [first, end) of a place's part; none where the keys have no so many parts. */
struct pages {
	uint first;
	uint end;
	uint n_parts;
};

/* Cuts the pages of the keys from `first` to `last`. */
pages cut(place at, uint first, uint last)
{
	uint page = first / ABI_KV_PAGE_TOKENS;
	uint n_pages = last / ABI_KV_PAGE_TOKENS + 1 - page;
	uint n = clamp(n_pages * ABI_KV_PAGE_TOKENS / push.part_keys, 1, at.n_most);
	uint n_part = (n_pages + n - 1) / n;

	return pages(page + min(at.part * n_part, n_pages),
		page + min((at.part + 1) * n_part, n_pages), (n_pages + n_part - 1) / n_part);
}

/*
 * The same where n_most is a power of two and part_keys one of pages: nothing is divided before the
 * keys can be loaded. n_parts is left to count_parts().
 */
pages cut_fast(place at, uint first, uint last)
{
	uint page = first / ABI_KV_PAGE_TOKENS;
	uint n_pages = last / ABI_KV_PAGE_TOKENS + 1 - page;
	uint n_part = max(push.part_keys / ABI_KV_PAGE_TOKENS,
		(n_pages + at.n_most - 1) >> findMSB(at.n_most));

	return pages(page + min(at.part * n_part, n_pages),
		page + min((at.part + 1) * n_part, n_pages), n_part);
}

uint count_parts(uint first, uint last, uint n_part)
{
	uint n_pages = last / ABI_KV_PAGE_TOKENS + 1 - first / ABI_KV_PAGE_TOKENS;

	return (n_pages + n_part - 1) / n_part;
}

/*
 * Partial sums: of each slot and query its highest score (in powers of 2) and the sum of weights,
 * then of each slot the sums [queries][head_dim] f32.
 */
layout(buffer_reference, std430, buffer_reference_align = 8) coherent buffer Partials
{
	vec2 at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Counters
{
	uint at[];
};

shared bool is_last;

/*
 * All invocations: the slot's sums are written. True in all of them when those of all n parts are,
 * which is so in one workgroup; the counter is 0 again then.
 */
bool is_last_part(uint counter, uint n)
{
	memoryBarrierBuffer();
	barrier();
	if (gl_LocalInvocationIndex == 0) {
		Counters counters = Counters(push.counters);
		is_last = atomicAdd(counters.at[counter], 1) == n - 1;
		if (is_last)
			atomicExchange(counters.at[counter], 0);
	}
	barrier();
	memoryBarrierBuffer();
	return is_last;
}

#endif
