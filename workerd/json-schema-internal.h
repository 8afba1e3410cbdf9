/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_JSON_SCHEMA_INTERNAL_H
#define WORKERD_JSON_SCHEMA_INTERNAL_H

/*
 * What workerd/json-schema*.c share. A schema becomes a rule s<N>; parts of it are s<N>-...; what
 * $ref names is d<N>. An expression is written to a stream of its own, because the rules of the
 * schemas in it are written to `out` meanwhile.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "proto/util/cleanup.h"

struct err;

/* A step of a JSON pointer. */
struct json_schema_place {
	const struct json_schema_place *up;
	const char *key; /* NULL: index */
	size_t index;
};

struct json_schema {
	json_t *root;
	FILE *out;
	struct err *err;
	uint32_t n_rules;
	uint32_t depth;
	struct json_schema_ref *refs;
	uint32_t n_refs;
	uint32_t n_merged; /* values that workerd/json-schema-merge has looked at */
};

/* How many bytes of text to print: at most 64, whole characters. For "%.*s". */
static inline int json_schema_cut(const char *text)
{
	int n = 0, n_whole = 0;

	for (; text[n] && n < 64; n++)
		if ((text[n + 1] & 0xc0) != 0x80)
			n_whole = n + 1;
	return n_whole;
}

/* -EINVAL: "json_schema: POINTER[/key]: format". */
int json_schema_fail(struct json_schema *s, const struct json_schema_place *at, const char *key,
	const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The rule of a schema. */
int must_check json_schema_build(struct json_schema *s, json_t *schema,
	const struct json_schema_place *at, uint32_t *ret_rule);

/* A whole number of at least 0; where the keyword is not there, *ret_n stays. */
int must_check json_schema_get_count(struct json_schema *s, json_t *schema,
	const struct json_schema_place *at, const char *key, uint64_t *ret_n);

/* {min,max} of a repetition, of which n are there already. */
void json_schema_write_bounds(FILE *f, uint64_t min, uint64_t max, uint64_t n);

/* bytes as a literal. */
void json_schema_write_literal(FILE *f, const char *bytes, size_t n_bytes);

/* The literal of a JSON value's text. -ENOMEM. */
int must_check json_schema_write_value(FILE *f, const json_t *value);

/* The expression of an object, array, string or integer; `rule` is the number of its own rule. */
int must_check json_schema_object(struct json_schema *s, json_t *schema,
	const struct json_schema_place *at, uint32_t rule, FILE *f);
int must_check json_schema_array(
	struct json_schema *s, json_t *schema, const struct json_schema_place *at, FILE *f);
int must_check json_schema_string(
	struct json_schema *s, json_t *schema, const struct json_schema_place *at, FILE *f);
int must_check json_schema_integer(
	struct json_schema *s, json_t *schema, const struct json_schema_place *at, FILE *f);

/* What is between the quotes of a string that matches the pattern. */
int must_check json_schema_pattern(struct json_schema *s, const char *pattern, size_t n_bytes,
	const struct json_schema_place *at, FILE *f);

/* allOf's members and the schema itself as one schema of an object; a new reference. */
int must_check json_schema_merge(struct json_schema *s, json_t *schema,
	const struct json_schema_place *at, json_t **ret_merged);

/* Is the keyword one that says nothing about values, or what $ref finds? */
bool json_schema_is_annotation(const char *key);

/* What $ref names; borrowed. */
int must_check json_schema_find(struct json_schema *s, json_t *schema,
	const struct json_schema_place *at, json_t **ret_schema);

#endif
