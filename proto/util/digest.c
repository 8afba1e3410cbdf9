/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/util/digest.h"

#include <string.h>

enum { ROTATION = 29, N_FINAL_ROUNDS = 4 };

/* Odd, with as many bits set as not: the fractional parts of the roots of 2, 3, 5 and 7. */
static const uint64_t factors[4] = {
	0x6a09e667f3bcc909ull,
	0xbb67ae8584caa73bull,
	0x3c6ef372fe94f82bull,
	0xa54ff53a5f1d36f1ull,
};

static uint64_t digest_step(uint64_t lane, uint64_t word, uint64_t factor)
{
	lane = (lane ^ word) * factor;
	return lane << ROTATION | lane >> (64 - ROTATION);
}

static void digest_add_block(uint64_t lanes[4], const uint8_t block[DIGEST_BYTES])
{
	uint64_t words[4];

	memcpy(words, block, sizeof(words));
	for (unsigned i = 0; i < 4; i++)
		lanes[i] = digest_step(lanes[i], words[i], factors[i]);
}

void digest_init(struct digest *d)
{
	*d = (struct digest){.lanes = {factors[3], factors[2], factors[1], factors[0]}};
}

void digest_add(struct digest *d, const void *data, uint64_t n_bytes)
{
	const uint8_t *at = data;
	uint64_t n_rest = d->n_bytes % DIGEST_BYTES;

	d->n_bytes += n_bytes;
	if (n_rest) {
		uint64_t n = DIGEST_BYTES - n_rest;

		if (n > n_bytes)
			n = n_bytes;
		memcpy(d->rest + n_rest, at, n);
		at += n;
		n_bytes -= n;
		if (n_rest + n < DIGEST_BYTES)
			return;
		digest_add_block(d->lanes, d->rest);
	}
	for (; n_bytes >= DIGEST_BYTES; at += DIGEST_BYTES, n_bytes -= DIGEST_BYTES)
		digest_add_block(d->lanes, at);
	if (n_bytes)
		memcpy(d->rest, at, n_bytes);
}

void digest_get(const struct digest *d, uint8_t ret[DIGEST_BYTES])
{
	uint64_t lanes[4];
	uint8_t block[DIGEST_BYTES] = {0};

	memcpy(lanes, d->lanes, sizeof(lanes));
	if (d->n_bytes % DIGEST_BYTES)
		memcpy(block, d->rest, d->n_bytes % DIGEST_BYTES);
	digest_add_block(lanes, block);
	/* The zeros behind the end are told from zeros by the length. */
	lanes[0] = digest_step(lanes[0], d->n_bytes, factors[0]);
	for (unsigned i = 0; i < 4 * N_FINAL_ROUNDS; i++)
		lanes[(i + 1) % 4] =
			digest_step(lanes[(i + 1) % 4], lanes[i % 4], factors[(i + 1) % 4]);
	memcpy(ret, lanes, DIGEST_BYTES);
}
