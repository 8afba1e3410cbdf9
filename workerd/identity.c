/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/identity.h"

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
