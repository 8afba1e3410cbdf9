/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_DIGEST_H
#define PROTO_UTIL_DIGEST_H

/*
 * 256 bits that differ when bytes do: against torn writes and flipped bits, at the speed of memory.
 * Not against somebody who makes bytes on purpose: there is no key, and nothing cryptographic.
 *
 * Four lanes take eight bytes each of every 32: lane = rotate((lane ^ word) * odd number). Each
 * step can be undone, so a word that changed leaves its lane changed to the end; at the end the
 * lanes, and the length, are mixed into each other. Any thread; little-endian machines.
 */
#include <stdint.h>

enum { DIGEST_BYTES = 32 };

struct digest {
	uint64_t lanes[4];
	uint64_t n_bytes;
	uint8_t rest[DIGEST_BYTES]; /* what has not filled 32 bytes yet */
};

void digest_init(struct digest *d);

/* However the bytes are divided among calls, the result is the same. */
void digest_add(struct digest *d, const void *data, uint64_t n_bytes);

/* Of what was added so far. */
void digest_get(const struct digest *d, uint8_t ret[DIGEST_BYTES]);

#endif
