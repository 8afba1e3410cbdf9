/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_GRAMMAR_H
#define WORKERD_GRAMMAR_H

/*
 * Which tokens may come next where the text has to match a grammar. A grammar is compiled once and
 * shared by every generation that has it; a cursor is where one of them stands.
 *
 * A mask has a bit for every token, [(n_vocab + 31) / 32] u32, token t in bit t % 32 of word
 * t / 32. Allowed is a token all of whose bytes the grammar can go on with; what ends a generation
 * where the text may end; and no control token ever. Tokens may cut characters. Masks are kept by
 * state, up to GRAMMAR_MASK_BYTES a grammar, least recently used first out.
 *
 * Compiled on the text thread; from then on the engine thread's, but for ref and free.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct gbnf;
struct grammar;
struct grammar_cursor;
struct vocab_trie;

enum {
	GRAMMAR_MASK_BYTES = 4 << 20,
	GRAMMAR_BUDGET = 1 << 22, /* of one call: a few tenths of a second */
};

/* Takes gbnf on success alone; a reference to trie. -ENOMEM. */
int must_check grammar_new(
	struct gbnf *gbnf, struct vocab_trie *trie, struct grammar **ret_grammar);

struct grammar *grammar_ref(struct grammar *g);

/* The last owner's call frees it. Accepts NULL; returns NULL. */
struct grammar *grammar_free(struct grammar *g);

struct grammar_counters {
	uint64_t found; /* masks that were there */
	uint64_t made;
	uint64_t flushed; /* times that the tables of states were full */
};

const struct grammar_counters *grammar_get_counters(const struct grammar *g);

/* At the beginning of the text; a reference to g. Errors as grammar_get_mask. */
int must_check grammar_cursor_new(
	struct grammar *g, struct err *ret_err, struct grammar_cursor **ret_cursor);
struct grammar_cursor *grammar_cursor_free(struct grammar_cursor *c);

/*
 * The mask of what may come next; borrowed until the next call for any cursor of the grammar. It
 * may be empty. Allocates nothing where the state's mask is kept. -E2BIG, -EOVERFLOW with ret_err:
 * the grammar is too ambiguous, or takes too much work, there; -ENOMEM.
 */
int must_check grammar_get_mask(
	struct grammar_cursor *c, struct err *ret_err, const uint32_t **ret_mask);

/* Moves on by a token's bytes. -EINVAL: not allowed, the cursor is where it was. */
int must_check grammar_accept(
	struct grammar_cursor *c, const char *bytes, uint32_t n_bytes, struct err *ret_err);

/* May the text end here? */
bool grammar_is_complete(const struct grammar_cursor *c);

/* Must it? */
bool grammar_is_final(const struct grammar_cursor *c);

/* Does the vocabulary have a token that ends a generation? */
bool grammar_has_end(const struct grammar_cursor *c);

#endif
