/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_SUM_H
#define WEIGHTD_SUM_H

/*
 * The checksum of weights: one 64-bit value a piece of SUM_PIECE_BYTES, counted from the tensor's
 * start; the last piece is short. It depends on the bytes and the key alone, not on where they are
 * nor on who sums them. shaders/checksum.comp computes the same.
 *
 * A piece is units u of 16 bytes, little-endian words w0 to w3; bytes behind the end are zeros.
 * Unit u is of lane l = u % SUM_LANES, which has key words k0 to k3 and an odd m. r and q are of
 *the key too, q odd and r = 5 mod 8. With + and * modulo 2^64, and (w + k) modulo 2^32:
 *
 *	nh(u) = (w0 + k0) * (w1 + k1) + (w2 + k2) * (w3 + k3)
 *	h(l)  = h(l) * r + nh(u), from 0, for the units of lane l in order
 *	sum   = m(0) * h(0) + m(1) * h(1) + ... + n_bytes * q
 *
 * nh is NH of Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC: Fast and Secure Message
 * Authentication, CRYPTO 1999, with 32-bit words: without the key, two units that differ have equal
 * nh with probability 2^-32 at most. m and r being odd, a difference of one unit stays one. A lane
 * uses its words again for each of its units, so that they stay in registers: who changes the top
 * bits of a whole lane may hope for 2^-23. Every trial changes weights and is found with the
 * complement of that, so the key has to be secret, and so have the sums: never on the wire.
 */
#include <stdint.h>

#include "shaders/abi.h"

enum {
	SUM_PIECE_BYTES = 1 << 20,
	SUM_UNIT_BYTES = ABI_CHECKSUM_UNIT_BYTES,
	SUM_LANES = ABI_CHECKSUM_LANES,
	SUM_SECRET_BYTES = 32,
};

/* Constant once it is made; any thread reads it. */
struct sum_key {
	uint8_t secret[SUM_SECRET_BYTES];
	struct abi_checksum_lane lanes[SUM_LANES];
	uint64_t r;
	uint64_t q;
};

/* A piece, somewhere in a memory or a file. */
struct sum_range {
	uint64_t offset;
	uint32_t n_bytes; /* 1 to SUM_PIECE_BYTES */
};

/*
 * The stream SHA-256(label, secret, i) for i = 0, 1, ... (32-bit, little-endian; label is the 16
 * bytes of "weightd sum v1" and two zeros), taken little-endian: k0 to k3 and m of lane 0, of lane
 * 1, ..., then r and q. m and q get bit 0 set, the low three bits of r become 5: so r^d - 1 has as
 * few factors of 2 as an odd r can give.
 */
void sum_key_init(struct sum_key *key, const uint8_t secret[SUM_SECRET_BYTES]);

/* n_bytes at most SUM_PIECE_BYTES; data needs no alignment. Pure. */
uint64_t sum_piece(const struct sum_key *key, const void *data, uint64_t n_bytes);

/* What is left to do once m(l) * h(l) of all lanes are added up. */
static inline uint64_t sum_finish(const struct sum_key *key, uint64_t lanes, uint64_t n_bytes)
{
	return lanes + n_bytes * key->q;
}

static inline uint64_t sum_count_pieces(uint64_t n_bytes)
{
	return n_bytes / SUM_PIECE_BYTES + (n_bytes % SUM_PIECE_BYTES ? 1 : 0);
}

/* Of piece i of a tensor; i is below its count. */
static inline uint32_t sum_get_piece_bytes(uint64_t n_bytes, uint64_t i)
{
	uint64_t n = n_bytes - i * SUM_PIECE_BYTES;

	return (uint32_t)(n < SUM_PIECE_BYTES ? n : SUM_PIECE_BYTES);
}

#endif
