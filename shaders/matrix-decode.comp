#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * y[j] = W[j] as f16 (matrix-dtype.glsl), for matrix.comp with so many rows of x that decoding W
 * again for each of their tiles would cost more.
 *
 * Shapes: w [n][k] in a block format, y [n][k] f16.
 * Grid: x: ceil(k / W_ELEMENTS / invocations of a workgroup), y: n. Bindings: none; addresses in
 * struct abi_matrix_decode.
 */
#include "common.glsl"
#include "matrix-dtype.glsl"

layout(push_constant, std430) uniform Push
{
	abi_matrix_decode push;
};

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer QuadsOut
{
	uvec4 at[];
};

void main()
{
	uint unit = gl_GlobalInvocationID.x;
	uvec2 row = address_at(push.w, gl_WorkGroupID.y, push.n_row_bytes);
	QuadsOut y = QuadsOut(address_at(push.y, gl_WorkGroupID.y, 2 * push.k));
	uint raw[W_RAW];
	uvec4 quads[W_QUADS];

	if (unit >= push.k / W_ELEMENTS)
		return;
	w_load(row, unit, raw);
	w_decode(row, unit, raw, quads);
	[[unroll]] for (int q = 0; q < W_QUADS; q++)
		y.at[unit * W_QUADS + q] = quads[q];
}
