#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of x as signed bytes with a scale for each 32, for the integer kernels: q = round(x / d),
 * d = max |x| / 127 of the 32. With NORM of x gain, and the sums of squares from which a reader
 * makes 1 / sqrt(mean(x^2) + eps): that factor is the row's, the bytes are the same without it.
 *
 * Shapes: x [m][k] f32, staging [m] rows as abi.h says.
 * Grid: x: ceil(k / 4 / invocations of a workgroup), y: m. An invocation makes a word of four.
 * Bindings: none; addresses in struct abi_quantize. Rows beyond *m are not made.
 */
#include "common.glsl"
#include "quant.glsl"

layout(push_constant, std430) uniform Push
{
	abi_quantize push;
};

void main()
{
	uint row = gl_WorkGroupID.y;
	uint i = subgroup_x() * SUBGROUP + lane();
	float squares = 0.0;

	/* k is whole eights of lanes. */
	if (i >= push.k / 4 || (GATHER != 0 && row >= Words(push.m).at[0]))
		return;
	uint from = GATHER != 0 ? Words(push.want).at[row] : row;
	Floats x = Floats(address_at(push.x, from, 4 * push.k));
	vec4 v = read_word(x, Floats(push.gain), i, squares);
	/* Rows that are none have a place in x: no load waits for m, only the store does. */
	uint m = Words(push.m).at[0];
	quant q = quant_word(v);
	if (row >= m)
		return;
	put_word(address_at(push.staging, row, ABI_QUANT_ROW_BYTES(push.k)), push.k, i, q, NORM != 0,
		NORM != 0 ? sum_eight(squares) : 0.0);
}
