#version 460
/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of pieces of weights, as weightd/sum.h defines them. A piece is units u of 16 bytes,
 * words w0 to w3, zeros behind its end; each unit has key words k0 to k3, the same in all pieces;
 * modulo 2^64, and (w + k) modulo 2^32:
 *	nh(u) = (w0 + k0) * (w1 + k1) + (w2 + k2) * (w3 + k3)
 *	sums  = sum of nh(u) over the units of a part; the host adds those of a piece
 * NH is of Black et al., UMAC: Fast and Secure Message Authentication, CRYPTO 1999.
 *
 * Shapes: pieces [n], keys [SUM_UNITS] of 16 bytes, sums [n][ABI_CHECKSUM_SUMS] of 64 bits.
 * Grid: x: ABI_CHECKSUM_PARTS subgroups for every ABI_CHECKSUM_GROUP pieces.
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
layout(buffer_reference, std430, buffer_reference_align = 8) buffer SumsOut { uvec2 at[]; };

layout(push_constant, std430) uniform Push
{
	abi_checksum push;
};

const uint GROUP = ABI_CHECKSUM_GROUP;
const uint PARTS = ABI_CHECKSUM_PARTS;
const uint UNIT = ABI_CHECKSUM_UNIT_BYTES;

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

uvec2 nh(uvec4 w, uvec4 k)
{
	w += k;
	return add64(mul32(w.x, w.y), mul32(w.z, w.w));
}

/* n bytes of unit u; no byte behind them is looked at. */
uvec4 load_rest(uvec2 data, uint u, uint n)
{
	Bytes bytes = Bytes(address_at(data, u, UNIT));
	uint w[4] = {0, 0, 0, 0};

	[[unroll]] for (uint i = 0; i < UNIT; i++)
		if (i < n)
			w[i / 4] |= uint(bytes.at[i]) << (8 * (i % 4));
	return uvec4(w[0], w[1], w[2], w[3]);
}

/* A piece's bytes behind its last whole unit, by one lane. */
void sum_rest(uint i)
{
	abi_checksum_piece piece = Pieces(push.pieces).at[i];
	uint u = piece.n_bytes / UNIT, n = piece.n_bytes % UNIT;
	uvec2 sum = uvec2(0);

	if (n > 0)
		sum = nh(load_rest(piece.data, u, n), Units(push.keys).at[u]);
	SumsOut(push.sums).at[i * ABI_CHECKSUM_SUMS + PARTS] = sum;
}

void main()
{
	uint first = subgroup_x() / PARTS * GROUP;
	uint part = subgroup_x() % PARTS;
	uvec2 data[GROUP];
	uint n_units[GROUP]; /* whole ones */
	uvec2 sum[GROUP];
	uint most = 0;

	if (first >= push.n)
		return;
	[[unroll]] for (uint i = 0; i < GROUP; i++) {
		abi_checksum_piece piece = Pieces(push.pieces).at[min(first + i, push.n - 1)];
		n_units[i] = first + i < push.n ? piece.n_bytes / UNIT : 0;
		/* Where there is none, something else is read that may be. */
		data[i] = n_units[i] > 0 ? piece.data : push.keys;
		sum[i] = uvec2(0);
		most = max(most, n_units[i]);
	}
	for (uint u = part * SUBGROUP + lane(); u < most; u += PARTS * SUBGROUP) {
		uvec4 k = Units(push.keys).at[u];
		uvec4 w[GROUP];

		[[unroll]] for (uint i = 0; i < GROUP; i++)
			w[i] = Units(data[i]).at[min(u, max(n_units[i], 1) - 1)];
		[[unroll]] for (uint i = 0; i < GROUP; i++)
			if (u < n_units[i])
				sum[i] = add64(sum[i], nh(w[i], k));
	}
	[[unroll]] for (uint i = 0; i < GROUP; i++) {
		[[unroll]] for (int level = 1; level <= MAX_LEVELS; level++) {
			uint d = SUBGROUP >> level;
			if (d > 0)
				sum[i] = add64(sum[i], subgroupShuffleXor(sum[i], d));
		}
		if (lane() == 0 && first + i < push.n)
			SumsOut(push.sums).at[(first + i) * ABI_CHECKSUM_SUMS + part] = sum[i];
	}
	if (part == 0 && lane() < GROUP && first + lane() < push.n)
		sum_rest(first + lane());
}
