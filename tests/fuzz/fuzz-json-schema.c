/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schema from anywhere: refused with a sentence, or a grammar along which any way that comes to
 * an end is JSON.
 */
#include <errno.h>
#include <stdlib.h>

#include <jansson.h>

#include "proto/util/err.h"
#include "tests/fuzz/target.h"
#include "workerd/gbnf.h"
#include "workerd/grammar.h"
#include "workerd/json-schema.h"
#include "workerd/vocab-trie.h"

enum { N_WAYS = 4, MAX_BYTES = 200 };

static struct vocab_trie *make_trie(void)
{
	static uint8_t bytes[256];
	struct vocab_trie_token tokens[256];
	struct vocab_trie *trie;

	for (int i = 0; i < 256; i++) {
		bytes[i] = (uint8_t)i;
		tokens[i] = (struct vocab_trie_token){&bytes[i], 1, true, false};
	}
	return vocab_trie_new(tokens, 256, &trie) ? NULL : trie;
}

/* One of the allowed bytes; closing ones come often, so that ways end. -1: none. */
static int choose(const uint32_t *mask, uint32_t *random)
{
	int n = 0, chosen = -1;

	*random = *random * 1664525 + 1013904223;
	for (const char *c = "\"}]"; *c && *random >> 30; c++)
		if (mask[*c / 32] >> *c % 32 & 1)
			return *c;
	for (int i = 0; i < 256; i++)
		n += mask[i / 32] >> i % 32 & 1;
	int wanted = n ? (int)((*random >> 8) % (unsigned)n) : -1;
	for (int i = 0; i < 256 && chosen < 0; i++)
		if (mask[i / 32] >> i % 32 & 1 && wanted-- == 0)
			chosen = i;
	return chosen;
}

static void walk(struct grammar *grammar, uint32_t random)
{
	char text[MAX_BYTES];
	struct err e = ERR_NULL;
	struct grammar_cursor *c;
	const uint32_t *mask;
	size_t n = 0;

	if (grammar_cursor_new(grammar, &e, &c))
		return;
	while (n < MAX_BYTES && !grammar_is_final(c) && !grammar_get_mask(c, &e, &mask)) {
		int byte = choose(mask, &random);

		if (byte < 0)
			break;
		text[n++] = (char)byte;
		if (grammar_accept(c, &text[n - 1], 1, &e))
			abort();
	}
	if (grammar_is_complete(c)) {
		json_error_t why;
		json_t *value = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);

		if (!value)
			abort();
		json_decref(value);
	}
	grammar_cursor_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	static struct vocab_trie *trie;
	struct grammar *grammar = NULL;
	struct gbnf *g = NULL;
	struct err e = ERR_NULL;
	int r = json_schema_compile((const char *)data, n_bytes, &e, &g);

	if (r) {
		if (r != -ENOMEM && !e.text[0])
			abort();
		return 0;
	}
	if (!trie)
		trie = make_trie();
	if (trie && grammar_new(g, trie, &grammar))
		gbnf_free(g);
	for (uint32_t i = 0; grammar && i < N_WAYS; i++)
		walk(grammar, i);
	grammar_free(grammar);
	return 0;
}
