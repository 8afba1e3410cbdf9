/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PAIR_VOCABULARY_H
#define TESTS_UNIT_PAIR_VOCABULARY_H

/*
 * A vocabulary in which tokens show where words end: every byte, and every pair of bytes with a
 * merge that makes it, in scrambled ranks. Then PAIR_VOCABULARY_WORDS, to which no merge leads, and
 * the control tokens of Llama 3. Failures fail the test.
 */
#include <stdint.h>

#include "proto/manifest.h"

enum {
	PAIR_VOCABULARY_N_PAIRS = 1 << 16, /* the pair (left, right) is 256 + left * 256 + right */
	PAIR_VOCABULARY_FIRST_WORD = 256 + PAIR_VOCABULARY_N_PAIRS,
	PAIR_VOCABULARY_N_WORDS = 8,
	PAIR_VOCABULARY_BOS = PAIR_VOCABULARY_FIRST_WORD + PAIR_VOCABULARY_N_WORDS,
	PAIR_VOCABULARY_START_HEADER,
	PAIR_VOCABULARY_END_HEADER,
	PAIR_VOCABULARY_EOT,
	PAIR_VOCABULARY_N_TOKENS,
};

struct pair_vocabulary {
	struct manifest m; /* what a tokenizer and a template look at */
	struct manifest_tokenizer tokenizer;
	uint32_t byte_tokens[256];
	struct manifest_token *tokens;
	uint8_t *strings;
	uint32_t *hash;
	struct manifest_merge *merges;
	uint32_t specials[4];
};

void pair_vocabulary_init(struct pair_vocabulary *v, enum manifest_pre_tokenizer pre);
void pair_vocabulary_fini(struct pair_vocabulary *v);

#endif
