/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/vocab-trie.h"

#include <errno.h>
#include <string.h>

#include "proto/manifest.h"

static int compare(const void *a, const void *b, void *userdata)
{
	const struct vocab_trie_token *tokens = userdata;
	uint32_t x_id = *(const uint32_t *)a, y_id = *(const uint32_t *)b;
	const struct vocab_trie_token *x = &tokens[x_id], *y = &tokens[y_id];
	int r = memcmp(x->bytes, y->bytes, x->n_bytes < y->n_bytes ? x->n_bytes : y->n_bytes);

	if (r)
		return r;
	if (x->n_bytes != y->n_bytes)
		return x->n_bytes < y->n_bytes ? -1 : 1;
	return x_id < y_id ? -1 : 1;
}

static uint32_t count_shared(const struct vocab_trie_token *a, const struct vocab_trie_token *b)
{
	uint32_t n = 0;

	while (n < a->n_bytes && n < b->n_bytes && a->bytes[n] == b->bytes[n])
		n++;
	return n;
}

/* Entries of the sorted ids. */
static void fill(struct vocab_trie *t, const struct vocab_trie_token *tokens, const uint32_t *ids)
{
	uint32_t at = 0, byte = 0;

	for (uint32_t i = 0; i < t->n_entries; i++) {
		const struct vocab_trie_token *token = &tokens[ids[i]];
		uint32_t n_shared = i ? count_shared(token, &tokens[ids[i - 1]]) : 0;
		uint32_t n_more = token->n_bytes - n_shared;

		for (; byte <= token->bytes[0]; byte++) {
			t->first[byte].entry = i;
			t->first[byte].byte = at;
		}
		t->entries[i] =
			(struct vocab_trie_entry){ids[i], (uint16_t)n_shared, (uint16_t)n_more};
		memcpy(t->bytes + at, token->bytes + n_shared, n_more);
		at += n_more;
		if (token->n_bytes > t->max_bytes)
			t->max_bytes = token->n_bytes;
	}
	for (; byte <= 256; byte++) {
		t->first[byte].entry = t->n_entries;
		t->first[byte].byte = at;
	}
}

int vocab_trie_new(
	const struct vocab_trie_token *tokens, uint32_t n_vocab, struct vocab_trie **ret_trie)
{
	_cleanup_(cleanup_free)
	uint32_t *ids = calloc((uint64_t)n_vocab + 1, sizeof(*ids));
	struct vocab_trie *t = calloc(1, sizeof(*t));
	uint64_t n_bytes = 0;
	uint32_t n_ends = 0;

	if (!ids || !t) {
		free(t);
		return -ENOMEM;
	}
	t->n_refs = 1;
	t->n_vocab = n_vocab;
	for (uint32_t i = 0; i < n_vocab; i++) {
		n_ends += tokens[i].is_end;
		if (tokens[i].is_end || !tokens[i].is_text || !tokens[i].n_bytes ||
			tokens[i].n_bytes > UINT16_MAX)
			continue;
		ids[t->n_entries++] = i;
		n_bytes += tokens[i].n_bytes;
	}
	t->entries = calloc((uint64_t)t->n_entries + 1, sizeof(*t->entries));
	t->bytes = malloc(n_bytes + 1);
	t->ends = calloc((uint64_t)n_ends + 1, sizeof(*t->ends));
	if (!t->entries || !t->bytes || !t->ends) {
		vocab_trie_free(t);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n_vocab; i++)
		if (tokens[i].is_end)
			t->ends[t->n_ends++] = i;
	qsort_r(ids, t->n_entries, sizeof(*ids), compare, (void *)tokens);
	fill(t, tokens, ids);
	*ret_trie = t;
	return 0;
}

int vocab_trie_new_of(const struct manifest *m, struct vocab_trie **ret_trie)
{
	_cleanup_(cleanup_free)
	struct vocab_trie_token *tokens = calloc((uint64_t)m->n_vocab + 1, sizeof(*tokens));

	if (!tokens)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->n_vocab; i++) {
		uint32_t type = m->tokens[i].type;

		tokens[i] = (struct vocab_trie_token){
			.bytes = manifest_get_string(m, m->tokens[i].bytes),
			.n_bytes = m->tokens[i].bytes.n_bytes,
			.is_text = type == MANIFEST_TOKEN_NORMAL || type == MANIFEST_TOKEN_USER ||
				   type == MANIFEST_TOKEN_BYTE,
			.is_end = manifest_is_eog(m, i),
		};
	}
	return vocab_trie_new(tokens, m->n_vocab, ret_trie);
}

struct vocab_trie *vocab_trie_ref(struct vocab_trie *t)
{
	__atomic_fetch_add(&t->n_refs, 1, __ATOMIC_RELAXED);
	return t;
}

struct vocab_trie *vocab_trie_free(struct vocab_trie *t)
{
	if (!t || __atomic_sub_fetch(&t->n_refs, 1, __ATOMIC_ACQ_REL) > 0)
		return NULL;
	free(t->entries);
	free(t->bytes);
	free(t->ends);
	free(t);
	return NULL;
}
