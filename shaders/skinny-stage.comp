#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[i] = x[i] as f16 in the order in which lanes of skinny.comp load it (abi.h), what is beyond its
 * range as its largest; with NORM x[i] gain / sqrt(mean(x[i]^2) + eps); with GATHER of x[want[i]].
 * Sets the counters of that kernel to 0.
 *
 * Shapes: x [][k] f32 with rows at multiples of 16 bytes, y see ABI_SKINNY_ORDER_*, k a multiple of
 * ABI_SKINNY_CHUNK. Grid: x: a workgroup for each row; y: they share its units of eight numbers.
 * Bindings: none; addresses in struct abi_skinny_stage.
 */
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#include "common.glsl"

layout(constant_id = ABI_SKINNY_STAGE_SPEC_NORM) const uint NORM = 0;
layout(constant_id = ABI_SKINNY_STAGE_SPEC_GATHER) const uint GATHER = 0;
layout(constant_id = ABI_SKINNY_STAGE_SPEC_ORDER) const uint ORDER = ABI_SKINNY_ORDER_PLAIN;
layout(constant_id = ABI_SKINNY_STAGE_SPEC_LANES) const uint LANES = 4;

layout(push_constant, std430) uniform Push
{
	abi_skinny_stage push;
};

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vecs { vec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer QuadsOut
{
	uvec4 at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer WordsOut
{
	uint at[];
};

#include "skinny-order.glsl"

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

void main()
{
	uint i = gl_WorkGroupID.x;
	uint n_all = LOCAL_SIZE * gl_NumWorkGroups.y;
	uint first = gl_WorkGroupID.y * LOCAL_SIZE + gl_LocalInvocationID.x;
	float scale = 1.0;

	if (i == 0)
		for (uint c = first; c < push.n_counters; c += n_all)
			WordsOut(push.counters).at[c] = 0;
	if (i >= Words(push.m).at[0])
		return;
	uvec2 x = address_at(push.x, GATHER != 0 ? Words(push.want).at[i] : i, 4 * push.k);
	if (NORM != 0)
		scale = norm_scale(sum_squares(x), push.k, push.eps);
	for (uint u = first; u < push.k / 8; u += n_all) {
		vec4 a = Vecs(x).at[2 * u], b = Vecs(x).at[2 * u + 1];
		if (NORM != 0) {
			a *= scale * Vecs(push.gain).at[2 * u];
			b *= scale * Vecs(push.gain).at[2 * u + 1];
		}
		QuadsOut(push.y).at[order_place(i, u, push.n_sets)] =
			order_unit(a, b);
	}
}
