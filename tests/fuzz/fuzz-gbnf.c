/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A grammar from anywhere: refused with a sentence, or a table whose masks say the same as its
 * steps, along a way that the first allowed tokens make.
 */
#include <errno.h>
#include <stdlib.h>

#include "proto/util/err.h"
#include "tests/fuzz/target.h"
#include "workerd/gbnf.h"
#include "workerd/grammar.h"
#include "workerd/vocab-trie.h"

enum { N_STEPS = 8, N_VOCAB = 256 + 3 };

static struct vocab_trie *make_trie(void)
{
	static uint8_t bytes[256];
	struct vocab_trie_token tokens[N_VOCAB] = {
		[256] = {(const uint8_t *)"a\"", 2, true, false},
		[257] = {(const uint8_t *)"\xc3\xa9", 2, true, false},
		[258] = {NULL, 0, false, true},
	};
	struct vocab_trie *trie;

	for (int i = 0; i < 256; i++) {
		bytes[i] = (uint8_t)i;
		tokens[i] = (struct vocab_trie_token){&bytes[i], 1, true, false};
	}
	return vocab_trie_new(tokens, N_VOCAB, &trie) ? NULL : trie;
}

static void walk(struct grammar_cursor *c)
{
	struct err e = ERR_NULL;
	const uint32_t *mask;

	for (int step = 0; step < N_STEPS && !grammar_get_mask(c, &e, &mask); step++) {
		int allowed = -1;

		if ((mask[258 / 32] >> 258 % 32 & 1) != grammar_is_complete(c))
			abort();
		for (int i = 255; i >= 0; i--)
			if (mask[i / 32] >> i % 32 & 1)
				allowed = (allowed + i) % 2 || allowed < 0 ? i : allowed;
		if (grammar_is_final(c) != (allowed < 0 && grammar_is_complete(c)))
			abort();
		/* A rule can always end, so there is a way on unless the depth is capped. */
		if (allowed < 0)
			return;
		char byte = (char)allowed;
		if (grammar_accept(c, &byte, 1, &e))
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	static struct vocab_trie *trie;
	struct grammar_cursor *c = NULL;
	struct grammar *grammar = NULL;
	struct gbnf *g = NULL;
	struct err e = ERR_NULL;
	int r = gbnf_parse((const char *)data, n_bytes, GBNF_MAX_BYTES, &e, &g);

	if (r) {
		if (r != -ENOMEM && !e.text[0])
			abort();
		return 0;
	}
	if (!trie)
		trie = make_trie();
	if (trie && grammar_new(g, trie, &grammar)) {
		gbnf_free(g);
	} else if (grammar_cursor_new(grammar, &e, &c) == 0) {
		walk(c);
		grammar_cursor_free(c);
	}
	grammar_free(grammar);
	return 0;
}
