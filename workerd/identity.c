/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/identity.h"

#include <string.h>

#include "proto/manifest.h"

static void identity_add_string(
	struct digest *d, const struct manifest *m, struct manifest_string s)
{
	digest_add(d, &s.n_bytes, sizeof(s.n_bytes));
	digest_add(d, manifest_get_string(m, s), s.n_bytes);
}

void identity_get_tokens(const struct manifest *m, uint8_t ret[DIGEST_BYTES])
{
	struct digest d;

	digest_init(&d);
	digest_add(&d, &m->n_vocab, sizeof(m->n_vocab));
	for (uint32_t i = 0; i < m->n_vocab; i++) {
		const struct manifest_token *t = &m->tokens[i];
		uint32_t type = t->type;

		digest_add(&d, &type, sizeof(type));
		identity_add_string(&d, m, t->bytes);
	}
	digest_get(&d, ret);
}

/* Where a tensor lies is not what it is, and they may be listed in any order. */
static void identity_mix_tensor(
	const struct manifest *m, const struct manifest_tensor *t, uint8_t sum[DIGEST_BYTES])
{
	uint8_t own[DIGEST_BYTES];
	struct digest d;

	digest_init(&d);
	identity_add_string(&d, m, t->name);
	digest_add(&d, &t->dtype, sizeof(t->dtype));
	digest_add(&d, t->ne, sizeof(t->ne));
	digest_get(&d, own);
	for (unsigned i = 0; i < DIGEST_BYTES; i++)
		sum[i] ^= own[i];
}

void identity_get_weights(const struct manifest *m, uint8_t ret[DIGEST_BYTES])
{
	static const uint8_t unknown[DIGEST_BYTES];
	uint8_t tensors[DIGEST_BYTES] = {0};
	struct manifest_hparams h = *m->hparams;
	uint8_t tokens[DIGEST_BYTES];
	struct digest d;

	_Static_assert(
		sizeof(m->header->content_hash) == DIGEST_BYTES, "one is as long as the other");
	if (memcmp(m->header->content_hash, unknown, DIGEST_BYTES)) {
		memcpy(ret, m->header->content_hash, DIGEST_BYTES);
		return;
	}
	identity_get_tokens(m, tokens);
	for (uint32_t i = 0; i < m->n_tensors; i++)
		identity_mix_tensor(m, &m->tensors[i], tensors);
	/* Where their strings lie is nothing of the model's. */
	h.architecture = h.name = (struct manifest_string){0};
	digest_init(&d);
	identity_add_string(&d, m, m->hparams->architecture);
	digest_add(&d, &h, sizeof(h));
	digest_add(&d, tokens, sizeof(tokens));
	digest_add(&d, tensors, sizeof(tensors));
	digest_get(&d, ret);
}
