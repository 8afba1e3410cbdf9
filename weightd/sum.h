/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_SUM_H
#define WEIGHTD_SUM_H

/*
 * The checksum of weights: one 64-bit value a piece of SUM_PIECE_BYTES, counted from the tensor's
 * start; the last piece is short. It depends on the bytes and the key alone, not on where they are
 * nor on who sums them. shaders/checksum.comp computes the same.
 *
 * A piece is units u of 16 bytes, little-endian words w0 to w3; bytes behind its end are zeros.
 * Each unit of a piece has key words k0 to k3 of its own, the same ones in all pieces; q is of the
 * key too, and odd. With + and * modulo 2^64, and (w + k) modulo 2^32:
 *
 *	nh(u) = (w0 + k0) * (w1 + k1) + (w2 + k2) * (w3 + k3)
 *	sum   = nh(0) + nh(1) + ... + n_bytes * q
 *
 * That is NH of Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC: Fast and Secure Message
 * Authentication, CRYPTO 1999, with words of 32 bits: two pieces of one length that differ, in
 * whatever way somebody without the key has chosen, have one sum with probability 2^-32 at most.
 * With sums of known bytes the key could be solved for: both stay in weightd, never on the wire.
 */
#include <stdint.h>

#include "shaders/abi.h"

enum {
	SUM_PIECE_BYTES = 1 << 20,
	SUM_UNIT_BYTES = ABI_CHECKSUM_UNIT_BYTES,
	SUM_UNITS = SUM_PIECE_BYTES / SUM_UNIT_BYTES,
	SUM_SECRET_BYTES = 32,
};

/* Constant once it is made; any thread reads it. A mebibyte: not for a stack. */
struct sum_key {
	uint8_t secret[SUM_SECRET_BYTES];
	uint64_t q;
	uint32_t words[SUM_UNITS][4];
};

/* A piece, somewhere in a memory or a file. */
struct sum_range {
	uint64_t offset;
	uint32_t n_bytes; /* 1 to SUM_PIECE_BYTES */
};

/*
 * The stream SHA-256(label, secret, i) for i = 0, 1, ... (32-bit, little-endian; label is the 16
 * bytes of "weightd sum v1" and two zeros), taken little-endian: q, of which bit 0 is set, eight
 * bytes that are dropped, then k0 to k3 of unit 0, of unit 1, ... Takes some milliseconds.
 */
void sum_key_init(struct sum_key *key, const uint8_t secret[SUM_SECRET_BYTES]);

/* n_bytes at most SUM_PIECE_BYTES; data needs no alignment. Pure. */
uint64_t sum_piece(const struct sum_key *key, const void *data, uint64_t n_bytes);

/* What is left to do once nh of all units are added up. */
static inline uint64_t sum_finish(const struct sum_key *key, uint64_t units, uint64_t n_bytes)
{
	return units + n_bytes * key->q;
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
