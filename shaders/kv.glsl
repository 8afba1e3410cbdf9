/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SHADERS_KV_GLSL
#define SHADERS_KV_GLSL

/*
 * Keys and values in a page, as workerd/kv-layout.h has them: rows of one head of one token, heads
 * outside of tokens, then the scales of the rows. KV_F16 or KV_Q8_0 is defined. A part is the keys
 * or the values of a layer.
 */
#include "common.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads
{
	uvec4 at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) buffer WordsOut { uint at[]; };

const uint KV_BLOCK = 32; /* numbers that have one scale */
#if defined(KV_Q8_0)
const uint KV_BYTES = 1; /* of a number */
#else
const uint KV_BYTES = 2;
#endif
const uint KV_VEC = 16 / KV_BYTES; /* numbers of one load */

uint kv_row_bytes(uint dim)
{
	return (dim * KV_BYTES + 15) & ~15u;
}

uint kv_scales(uint dim)
{
#if defined(KV_Q8_0)
	return (dim + KV_BLOCK - 1) / KV_BLOCK;
#else
	return 0;
#endif
}

/* Where part 2 * layer (keys) or 2 * layer + 1 (values) begins. */
uvec2 kv_part_at(uvec2 page, uint part, uint n_head_kv, uint dim)
{
	uint n_row = kv_row_bytes(dim) + 2 * kv_scales(dim);

	return address_at(page, part, ABI_KV_PAGE_TOKENS * n_head_kv * n_row);
}

/* Where its scales begin. */
uvec2 kv_scales_at(uvec2 part_at, uint n_head_kv, uint dim)
{
	return address_at(part_at, ABI_KV_PAGE_TOKENS * n_head_kv, kv_row_bytes(dim));
}

/* The number of a row in its part. */
uint kv_row(uint head, uint position)
{
	return head * ABI_KV_PAGE_TOKENS + position % ABI_KV_PAGE_TOKENS;
}

#endif
