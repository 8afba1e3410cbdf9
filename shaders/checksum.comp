#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of pieces of weights, as weightd/sum.h defines them. A piece is units u of 16 bytes,
 * words w0 to w3, zeros behind its end; unit u is of lane l = u % LANES; modulo 2^64, and (w + k)
 * modulo 2^32:
 *	nh(u) = (w0 + k0) * (w1 + k1) + (w2 + k2) * (w3 + k3)
 *	h(l)  = h(l) * r + nh(u)
 *	sums  = sum of m(l) * h(l), over the lanes of one subgroup; the host adds those of a piece
 * nh is NH of Black et al., UMAC: Fast and Secure Message Authentication, CRYPTO 1999.
 *
 * Shapes: pieces [n], lanes [LANES], sums [n][LANES / SUBGROUP] of 64 bits.
 * Grid: x: LANES / SUBGROUP subgroups a piece, n pieces.
 * Bindings: none; addresses in struct abi_checksum.
 */
#include "common.glsl"
#extension GL_EXT_shader_8bit_storage : require

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Units { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 1) readonly buffer Bytes
{
	uint8_t at[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Pieces
{
	abi_checksum_piece at[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Lanes
{
	abi_checksum_lane at[];
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer SumsOut { uvec2 at[]; };

layout(push_constant, std430) uniform Push
{
	abi_checksum push;
};

const uint LANES = ABI_CHECKSUM_LANES;
const uint UNIT = ABI_CHECKSUM_UNIT_BYTES;
const uint LOADS = 4; /* in flight */

uvec2 add64(uvec2 a, uvec2 b)
{
	uint carry;
	uint low = uaddCarry(a.x, b.x, carry);

	return uvec2(low, a.y + b.y + carry);
}

uvec2 mul32(uint a, uint b)
{
	uvec2 v;

	umulExtended(a, b, v.y, v.x);
	return v;
}

uvec2 mul64(uvec2 a, uvec2 b)
{
	uvec2 v = mul32(a.x, b.x);

	v.y += a.x * b.y + a.y * b.x;
	return v;
}

/* One more unit of a lane. */
uvec2 fold(uvec2 h, uvec4 w, uvec4 k)
{
	w += k;
	return add64(mul64(h, uvec2(push.r[0], push.r[1])),
		add64(mul32(w.x, w.y), mul32(w.z, w.w)));
}

/* n bytes of unit u, whatever its address: no byte behind them is looked at. */
uvec4 load_bytes(uvec2 data, uint u, uint n)
{
	Bytes bytes = Bytes(address_at(data, u, UNIT));
	uint w[4] = {0, 0, 0, 0};

	[[unroll]] for (uint i = 0; i < UNIT; i++)
		if (i < n)
			w[i / 4] |= uint(bytes.at[i]) << (8 * (i % 4));
	return uvec4(w[0], w[1], w[2], w[3]);
}

uvec2 sum_lane(abi_checksum_piece piece, uint l, uvec4 k)
{
	uint n_units = piece.n_bytes / UNIT; /* whole ones */
	uint n_rest = piece.n_bytes % UNIT;
	uvec2 h = uvec2(0);

	if (piece.data.x % UNIT == 0) {
		for (uint u = l; u < n_units; u += LOADS * LANES) {
			uvec4 unit[LOADS];

			[[unroll]] for (uint i = 0; i < LOADS; i++)
				unit[i] = Units(piece.data).at[min(u + i * LANES, n_units - 1)];
			[[unroll]] for (uint i = 0; i < LOADS; i++)
				if (u + i * LANES < n_units)
					h = fold(h, unit[i], k);
		}
	} else {
		for (uint u = l; u < n_units; u += LANES)
			h = fold(h, load_bytes(piece.data, u, UNIT), k);
	}
	if (n_rest > 0 && n_units % LANES == l)
		h = fold(h, load_bytes(piece.data, n_units, n_rest), k);
	return h;
}

void main()
{
	uint n_parts = LANES / SUBGROUP;
	uint i = subgroup_x() / n_parts;
	uint l = subgroup_x() % n_parts * SUBGROUP + lane();

	if (i >= push.n)
		return;
	abi_checksum_lane key = Lanes(push.lanes).at[l];
	uvec2 h = sum_lane(Pieces(push.pieces).at[i], l,
		uvec4(key.k[0], key.k[1], key.k[2], key.k[3]));
	uvec2 sum = mul64(h, uvec2(key.m[0], key.m[1]));

	[[unroll]] for (int level = 1; level <= MAX_LEVELS; level++) {
		uint d = SUBGROUP >> level;
		if (d > 0)
			sum = add64(sum, subgroupShuffleXor(sum, d));
	}
	if (lane() == 0)
		SumsOut(push.sums).at[subgroup_x()] = sum;
}
