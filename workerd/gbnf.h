/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_GBNF_H
#define WORKERD_GBNF_H

/*
 * GBNF, the grammar notation of llama.cpp (its grammars/README.md), as a table of rules over the
 * bytes of UTF-8:
 *
 *	name ::= "literal" [a-z^"] . other-name ( ... ) | ...   # and after each: * + ? {m} {m,}
 *{m,n}
 *
 * Escapes in literals and classes are \xHH \uHHHH \UHHHHHHHH (code points) \t \r \n \\ \" \[ \] and
 * in classes \- \^. A rule ends with its line, except behind `::=`, behind `|` and in parentheses.
 * The rule `root` is what a text has to match. Tokens by name (`<think>`) are not known here.
 *
 * Refused beside what is malformed: rules that are not there, or twice, or can begin with
 * themselves (left recursion), or can never end. Repetitions are written out, with a rule for each
 * that may be left out. Any thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/utf8-class.h"

struct err;

enum {
	GBNF_MAX_BYTES = 64 << 10,     /* of a client's text */
	GBNF_MAX_MADE_BYTES = 1 << 20, /* of one that workerd/json-schema made */
	GBNF_MAX_RULES = 1 << 16,      /* repetitions and groups included */
	GBNF_MAX_ELEMENTS = 1 << 19,
	GBNF_MAX_REPETITION = 4096,
	GBNF_MAX_DEPTH = 64, /* of parentheses */
};

/* An element: its kind in the upper two bits, and what it is of. */
enum gbnf_kind {
	GBNF_END,   /* of an alternate */
	GBNF_BYTE,  /* the byte */
	GBNF_CLASS, /* a state of classes that a code point begins in */
	GBNF_RULE,  /* a rule */
};

static inline enum gbnf_kind gbnf_get_kind(uint32_t element)
{
	return element >> 30;
}

static inline uint32_t gbnf_get_value(uint32_t element)
{
	return element & 0x3fffffff;
}

static inline uint32_t gbnf_make_element(enum gbnf_kind kind, uint32_t value)
{
	return (uint32_t)kind << 30 | value;
}

struct gbnf {
	uint32_t n_rules;
	uint32_t n_alternates;
	uint32_t n_elements;
	uint32_t root;
	uint32_t *first_alternate; /* [n_rules + 1] */
	uint32_t *alternates;      /* [n_alternates] the first element of each, rule by rule */
	uint32_t *elements;        /* [n_elements] */
	struct utf8_class_table classes;
};

/*
 * -EINVAL and -E2BIG with "grammar:LINE:COLUMN: expected ..., found ...", -ENOMEM. max_bytes is
 * GBNF_MAX_BYTES for what a client wrote.
 */
int must_check gbnf_parse(const char *text, uint64_t n_bytes, uint64_t max_bytes,
	struct err *ret_err, struct gbnf **ret_gbnf);
struct gbnf *gbnf_free(struct gbnf *g);

#endif
