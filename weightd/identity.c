/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/identity.h"

#include <assert.h>
#include <errno.h>
#include <sys/stat.h>

#include "proto/dtype.h"
#include "weightd/gguf.h"
#include "weightd/sha256.h"
#include "weightd/sum.h"
#include "weightd/sums.h"

static_assert((int)IDENTITY_BYTES == (int)SHA256_BYTES, "an identity is a digest");

static void identity_add_u64(struct sha256 *h, uint64_t v)
{
	sha256_add(h, &v, sizeof(v));
}

static void identity_add_bytes(struct sha256 *h, const void *data, uint64_t n_bytes)
{
	identity_add_u64(h, n_bytes);
	sha256_add(h, data, n_bytes);
}

void identity_describe(const struct gguf *g, uint8_t ret_description[IDENTITY_BYTES])
{
	struct sha256 h;

	sha256_init(&h);
	identity_add_u64(&h, g->n_tensors);
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		const struct gguf_tensor *t = &g->tensors[g->tensor_index[i]];
		identity_add_bytes(&h, t->name.data, t->name.n_bytes);
		identity_add_u64(&h, t->dtype->id);
		identity_add_u64(&h, t->n_dims);
		for (uint32_t k = 0; k < 4; k++)
			identity_add_u64(&h, t->ne[k]);
	}
	identity_add_u64(&h, g->n_kv);
	for (uint64_t i = 0; i < g->n_kv; i++) {
		const struct gguf_kv *kv = &g->kv[g->kv_index[i]];
		identity_add_bytes(&h, kv->key.data, kv->key.n_bytes);
		identity_add_u64(&h, kv->type);
		identity_add_u64(&h, kv->type == GGUF_ARRAY ? (uint64_t)kv->element_type : 0);
		identity_add_u64(&h, kv->n_elements);
		identity_add_bytes(&h, kv->data, kv->n_bytes);
	}
	sha256_end(&h, ret_description);
}

int identity_make(const struct sum_key *key, const uint8_t description[IDENTITY_BYTES],
	const struct sums *s, uint8_t ret_identity[IDENTITY_BYTES])
{
	static const uint8_t label[16] = "weightd id v1";
	struct sha256 h;

	if (!sums_is_complete(s))
		return -EAGAIN;
	sha256_init(&h);
	sha256_add(&h, label, sizeof(label));
	sha256_add(&h, key->secret, sizeof(key->secret));
	sha256_add(&h, description, IDENTITY_BYTES);
	identity_add_u64(&h, s->n_tensors);
	for (uint32_t i = 0; i < s->n_tensors; i++) {
		const struct sums_tensor *t = &s->tensors[i];
		identity_add_u64(&h, t->n_bytes);
		sha256_add(&h, s->values + t->first, 8 * sum_count_pieces(t->n_bytes));
	}
	sha256_end(&h, ret_identity);
	return 0;
}

void identity_make_file(const struct sum_key *key, const uint8_t description[IDENTITY_BYTES],
	const struct stat *file, uint8_t ret_identity[IDENTITY_BYTES])
{
	static const uint8_t label[16] = "weightd file v1";
	struct sha256 h;

	sha256_init(&h);
	sha256_add(&h, label, sizeof(label));
	sha256_add(&h, key->secret, sizeof(key->secret));
	sha256_add(&h, description, IDENTITY_BYTES);
	identity_add_u64(&h, file->st_dev);
	identity_add_u64(&h, file->st_ino);
	identity_add_u64(&h, (uint64_t)file->st_size);
	identity_add_u64(&h, (uint64_t)file->st_mtim.tv_sec);
	identity_add_u64(&h, (uint64_t)file->st_mtim.tv_nsec);
	sha256_end(&h, ret_identity);
}
