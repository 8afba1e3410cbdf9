/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_BPE_H
#define WORKERD_BPE_H

/*
 * Byte-pair encoding of one word: its bytes become tokens, and the pair with the lowest rank (the
 * leftmost of equals) is replaced by what it merges to until no pair merges. O(n log n) in the
 * bytes of the word. The merges are the manifest's hash table, on token ids. One thread at a time.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct bpe;
struct err;
struct manifest;
struct tokenizer_ids;

/* m is borrowed for the bpe's life. -ENOMEM. */
int must_check bpe_new(const struct manifest *m, struct bpe **ret_bpe);
struct bpe *bpe_free(struct bpe *b);

/*
 * Appends the tokens of word[0..n_bytes), n_bytes > 0, to *ids. -EINVAL with ret_err: a byte has no
 * token; *ids may then have grown.
 */
int must_check bpe_encode(struct bpe *b, const uint8_t *word, uint32_t n_bytes, struct err *ret_err,
	struct tokenizer_ids *ids);

/* Gives back the room that an unusually long word took. */
void bpe_trim(struct bpe *b);

#endif
