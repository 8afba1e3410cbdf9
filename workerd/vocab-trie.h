/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_VOCAB_TRIE_H
#define WORKERD_VOCAB_TRIE_H

/*
 * The texts of a vocabulary as a trie over bytes, so that what tokens begin with alike is looked at
 * once: the tokens sorted by bytes, each as how much it has of the one before and what it adds
 * (front coding). One is made of a model and shared by all grammars; 8 bytes a token and what they
 * add, 1.7 MiB with 151,936 tokens of 6 bytes. Constant once made; any thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct manifest;

struct vocab_trie_token {
	const uint8_t *bytes;
	uint32_t n_bytes;
	bool is_text; /* what it stands for is written: no control token */
	bool is_end;  /* it ends a generation */
};

struct vocab_trie_entry {
	uint32_t token;
	uint16_t n_shared; /* bytes, with the entry before */
	uint16_t n_more;
};

struct vocab_trie {
	uint32_t n_vocab;
	uint32_t n_entries;
	uint32_t max_bytes; /* of an entry */
	uint32_t n_ends;
	struct vocab_trie_entry *entries; /* [n_entries] */
	uint8_t *bytes;                   /* what the entries add, behind each other */
	uint32_t *ends;                   /* [n_ends] tokens that end a generation */
	struct {
		uint32_t entry;
		uint32_t byte; /* in bytes */
	} first[257];          /* of the texts that begin with a byte */
	unsigned n_refs;       /* atomic; vocab_trie_ref */
};

/*
 * Tokens that are no text, are empty, or have more than 65,535 bytes are not in it; what ends a
 * generation is in ends alone. tokens: [n_vocab], borrowed for the call. -ENOMEM.
 */
int must_check vocab_trie_new(
	const struct vocab_trie_token *tokens, uint32_t n_vocab, struct vocab_trie **ret_trie);

/* Of a model's tokens. */
int must_check vocab_trie_new_of(const struct manifest *m, struct vocab_trie **ret_trie);

struct vocab_trie *vocab_trie_ref(struct vocab_trie *t);

/* The last owner's call frees it. Accepts NULL; returns NULL. */
struct vocab_trie *vocab_trie_free(struct vocab_trie *t);

#endif
