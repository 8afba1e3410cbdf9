/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/sum.h"

#include <string.h>

#include "weightd/sha256.h"

void sum_key_init(struct sum_key *key, const uint8_t secret[SUM_SECRET_BYTES])
{
	static const uint8_t label[16] = "weightd sum v1";
	uint8_t block[SHA256_BYTES];
	uint32_t next = 0;
	struct sha256 h;

	memcpy(key->secret, secret, SUM_SECRET_BYTES);
	for (uint64_t at = 0; at < sizeof(key->words) + SUM_UNIT_BYTES; next++) {
		sha256_init(&h);
		sha256_add(&h, label, sizeof(label));
		sha256_add(&h, secret, SUM_SECRET_BYTES);
		sha256_add(&h, &next, sizeof(next));
		sha256_end(&h, block);
		for (uint32_t i = 0; i < SHA256_BYTES; i += SUM_UNIT_BYTES, at += SUM_UNIT_BYTES) {
			uint64_t unit = at / SUM_UNIT_BYTES;
			if (unit == 0)
				memcpy(&key->q, block, sizeof(key->q));
			else if (unit <= SUM_UNITS)
				memcpy(key->words[unit - 1], block + i, SUM_UNIT_BYTES);
		}
	}
	key->q |= 1;
}

static inline uint64_t sum_unit(const uint32_t k[4], const uint8_t *unit)
{
	uint32_t w[4];

	memcpy(w, unit, sizeof(w));
	uint32_t a = w[0] + k[0], b = w[1] + k[1], c = w[2] + k[2], d = w[3] + k[3];
	return (uint64_t)a * b + (uint64_t)c * d;
}

uint64_t sum_piece(const struct sum_key *key, const void *data, uint64_t n_bytes)
{
	const uint8_t *at = data;
	uint64_t n_units = n_bytes / SUM_UNIT_BYTES;
	uint64_t n_rest = n_bytes % SUM_UNIT_BYTES;
	uint64_t sum = 0;

	for (uint64_t u = 0; u < n_units; u++, at += SUM_UNIT_BYTES)
		sum += sum_unit(key->words[u], at);
	if (n_rest > 0) {
		uint8_t unit[SUM_UNIT_BYTES] = {0};
		memcpy(unit, at, n_rest);
		sum += sum_unit(key->words[n_units], unit);
	}
	return sum_finish(key, sum, n_bytes);
}
