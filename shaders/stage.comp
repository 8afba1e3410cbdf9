#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i] = x[i] as f16, what is beyond its range as its largest; with NORM
 * x[i] gain / sqrt(mean(x[i]^2) + eps); with GATHER of x[want[i]]. For matrix.comp.
 *
 * Each four numbers are in the order that is asked for.
 *
 * Shapes: x [][k] f32 with rows at multiples of 16 bytes, y [m n_share][k] f16; with BLOCKS
 * [ceil(m n_share / 16)][k / 16][32][8] f16, for matrix-wide.comp.
 * Grid: x: a workgroup for each row of y. Bindings: none; addresses in struct abi_stage.
 */
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#include "common.glsl"

layout(constant_id = ABI_STAGE_SPEC_NORM) const uint NORM = 0;
layout(constant_id = ABI_STAGE_SPEC_GATHER) const uint GATHER = 0;
layout(constant_id = ABI_STAGE_SPEC_BLOCKS) const uint BLOCKS = 0;

layout(push_constant, std430) uniform Push
{
	abi_stage push;
};

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vecs { vec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer PairsOut
{
	uvec2 at[];
};

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer WordsOut
{
	uint at[];
};

const float HALF_MAX = 65504.0;
const uint MAX_SUBGROUPS = LOCAL_SIZE / SUBGROUP;

shared float squares[MAX_SUBGROUPS];

/* Of the whole row; the order depends on the workgroup's size alone. */
float sum_squares(uvec2 row)
{
	float sum = 0.0;

	for (uint i = gl_LocalInvocationID.x; i < push.k / 4; i += LOCAL_SIZE) {
		vec4 v = Vecs(row).at[i];
		[[unroll]] for (int e = 0; e < 4; e++)
			sum = fma(v[e], v[e], sum);
	}
	sum = sum_lanes(sum);
	if (lane() == 0)
		squares[gl_SubgroupID] = sum;
	barrier();
	sum = 0.0;
	for (uint s = 0; s < MAX_SUBGROUPS; s++) {
		precise float next = sum + squares[s];
		sum = next;
	}
	return sum;
}

uint pack(float a, float b)
{
	vec2 v = clamp(vec2(a, b), -HALF_MAX, HALF_MAX);

	return packFloat2x16(f16vec2(v));
}

/*
 * Numbers 4 q to 4 q + 3 of row i in blocks of 16 rows by 16 of k: quad 4 g + t of a block has numbers
 * 4 t and 4 t + 2 of row g, those of row g + 8, and then the two between of each.
 */
void put_in_block(uint i, uint q, vec4 v)
{
	uvec2 block = address_at(push.y, i / 16 * (push.k / 16) + q / 4, 512);
	uint at = 4 * (i % 8 * 4 + q % 4) + i / 8 % 2;

	WordsOut(block).at[at] = pack(v.x, v.z);
	WordsOut(block).at[at + 2] = pack(v.y, v.w);
}

void main()
{
	uint i = gl_WorkGroupID.x;
	float scale = 1.0;

	if (i >= Words(push.m).at[0] * push.n_share)
		return;
	uvec2 x = address_at(push.x, GATHER != 0 ? Words(push.want).at[i] : i, 4 * push.k);
	uvec2 y = address_at(push.y, i, 2 * push.k);
	if (NORM != 0)
		scale = norm_scale(sum_squares(x), push.k, push.eps);
	for (uint q = gl_LocalInvocationID.x; q < push.k / 4; q += LOCAL_SIZE) {
		vec4 v = Vecs(x).at[q];
		if (NORM != 0)
			v *= scale * Vecs(push.gain).at[q];
		if (push.order == ABI_STAGE_SWAPPED)
			v = v.xzyw;
		if (BLOCKS != 0)
			put_in_block(i, q, v);
		else
			PairsOut(y).at[q] = uvec2(pack(v.x, v.y), pack(v.z, v.w));
	}
}
