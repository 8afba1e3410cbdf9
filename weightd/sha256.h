/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_SHA256_H
#define WEIGHTD_SHA256_H

/* SHA-256 (FIPS 180-4, 6.2). For keys and identities, some megabytes at most. Any thread. */
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK_BYTES = 64 };

struct sha256 {
	uint32_t state[8];
	uint64_t n_bytes; /* so far */
	uint8_t block[SHA256_BLOCK_BYTES];
};

void sha256_init(struct sha256 *h);
void sha256_add(struct sha256 *h, const void *data, uint64_t n_bytes);

/* Ends the message; h is to be made anew. */
void sha256_end(struct sha256 *h, uint8_t ret_digest[SHA256_BYTES]);

#endif
