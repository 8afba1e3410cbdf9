#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * W as f16 in blocks of 16 rows by 16 of k, for matrix-wide.comp with so many rows of x that decoding
 * W again for each of their tiles would cost more. Quad 4 g + t of a block has numbers 4 t to 4 t + 3
 * of row g and then of row g + 8, as matrix-unit.glsl has them.
 *
 * Shapes: w [n][k] in a block format, y [ceil(n / 16)][k / 16][32] quads of eight f16.
 * Grid: x: ceil(k / U_ELEMENTS / invocations of a workgroup), y: ceil(n / 16) times 8.
 * Bindings: none; addresses in struct abi_matrix_decode. Rows behind the last are the last one again.
 */
#include "common.glsl"

const bool UNITS_SHARE = false;
#include "matrix-unit.glsl"

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
	uint unit = gl_GlobalInvocationID.x, block = gl_WorkGroupID.y / 8, g = gl_WorkGroupID.y % 8;
	uint raw[2][U_RAW];
	uvec2 pieces[2][U_PIECES];

	if (unit >= push.k / U_ELEMENTS)
		return;
	unit_magic = 0x64006400u + (push.k >> 31);
	[[unroll]] for (int h = 0; h < 2; h++) {
		uint j = min(16 * block + g + 8 * h, push.n - 1);
		uvec2 row = address_at(push.w, j, push.n_row_bytes);
		unit_load(row, 0, unit, raw[h]);
		unit_decode(row, 0, unit, raw[h], pieces[h]);
	}
	QuadsOut y = QuadsOut(address_at(push.y, block, 32 * push.k));
	uint at = unit * U_ELEMENTS / 16 * 32 + 4 * g + unit * U_ELEMENTS / 4 % 4;
	[[unroll]] for (int q = 0; q < U_PIECES; q++)
		y.at[at + q] = uvec4(pieces[0][q], pieces[1][q]);
}
