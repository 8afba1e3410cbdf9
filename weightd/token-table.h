/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_TOKEN_TABLE_H
#define WEIGHTD_TOKEN_TABLE_H

/*
 * The tokenizer's tables as the manifest holds them: what each token stands for in bytes, tokens by
 * their bytes, merges by their pair, special tokens. Built from a validated model. Any one thread.
 */
#include <stdint.h>

#include "proto/manifest.h"
#include "proto/util/cleanup.h"

struct err;
struct validate_model;

enum {
	/*
	 * A table whose keys are chosen to share one hash would take quadratic time, here and in
	 * every worker. At most two thirds full, honest tables stay far below this.
	 */
	TOKEN_TABLE_MAX_PROBES = 1024,
};

struct token_table {
	uint32_t n_vocab;              /* 0: a model without a tokenizer */
	struct manifest_token *tokens; /* [n_vocab] */
	uint8_t *strings;              /* [n_string_bytes] what tokens' offsets point into */
	uint64_t n_string_bytes;
	uint32_t *hash; /* [n_hash] token id or MANIFEST_NONE */
	uint32_t n_hash;
	uint32_t byte_tokens[256];
	struct manifest_merge *merges; /* [n_merges] */
	uint32_t n_merges;             /* slots of the table */
	uint32_t *specials;            /* [n_specials] longest first */
	uint32_t n_specials;
};

#define TOKEN_TABLE_NULL ((struct token_table){.n_vocab = 0})

/*
 * -EINVAL with ret_err: a token twice, a normal token that is not byte-level text, a merge of
 * unknown tokens or into none, a pair merged twice. Of a normal and a special token with the same
 * bytes the hash has the normal one.
 */
int must_check token_table_init(
	const struct validate_model *model, struct err *ret_err, struct token_table *ret_table);

/* Accepts TOKEN_TABLE_NULL and half-built ones. */
void token_table_fini(struct token_table *t);

#endif
