/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_JSON_SCHEMA_H
#define WORKERD_JSON_SCHEMA_H

/*
 * JSON schemas (draft 2020-12 and the parts that older drafts have alike) as grammars. Every text
 * of the grammar is a JSON value that the schema allows; the grammar has fewer than the schema
 * where that keeps a model from going on for ever or leaves it no choice that matters:
 *
 *	properties come in the schema's order; none but those listed where additionalProperties is
 *	not there; a schema with properties, items, minLength ... is of that type where it has no
 * type prefixItems are all there (as far as maxItems goes), and none behind them without `items`
 *	integers have at most 15 digits unless their bounds ask for more, numbers at most 15 before
 *	and behind the point and two in the exponent
 *	white space: a blank, or a line break and up to 20 blanks or tabs, behind { [ , : and before
 *	} ]
 *	an upper bound above GBNF_MAX_REPETITION is read as that
 *	oneOf is anyOf
 *	pattern: anchored by ^ and $; literals, ., classes, \d \w \s and (outside classes) \D \W \S,
 *	groups, |, * + ? {m} {m,} {m,n}; a negated class and . have no control characters
 *
 * title, description, default, examples, $schema, $id and $comment say nothing about values, and
 * $defs and definitions are what $ref finds. Any other keyword that is not known here, or not in
 * this place, is refused by its JSON pointer. Any thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct gbnf;

enum {
	JSON_SCHEMA_MAX_DEPTH = 64,        /* of schemas in schemas */
	JSON_SCHEMA_MAX_PROPERTIES = 1024, /* of one object */
	JSON_SCHEMA_MAX_REFS = 1024,       /* schemas that $ref names */
	JSON_SCHEMA_MAX_NAME_BYTES = 256,  /* of a property beside additionalProperties */
};

/*
 * -EINVAL with "json_schema: POINTER: ...", -E2BIG where the grammar is larger than workerd/gbnf.h
 * allows, -ENOMEM.
 */
int must_check json_schema_compile(
	const char *text, uint64_t n_bytes, struct err *ret_err, struct gbnf **ret_gbnf);

/* The grammar's text, NUL-terminated, the caller's. Errors likewise. */
int must_check json_schema_write(const char *text, uint64_t n_bytes, struct err *ret_err,
	char **ret_grammar, uint64_t *ret_n_bytes);

#endif
