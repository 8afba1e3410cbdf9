/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/identity.h"

#include <sys/stat.h>

#include "proto/manifest.h"
#include "workerd/weights.h"

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

void identity_get_weights(const struct weights *w, uint8_t ret[DIGEST_BYTES])
{
	struct stat st = {0};
	struct digest d;

	if (weights_get_identity(w, ret))
		return;
	digest_init(&d);
	if (fstat(w->manifest_fd, &st) == 0) {
		digest_add(&d, &st.st_dev, sizeof(st.st_dev));
		digest_add(&d, &st.st_ino, sizeof(st.st_ino));
	}
	digest_add(&d, &w->generation, sizeof(w->generation));
	digest_get(&d, ret);
}
