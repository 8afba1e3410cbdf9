/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A manifest from anywhere: refused, or every lookup in it ends and stays inside. What is found is
 * touched, so that a sanitizer sees a bad offset.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "tests/fuzz/target.h"

enum { MAX_LOOKUPS = 64 };

static void look_up_tensors(const struct manifest *m)
{
	for (uint32_t i = 0; i < m->n_tensors && i < MAX_LOOKUPS; i++) {
		struct manifest_string s = m->tensors[i].name;
		char name[256] = {0};

		memcpy(name, manifest_get_string(m, s), s.n_bytes < 255 ? s.n_bytes : 255);
		const struct manifest_tensor *t = manifest_find_tensor(m, name);
		if (s.n_bytes < 255 && strlen(name) == s.n_bytes && t != &m->tensors[i])
			abort();
	}
}

static void look_up_tokens(const struct manifest *m)
{
	for (uint32_t i = 0; i < m->n_vocab && i < MAX_LOOKUPS; i++) {
		struct manifest_string s = m->tokens[i].bytes;
		uint32_t id = manifest_find_token(m, manifest_get_string(m, s), s.n_bytes);

		if (id != MANIFEST_NONE && id >= m->n_vocab)
			abort();
		const struct manifest_merge *e = manifest_find_merge(m, i, (i + 1) % m->n_vocab);
		if (e && e->result >= m->n_vocab)
			abort();
		if (manifest_is_eog(m, i) && m->tokenizer->n_eog == 0)
			abort();
	}
	for (uint32_t i = 0; i < m->n_specials; i++)
		if (m->tokens[m->specials[i]].bytes.n_bytes == 0)
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	struct manifest *m = NULL;
	struct err e = ERR_NULL;
	void *copy = NULL;

	/* malloc aligns to 16 bytes; the size is exact. */
	copy = malloc(n_bytes > 0 ? n_bytes : 1);
	if (!copy)
		return 0;
	memcpy(copy, data, n_bytes);
	if (manifest_open_bytes(copy, n_bytes, &e, &m) == 0) {
		look_up_tensors(m);
		look_up_tokens(m);
	} else if (!e.text[0]) {
		abort();
	}
	manifest_free(m);
	free(copy);
	return 0;
}
