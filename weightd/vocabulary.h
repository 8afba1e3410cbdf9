/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_VOCABULARY_H
#define WEIGHTD_VOCABULARY_H

/*
 * The tokenizer's keys of a GGUF file: which tokenizer it is, arrays that fit together, ids inside
 * the vocabulary. What only shows while tables are built is weightd/token-table's. Any one thread.
 */
#include "proto/util/cleanup.h"

struct err;
struct gguf;
struct validate_model;

enum { VOCABULARY_MAX_MERGES = 1 << 23 }; /* twice HPARAMS_MAX_VOCAB: a merge makes a token */

/*
 * Fills tokenizer, chat_template, tokens, token_types, scores and merges. A file without a
 * tokenizer is accepted: model MANIFEST_TOKENIZER_NONE. -EINVAL; -ENOTSUP for another tokenizer.
 */
int must_check vocabulary_read(
	const struct gguf *g, struct err *ret_err, struct validate_model *ret_model);

#endif
