/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/sha256.h"

#include <string.h>

/* FIPS 180-4, 4.2.2: the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_words[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b,
	0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
	0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6,
	0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d,
	0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
	0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585,
	0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
	0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa,
	0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void sha256_init(struct sha256 *h)
{
	/* 5.3.3 */
	static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
		0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

	memcpy(h->state, first, sizeof(first));
	h->n_bytes = 0;
}

static uint32_t sha256_rotate(uint32_t v, int n)
{
	return v >> n | v << (32 - n);
}

static void sha256_take_block(struct sha256 *h, const uint8_t *block)
{
	uint32_t w[64], s[8];

	for (int i = 0; i < 16; i++) {
		memcpy(&w[i], block + 4 * i, 4);
		w[i] = __builtin_bswap32(w[i]);
	}
	for (int i = 16; i < 64; i++) {
		uint32_t a = w[i - 15], b = w[i - 2];
		w[i] = w[i - 16] + w[i - 7] +
		       (sha256_rotate(a, 7) ^ sha256_rotate(a, 18) ^ a >> 3) +
		       (sha256_rotate(b, 17) ^ sha256_rotate(b, 19) ^ b >> 10);
	}
	memcpy(s, h->state, sizeof(s));
	for (int i = 0; i < 64; i++) {
		uint32_t a = s[0], e = s[4];
		uint32_t t1 = s[7] +
			      (sha256_rotate(e, 6) ^ sha256_rotate(e, 11) ^ sha256_rotate(e, 25)) +
			      ((e & s[5]) ^ (~e & s[6])) + round_words[i] + w[i];
		uint32_t t2 = (sha256_rotate(a, 2) ^ sha256_rotate(a, 13) ^ sha256_rotate(a, 22)) +
			      ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
		memmove(s + 1, s, 7 * sizeof(s[0]));
		s[4] += t1;
		s[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++)
		h->state[i] += s[i];
}

void sha256_add(struct sha256 *h, const void *data, uint64_t n_bytes)
{
	const uint8_t *at = data;

	while (n_bytes > 0) {
		uint64_t used = h->n_bytes % SHA256_BLOCK_BYTES;
		uint64_t n = SHA256_BLOCK_BYTES - used;
		if (n > n_bytes)
			n = n_bytes;
		memcpy(h->block + used, at, n);
		h->n_bytes += n;
		if (used + n == SHA256_BLOCK_BYTES)
			sha256_take_block(h, h->block);
		at += n;
		n_bytes -= n;
	}
}

void sha256_end(struct sha256 *h, uint8_t ret_digest[SHA256_BYTES])
{
	static const uint8_t padding[SHA256_BLOCK_BYTES] = {0x80};
	uint64_t n_bits = __builtin_bswap64(h->n_bytes * 8);
	uint64_t used = h->n_bytes % SHA256_BLOCK_BYTES;

	/* To 8 bytes before the end of this block, or of the next. */
	sha256_add(h, padding, (used < 56 ? 56 : 56 + SHA256_BLOCK_BYTES) - used);
	sha256_add(h, &n_bits, 8);
	for (int i = 0; i < 8; i++) {
		uint32_t word = __builtin_bswap32(h->state[i]);
		memcpy(ret_digest + 4 * i, &word, 4);
	}
}
