/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/sum.h"

#include <string.h>

#include "weightd/sha256.h"

/* The key's stream; see sum_key_init. */
struct sum_stream {
	const uint8_t *secret;
	uint32_t next;
	uint32_t at; /* bytes of `block` that are used up */
	uint8_t block[SHA256_BYTES];
};

static void sum_stream_take(struct sum_stream *s, void *ret, uint32_t n_bytes)
{
	static const uint8_t label[16] = "weightd sum v1";
	uint8_t *out = ret;

	for (uint32_t i = 0; i < n_bytes; i++) {
		if (s->at == SHA256_BYTES) {
			struct sha256 h;
			sha256_init(&h);
			sha256_add(&h, label, sizeof(label));
			sha256_add(&h, s->secret, SUM_SECRET_BYTES);
			sha256_add(&h, &s->next, sizeof(s->next));
			sha256_end(&h, s->block);
			s->next++;
			s->at = 0;
		}
		out[i] = s->block[s->at++];
	}
}

void sum_key_init(struct sum_key *key, const uint8_t secret[SUM_SECRET_BYTES])
{
	struct sum_stream stream = {.secret = secret, .at = SHA256_BYTES};

	memset(key, 0, sizeof(*key));
	memcpy(key->secret, secret, SUM_SECRET_BYTES);
	for (uint32_t l = 0; l < SUM_LANES; l++) {
		sum_stream_take(&stream, key->lanes[l].k, sizeof(key->lanes[l].k));
		sum_stream_take(&stream, key->lanes[l].m, sizeof(key->lanes[l].m));
		key->lanes[l].m[0] |= 1;
	}
	sum_stream_take(&stream, &key->r, sizeof(key->r));
	sum_stream_take(&stream, &key->q, sizeof(key->q));
	key->r = (key->r & ~UINT64_C(7)) | 5;
	key->q |= 1;
}

static inline uint64_t sum_unit(const struct abi_checksum_lane *lane, const uint8_t *unit)
{
	uint32_t w[4];

	memcpy(w, unit, sizeof(w));
	uint32_t a = w[0] + lane->k[0], b = w[1] + lane->k[1];
	uint32_t c = w[2] + lane->k[2], d = w[3] + lane->k[3];
	return (uint64_t)a * b + (uint64_t)c * d;
}

uint64_t sum_piece(const struct sum_key *key, const void *data, uint64_t n_bytes)
{
	const uint8_t *at = data;
	uint64_t h[SUM_LANES] = {0}; /* [SUM_LANES] */
	uint64_t n_units = n_bytes / SUM_UNIT_BYTES;
	uint32_t n_rest = (uint32_t)(n_bytes % SUM_UNIT_BYTES);
	uint64_t sum = 0;

	for (uint64_t first = 0; first < n_units; first += SUM_LANES) {
		uint64_t n = n_units - first < SUM_LANES ? n_units - first : SUM_LANES;
		for (uint64_t l = 0; l < n; l++, at += SUM_UNIT_BYTES)
			h[l] = h[l] * key->r + sum_unit(&key->lanes[l], at);
	}
	if (n_rest > 0) {
		uint8_t unit[SUM_UNIT_BYTES] = {0};
		uint64_t l = n_units % SUM_LANES;
		memcpy(unit, at, n_rest);
		h[l] = h[l] * key->r + sum_unit(&key->lanes[l], unit);
	}
	for (uint32_t l = 0; l < SUM_LANES; l++)
		sum += h[l] * ((uint64_t)key->lanes[l].m[1] << 32 | key->lanes[l].m[0]);
	return sum_finish(key, sum, n_bytes);
}
