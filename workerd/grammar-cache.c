/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/grammar-cache.h"

#include <errno.h>
#include <string.h>

#include "workerd/gbnf.h"
#include "workerd/grammar.h"
#include "workerd/json-schema.h"
#include "workerd/vocab-trie.h"

struct entry {
	char *text; /* [n_bytes] */
	uint64_t n_bytes;
	bool is_schema;
	uint64_t used;           /* when it was asked for last */
	struct grammar *grammar; /* a reference; NULL: the entry is free */
};

struct grammar_cache {
	struct vocab_trie *trie; /* a reference; NULL: not made yet */
	uint64_t n_asked;
	struct entry entries[GRAMMAR_CACHE_N];
};

int grammar_cache_new(struct grammar_cache **ret_cache)
{
	struct grammar_cache *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	*ret_cache = c;
	return 0;
}

static void entry_fini(struct entry *e)
{
	free(e->text);
	grammar_free(e->grammar);
	*e = (struct entry){0};
}

void grammar_cache_clear(struct grammar_cache *c)
{
	for (int i = 0; i < GRAMMAR_CACHE_N; i++)
		entry_fini(&c->entries[i]);
	c->trie = vocab_trie_free(c->trie);
}

struct grammar_cache *grammar_cache_free(struct grammar_cache *c)
{
	if (c) {
		grammar_cache_clear(c);
		free(c);
	}
	return NULL;
}

/* The text's own; else a free one, or the one that was not asked for longest. */
static struct entry *find(
	struct grammar_cache *c, const char *text, uint64_t n_bytes, bool is_schema)
{
	struct entry *oldest = &c->entries[0];

	for (int i = 0; i < GRAMMAR_CACHE_N; i++) {
		struct entry *e = &c->entries[i];

		if (e->grammar && e->is_schema == is_schema && e->n_bytes == n_bytes &&
			memcmp(e->text, text, n_bytes) == 0)
			return e;
		if (e->used < oldest->used)
			oldest = e;
	}
	entry_fini(oldest);
	return oldest;
}

static int fill(struct grammar_cache *c, const struct manifest *m, const char *text,
	uint64_t n_bytes, bool is_schema, struct err *ret_err, struct entry *e)
{
	struct gbnf *g = NULL;
	char *copy;
	int r = is_schema ? json_schema_compile(text, n_bytes, ret_err, &g)
			  : gbnf_parse(text, n_bytes, GBNF_MAX_BYTES, ret_err, &g);

	if (!r && !c->trie)
		r = vocab_trie_new_of(m, &c->trie);
	if (r) {
		gbnf_free(g);
		return r;
	}
	copy = malloc(n_bytes);
	if (!copy || grammar_new(g, c->trie, &e->grammar)) {
		gbnf_free(g);
		free(copy);
		return -ENOMEM;
	}
	memcpy(copy, text, n_bytes);
	e->text = copy;
	e->n_bytes = n_bytes;
	e->is_schema = is_schema;
	return 0;
}

int grammar_cache_get(struct grammar_cache *c, const struct manifest *m, const char *text,
	uint64_t n_bytes, bool is_schema, struct err *ret_err, struct grammar **ret_grammar)
{
	struct entry *e = find(c, text, n_bytes, is_schema);

	if (!e->grammar) {
		int r = fill(c, m, text, n_bytes, is_schema, ret_err, e);
		if (r)
			return r;
	}
	e->used = ++c->n_asked;
	*ret_grammar = grammar_ref(e->grammar);
	return 0;
}
