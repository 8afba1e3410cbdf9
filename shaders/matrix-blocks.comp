#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * W as f16 in blocks of 16 rows by 16 of k, for matrix-wide.comp with so many rows of x that decoding
 * W again for each of their tiles would cost more. Quad 4 g + t of a block has numbers 4 t to 4 t + 3
 * of row g and then of row g + 8, as matrix-unit.glsl has them.
 *
 * Shapes: w [n][k] in a block format, y [ceil(n / 16)][k / 16][32] quads of eight f16.
 * Grid: x: 32 invocations, which make four blocks, for each 64 of k; y: ceil(n / 16). A workgroup is a
 * multiple of them. Bindings: none; addresses in struct abi_matrix_decode. Rows behind the last are
 * the last one again.
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

/* Lanes of four neighbours change quads with each other: lane i gets quad i of each, in their order. */
void exchange(inout uvec4 quads[4])
{
	uint i = gl_LocalInvocationID.x;

	[[unroll]] for (int step = 1; step < 4; step *= 2) {
		bool is_upper = (i & step) != 0;
		[[unroll]] for (int q = 0; q < 4; q++) {
			if ((q & step) != 0)
				continue;
			uvec4 theirs = subgroupShuffleXor(is_upper ? quads[q] : quads[q + step], step);
			if (is_upper)
				quads[q] = theirs;
			else
				quads[q + step] = theirs;
		}
	}
}

/* The pieces of a group of 16 of row j. */
void decode_row(uint j, uint group, out uvec2 ret_pieces[4])
{
	const int n_units = 16 / U_ELEMENTS;
	uvec2 row = address_at(push.w, min(j, push.n - 1), push.n_row_bytes);

	[[unroll]] for (int u = 0; u < n_units; u++) {
		uint raw[U_RAW];
		uvec2 pieces[U_PIECES];
		unit_load(row, 0, group * n_units + u, raw);
		unit_decode(row, 0, group * n_units + u, raw, pieces);
		[[unroll]] for (int q = 0; q < U_PIECES; q++)
			ret_pieces[u * U_PIECES + q] = pieces[q];
	}
}

void main()
{
	uint i = gl_LocalInvocationID.x, n_groups = push.k / 16;
	uint first = (gl_WorkGroupID.x * (LOCAL_SIZE / 32) + i / 32) * 4;
	uint j = gl_WorkGroupID.y * 16 + i / 4 % 8;
	uvec2 a[4], b[4];
	uvec4 quads[4];

	unit_magic = 0x64006400u + (push.k >> 31);
	decode_row(j, min(first + i % 4, n_groups - 1), a);
	decode_row(j + 8, min(first + i % 4, n_groups - 1), b);
	[[unroll]] for (int q = 0; q < 4; q++)
		quads[q] = uvec4(a[q], b[q]);
	exchange(quads);
	QuadsOut y = QuadsOut(address_at(push.y, gl_WorkGroupID.y, 32 * push.k));
	[[unroll]] for (int q = 0; q < 4; q++)
		if (first + q < n_groups)
			y.at[(first + q) * 32 + i % 32] = quads[q];
}
