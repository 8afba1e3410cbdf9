/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_TOKENIZER_H
#define WORKERD_TOKENIZER_H

/*
 * Text to tokens and back, with the tables of the manifest used in place. Byte-level BPE: special
 * tokens are cut out, the pre-tokenizer's regular expression (PCRE2, Unicode properties) splits the
 * rest into words, each word's bytes merge by rank. Linear in the text up to a logarithm, whatever
 * the text is.
 *
 * One tokenizer may be used by one thread at a time.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct manifest;
struct tokenizer;

enum { TOKENIZER_MAX_BYTES = 1 << 30 }; /* of one text */

/* A growing list of token ids; zero is empty. */
struct tokenizer_ids {
	uint32_t *ids; /* [n] */
	uint64_t n;
	uint64_t n_room;
};

void tokenizer_ids_fini(struct tokenizer_ids *ids);

/* -ENOMEM; *ids is then as it was. */
int must_check tokenizer_ids_append(struct tokenizer_ids *ids, uint32_t id);

/* m is borrowed for the tokenizer's life. -ENOTSUP: the model has no tokenizer we know. */
int must_check tokenizer_new(
	const struct manifest *m, struct err *ret_err, struct tokenizer **ret_tokenizer);
struct tokenizer *tokenizer_free(struct tokenizer *t);

/*
 * Appends the tokens of text to *ids. Bytes that are no UTF-8 are tokens of their own bytes.
 * parse_special: control tokens written in the text are recognised. User-defined tokens always are.
 * -EINVAL with ret_err where a byte has no token; -E2BIG above TOKENIZER_MAX_BYTES; -ENOMEM. *ids
 * is unchanged on failure.
 */
int must_check tokenizer_encode(struct tokenizer *t, const char *text, uint64_t n_bytes,
	bool parse_special, struct err *ret_err, struct tokenizer_ids *ids);

/* The bytes a token stands for; borrowed from the manifest. -EINVAL for an id out of range. */
int must_check tokenizer_get_bytes(const struct tokenizer *t, uint32_t id, struct err *ret_err,
	const char **ret_bytes, uint32_t *ret_n_bytes);

/*
 * How many of the n_bytes are whole UTF-8 characters; what is left over may become one with more
 * bytes. Bytes that can never become valid count as whole. At most 3 are left over.
 */
uint64_t tokenizer_whole_utf8(const char *bytes, uint64_t n_bytes);

#endif
