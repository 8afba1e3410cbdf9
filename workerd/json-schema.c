/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/json-schema.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "proto/util/err.h"
#include "workerd/gbnf.h"
#include "workerd/json-schema-internal.h"

enum { MAX_POINTER_BYTES = 256 };

/* A schema that $ref names; its rule is d<index>. */
struct json_schema_ref {
	char *pointer;
	json_t *schema; /* borrowed */
};

enum type {
	TYPE_OBJECT = 1,
	TYPE_ARRAY = 2,
	TYPE_STRING = 4,
	TYPE_INTEGER = 8,
	TYPE_NUMBER = 16,
	TYPE_BOOLEAN = 32,
	TYPE_NULL = 64,
};

static const struct {
	const char *name;
	enum type type;
} type_names[] = {{"object", TYPE_OBJECT}, {"array", TYPE_ARRAY}, {"string", TYPE_STRING},
	{"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER}, {"boolean", TYPE_BOOLEAN},
	{"null", TYPE_NULL}};

/* Keywords of types. */
static const struct {
	const char *name;
	enum type type;
} keywords[] = {{"properties", TYPE_OBJECT}, {"required", TYPE_OBJECT},
	{"additionalProperties", TYPE_OBJECT}, {"items", TYPE_ARRAY}, {"prefixItems", TYPE_ARRAY},
	{"minItems", TYPE_ARRAY}, {"maxItems", TYPE_ARRAY}, {"minLength", TYPE_STRING},
	{"maxLength", TYPE_STRING}, {"pattern", TYPE_STRING}, {"format", TYPE_STRING},
	{"minimum", TYPE_INTEGER}, {"maximum", TYPE_INTEGER}, {"exclusiveMinimum", TYPE_INTEGER},
	{"exclusiveMaximum", TYPE_INTEGER}};

/*
 * Rules that schemas use. Escapes of surrogates are left out: half a pair is no character, and a
 * pair would count as two. Dates know the lengths of months and leap years.
 */
static const char preamble[] =
	"ws ::= \"\" | \" \" | \"\\n\" [ \\t]{0,20}\n"
	"hex ::= [0-9a-fA-F]\n"
	"raw ::= [^\"\\\\\\x00-\\x1f\\x7f]\n"
	"char ::= raw | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" ([0-9a-ce-fA-CE-F] hex{3} | [dD] [0-7] "
	"hex{2}))\n"
	"string ::= \"\\\"\" char* \"\\\"\"\n"
	"integer ::= \"0\" | \"-\"? [1-9] [0-9]{0,14}\n"
	"number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,14}) (\".\" [0-9]{1,15})? ([eE] [-+]? "
	"[0-9]{1,2})?\n"
	"boolean ::= \"true\" | \"false\"\n"
	"value ::= object | array | string | number | boolean | \"null\"\n"
	"object ::= \"{\" ws (pair (\",\" ws pair)* ws)? \"}\"\n"
	"pair ::= string \":\" ws value\n"
	"array ::= \"[\" ws (value (\",\" ws value)* ws)? \"]\"\n"
	"dot ::= [^\"\\\\\\x00-\\x1f\\x7f\\u2028\\u2029] | \"\\\\\" [\"\\\\]\n"
	"leap ::= [0-9]{2} (\"0\" [48] | [2468] [048] | [13579] [26]) | ([02468] [048] | [13579] "
	"[26]) \"00\"\n"
	"date ::= [0-9]{4} \"-\" ((\"0\" [13578] | \"1\" [02]) \"-\" (\"0\" [1-9] | [12] [0-9] | "
	"\"3\" [01]) | (\"0\" [469] | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\") | \"02-\" "
	"(\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8])) | leap \"-02-29\"\n"
	"hour ::= [01] [0-9] | \"2\" [0-3]\n"
	"sixty ::= [0-5] [0-9]\n"
	"time ::= hour \":\" sixty \":\" sixty (\".\" [0-9]{1,9})? (\"Z\" | [-+] hour \":\" "
	"sixty)\n"
	"uuid ::= hex{8} \"-\" hex{4} \"-\" hex{4} \"-\" hex{4} \"-\" hex{12}\n";

static void write_pointer(FILE *f, const struct json_schema_place *at)
{
	if (!at)
		return;
	write_pointer(f, at->up);
	if (at->key)
		fprintf(f, "/%.*s", json_schema_cut(at->key), at->key);
	else
		fprintf(f, "/%zu", at->index);
}

int json_schema_fail(struct json_schema *s, const struct json_schema_place *at, const char *key,
	const char *format, ...)
{
	char pointer[MAX_POINTER_BYTES] = "", what[MAX_POINTER_BYTES];
	FILE *f = fmemopen(pointer, sizeof(pointer), "w");
	va_list list;

	if (!f)
		return -ENOMEM;
	write_pointer(f, at);
	if (key)
		fprintf(f, "/%.*s", json_schema_cut(key), key);
	fclose(f);
	pointer[sizeof(pointer) - 1] = '\0';
	va_start(list, format);
	vsnprintf(what, sizeof(what), format, list);
	va_end(list);
	return err_set(s->err, EINVAL, "json_schema: %s: %s", pointer[0] ? pointer : "/", what);
}

/* Refuses a keyword that is neither an annotation nor among up to three. */
static int check_only(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	const char *a, const char *b)
{
	const char *key;
	json_t *value;

	json_object_foreach(schema, key, value) if (!json_schema_is_annotation(key) &&
						    strcmp(key, a) != 0 &&
						    strcmp(key, b) != 0) return json_schema_fail(s,
		at, key, "expected no such keyword beside %s", a);
	return 0;
}

static enum type get_type_of(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_OBJECT: return TYPE_OBJECT;
	case JSON_ARRAY: return TYPE_ARRAY;
	case JSON_STRING: return TYPE_STRING;
	case JSON_INTEGER: return TYPE_INTEGER | TYPE_NUMBER;
	case JSON_REAL: return TYPE_NUMBER;
	case JSON_TRUE:
	case JSON_FALSE: return TYPE_BOOLEAN;
	default: return TYPE_NULL;
	}
}

static int add_type(struct json_schema *s, const json_t *name, const struct json_schema_place *at,
	uint32_t *types)
{
	for (size_t i = 0; json_is_string(name) && i < ARRAY_SIZE(type_names); i++)
		if (strcmp(json_string_value(name), type_names[i].name) == 0) {
			*types |= type_names[i].type;
			return 0;
		}
	return json_schema_fail(s, at, "type",
		"expected \"object\", \"array\", \"string\", \"integer\", \"number\", \"boolean\" "
		"or \"null\"");
}

/* 0: there is no keyword that says a type. */
static int get_types(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	uint32_t *ret_types)
{
	json_t *type = json_object_get(schema, "type"), *name;
	size_t i;

	*ret_types = 0;
	if (json_is_array(type)) {
		json_array_foreach(type, i, name)
		{
			int r = add_type(s, name, at, ret_types);
			if (r)
				return r;
		}
		if (!*ret_types)
			return json_schema_fail(s, at, "type", "expected a type, found none");
	} else if (type) {
		return add_type(s, type, at, ret_types);
	}
	return 0;
}

/* Each keyword is of one of the types; where there are none, the keywords say which. */
static int check_keywords(
	struct json_schema *s, json_t *schema, const struct json_schema_place *at, uint32_t *types)
{
	uint32_t implied = 0;
	const char *key;
	json_t *value;

	json_object_foreach(schema, key, value)
	{
		uint32_t type = 0;

		for (size_t i = 0; i < ARRAY_SIZE(keywords); i++)
			if (strcmp(key, keywords[i].name) == 0)
				type = keywords[i].type;
		if (!type && !json_schema_is_annotation(key) && strcmp(key, "type") != 0)
			return json_schema_fail(s, at, key, "not supported");
		if (type && *types && !(type & *types))
			return json_schema_fail(s, at, key,
				"expected no such keyword beside this "
				"type");
		if (type == TYPE_INTEGER && (!*types || (*types & TYPE_NUMBER)))
			return json_schema_fail(
				s, at, key, "supported beside the type \"integer\" alone");
		implied |= type;
	}
	if (!*types)
		*types = implied;
	return 0;
}

static int write_type(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	enum type type, uint32_t rule, FILE *f)
{
	switch (type) {
	case TYPE_OBJECT: return json_schema_object(s, schema, at, rule, f);
	case TYPE_ARRAY: return json_schema_array(s, schema, at, f);
	case TYPE_STRING: return json_schema_string(s, schema, at, f);
	case TYPE_INTEGER: return json_schema_integer(s, schema, at, f);
	case TYPE_NUMBER: fputs("number", f); return 0;
	case TYPE_BOOLEAN: fputs("boolean", f); return 0;
	case TYPE_NULL: fputs("\"null\"", f); return 0;
	}
	return 0;
}

static int write_types(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	uint32_t rule, FILE *f)
{
	uint32_t types;
	bool is_first = true;
	int r = get_types(s, schema, at, &types);

	if (!r)
		r = check_keywords(s, schema, at, &types);
	if (r)
		return r;
	if (!types)
		fputs("value", f);
	/* An integer is a number: both would be read in two ways. */
	if (types & TYPE_NUMBER)
		types &= ~(uint32_t)TYPE_INTEGER;
	for (size_t i = 0; !r && i < ARRAY_SIZE(type_names); i++) {
		if (!(types & type_names[i].type))
			continue;
		if (!is_first)
			fputs(" | ", f);
		is_first = false;
		r = write_type(s, schema, at, type_names[i].type, rule, f);
	}
	return r;
}

/* The values of enum or const, those of other types than the schema's left out. */
static int write_values(
	struct json_schema *s, json_t *schema, const struct json_schema_place *at, FILE *f)
{
	const char *key = json_object_get(schema, "enum") ? "enum" : "const";
	json_t *values = json_object_get(schema, key), *value;
	uint32_t types, n = 0;
	size_t i;
	int r = check_only(s, schema, at, key, "type");

	if (!r)
		r = get_types(s, schema, at, &types);
	if (r)
		return r;
	if (key[0] == 'c') {
		if (types && !(types & get_type_of(values)))
			return json_schema_fail(s, at, key, "expected a value of the type");
		return json_schema_write_value(f, values);
	}
	if (!json_is_array(values))
		return json_schema_fail(s, at, key, "expected an array");
	json_array_foreach(values, i, value)
	{
		if (types && !(types & get_type_of(value)))
			continue;
		if (n++)
			fputs(" | ", f);
		r = json_schema_write_value(f, value);
		if (r)
			return r;
	}
	return n ? 0 : json_schema_fail(s, at, key, "expected a value (of the type), found none");
}

static int write_union(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	const char *key, FILE *f)
{
	json_t *list = json_object_get(schema, key), *member;
	struct json_schema_place in = {.up = at, .key = key};
	size_t i;
	int r = check_only(s, schema, at, key, key);

	if (r)
		return r;
	if (!json_array_size(list))
		return json_schema_fail(s, at, key, "expected an array of schemas");
	json_array_foreach(list, i, member)
	{
		struct json_schema_place place = {.up = &in, .index = i};
		uint32_t rule;

		r = json_schema_build(s, member, &place, &rule);
		if (r)
			return r;
		fprintf(f, "%ss%u", i ? " | " : "", rule);
	}
	return 0;
}

static int write_all_of(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	uint32_t rule, FILE *f)
{
	json_t *list = json_object_get(schema, "allOf"), *merged;
	struct json_schema_place in = {.up = at, .key = "allOf"}, first = {.up = &in};
	uint32_t member;
	int r;

	if (!json_array_size(list))
		return json_schema_fail(s, at, "allOf", "expected an array of schemas");
	/* One member and nothing beside it is that member, whatever it is. */
	if (json_array_size(list) == 1 && json_object_size(schema) == 1) {
		r = json_schema_build(s, json_array_get(list, 0), &first, &member);
		if (!r)
			fprintf(f, "s%u", member);
		return r;
	}
	r = json_schema_merge(s, schema, at, &merged);
	if (r)
		return r;
	r = json_schema_object(s, merged, at, rule, f);
	json_decref(merged);
	return r;
}

/* ~1 and ~0 of a pointer's step undone, in place. */
static void unescape(char *step)
{
	char *to = step;

	for (; *step; step++) {
		*to = *step;
		if (step[0] == '~' && (step[1] == '0' || step[1] == '1'))
			*to = *++step == '0' ? '~' : '/';
		to++;
	}
	*to = '\0';
}

int json_schema_find(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	json_t **ret_schema)
{
	const char *pointer = json_string_value(json_object_get(schema, "$ref"));
	json_t *found = NULL, *defs = NULL;

	if (!pointer)
		return json_schema_fail(s, at, "$ref", "expected a string");
	if (strcmp(pointer, "#") == 0)
		found = s->root;
	if (strncmp(pointer, "#/$defs/", 8) == 0)
		defs = json_object_get(s->root, "$defs");
	else if (strncmp(pointer, "#/definitions/", 14) == 0)
		defs = json_object_get(s->root, "definitions");
	else if (!found)
		return json_schema_fail(s, at, "$ref",
			"expected #, #/$defs/NAME or #/definitions/NAME, found %.*s",
			json_schema_cut(pointer), pointer);
	if (!found) {
		_cleanup_(cleanup_free)
		char *name = strdup(pointer + (pointer[2] == '$' ? 8 : 14));
		if (!name)
			return -ENOMEM;
		if (strpbrk(name, "/%"))
			return json_schema_fail(s, at, "$ref",
				"expected one name without %% behind %s, found %.*s",
				pointer[2] == '$' ? "$defs" : "definitions", json_schema_cut(name),
				name);
		unescape(name);
		found = json_object_get(defs, name);
	}
	if (!found)
		return json_schema_fail(s, at, "$ref",
			"expected a schema that is there, found %.*s", json_schema_cut(pointer),
			pointer);
	*ret_schema = found;
	return 0;
}

/* The rule of what $ref names is written later, once. */
static int write_ref(
	struct json_schema *s, json_t *schema, const struct json_schema_place *at, FILE *f)
{
	const char *pointer = json_string_value(json_object_get(schema, "$ref"));
	json_t *found;
	uint32_t i = 0;
	int r = check_only(s, schema, at, "$ref", "$ref");

	if (!r)
		r = json_schema_find(s, schema, at, &found);
	if (r)
		return r;
	while (i < s->n_refs && strcmp(s->refs[i].pointer, pointer) != 0)
		i++;
	if (i == s->n_refs) {
		if (i == JSON_SCHEMA_MAX_REFS)
			return json_schema_fail(s, at, "$ref",
				"expected at most %d schemas that "
				"are referred to",
				JSON_SCHEMA_MAX_REFS);
		s->refs[i].pointer = strdup(pointer);
		if (!s->refs[i].pointer)
			return -ENOMEM;
		s->refs[i].schema = found;
		s->n_refs++;
	}
	fprintf(f, "d%u", i);
	return 0;
}

static int write_schema(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	uint32_t rule, FILE *f)
{
	if (json_is_true(schema)) {
		fputs("value", f);
		return 0;
	}
	if (json_is_false(schema))
		return json_schema_fail(s, at, NULL, "expected a schema that allows something");
	if (!json_is_object(schema))
		return json_schema_fail(s, at, NULL, "expected a schema: an object or a boolean");
	if (json_object_get(schema, "$ref"))
		return write_ref(s, schema, at, f);
	if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
		return write_values(s, schema, at, f);
	if (json_object_get(schema, "anyOf"))
		return write_union(s, schema, at, "anyOf", f);
	if (json_object_get(schema, "oneOf"))
		return write_union(s, schema, at, "oneOf", f);
	if (json_object_get(schema, "allOf"))
		return write_all_of(s, schema, at, rule, f);
	return write_types(s, schema, at, rule, f);
}

int json_schema_build(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	uint32_t *ret_rule)
{
	_cleanup_(cleanup_free)
	char *text = NULL;
	uint32_t rule = s->n_rules++;
	size_t n_bytes;
	FILE *f;

	if (s->depth == JSON_SCHEMA_MAX_DEPTH)
		return json_schema_fail(
			s, at, NULL, "expected schemas at most %d deep", JSON_SCHEMA_MAX_DEPTH);
	f = open_memstream(&text, &n_bytes);
	if (!f)
		return -ENOMEM;
	s->depth++;
	int r = write_schema(s, schema, at, rule, f);
	s->depth--;
	if (fclose(f) && !r)
		r = -ENOMEM;
	if (r)
		return r;
	fprintf(s->out, "s%u ::= %s\n", rule, text);
	if (ftell(s->out) > GBNF_MAX_MADE_BYTES)
		return err_set(s->err, E2BIG,
			"json_schema: expected a grammar of at most %d bytes, found more",
			GBNF_MAX_MADE_BYTES);
	*ret_rule = rule;
	return 0;
}

static int build_all(struct json_schema *s)
{
	uint32_t rule;
	int r;

	fputs(preamble, s->out);
	r = json_schema_build(s, s->root, NULL, &rule);
	if (r)
		return r;
	fprintf(s->out, "root ::= s%u\n", rule);
	/* Building one may add others. */
	for (uint32_t i = 0; i < s->n_refs; i++) {
		const struct json_schema_place at = {.key = s->refs[i].pointer};

		r = json_schema_build(s, s->refs[i].schema, &at, &rule);
		if (r)
			return r;
		fprintf(s->out, "d%u ::= s%u\n", i, rule);
	}
	return 0;
}

static void json_schema_fini(struct json_schema *s)
{
	json_decref(s->root);
	for (uint32_t i = 0; i < s->n_refs; i++)
		free(s->refs[i].pointer);
	free(s->refs);
	if (s->out)
		fclose(s->out);
}

int json_schema_write(const char *text, uint64_t n_bytes, struct err *ret_err, char **ret_grammar,
	uint64_t *ret_n_bytes)
{
	_cleanup_(cleanup_free)
	char *grammar = NULL;
	size_t n_grammar;
	struct json_schema s = {.err = ret_err};
	json_error_t why;

	s.root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
	if (!s.root)
		return err_set(ret_err, EINVAL, "json_schema:%d:%d: expected JSON, found %s",
			why.line, why.column, why.text);
	s.refs = calloc(JSON_SCHEMA_MAX_REFS, sizeof(*s.refs));
	s.out = open_memstream(&grammar, &n_grammar);
	int r = s.refs && s.out ? build_all(&s) : -ENOMEM;
	if (!r && fflush(s.out))
		r = -ENOMEM;
	json_schema_fini(&s);
	if (r)
		return r;
	*ret_grammar = TAKE_PTR(grammar);
	*ret_n_bytes = n_grammar;
	return 0;
}

int json_schema_compile(
	const char *text, uint64_t n_bytes, struct err *ret_err, struct gbnf **ret_gbnf)
{
	_cleanup_(cleanup_free)
	char *grammar = NULL;
	uint64_t n_grammar;
	int r = json_schema_write(text, n_bytes, ret_err, &grammar, &n_grammar);

	if (r)
		return r;
	r = gbnf_parse(grammar, n_grammar, GBNF_MAX_MADE_BYTES, ret_err, ret_gbnf);
	/* What a schema can do to its grammar: refer to itself with nothing between, or for ever.
	 */
	if (r == -EINVAL || r == -E2BIG)
		err_prefix(ret_err, "json_schema: as a grammar");
	return r;
}
