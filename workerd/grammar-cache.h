/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_GRAMMAR_CACHE_H
#define WORKERD_GRAMMAR_CACHE_H

/*
 * Grammars as clients write them, compiled for a model's vocabulary. The last GRAMMAR_CACHE_N are
 * kept: requests come with the same schema again and again, and find its states and masks made. The
 * text thread's.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct grammar;
struct grammar_cache;
struct manifest;

enum { GRAMMAR_CACHE_N = 8 };

/* -ENOMEM. */
int must_check grammar_cache_new(struct grammar_cache **ret_cache);
struct grammar_cache *grammar_cache_free(struct grammar_cache *c);

/* The model is another one: forgets everything. */
void grammar_cache_clear(struct grammar_cache *c);

/*
 * The grammar of a text (GBNF, or a JSON schema) for m, the same manifest until
 * grammar_cache_clear. *ret_grammar is a reference of the caller's. Errors as gbnf_parse and
 * json_schema_compile.
 */
int must_check grammar_cache_get(struct grammar_cache *c, const struct manifest *m,
	const char *text, uint64_t n_bytes, bool is_schema, struct err *ret_err,
	struct grammar **ret_grammar);

#endif
