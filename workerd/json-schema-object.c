/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "workerd/gbnf.h"
#include "workerd/json-schema-internal.h"
#include "workerd/json-schema.h"
#include "workerd/utf8-class.h"

struct object {
	struct json_schema *s;
	const struct json_schema_place *at;
	uint32_t rule;
	json_t *properties; /* NULL: none */
	json_t *required;
	json_t *additional; /* NULL: none */
	uint32_t additional_rule;
	uint32_t n_nodes; /* of the trie of names */
};

static bool is_required(const struct object *o, const char *name)
{
	json_t *value;
	size_t i;

	json_array_foreach(
		o->required, i, value) if (strcmp(json_string_value(value), name) == 0) return true;
	return false;
}

static int check_required(const struct object *o)
{
	json_t *value;
	size_t i;

	if (o->required && !json_is_array(o->required))
		return json_schema_fail(o->s, o->at, "required", "expected an array");
	json_array_foreach(o->required, i, value)
	{
		const char *name = json_string_value(value);

		if (!name)
			return json_schema_fail(o->s, o->at, "required", "expected strings");
		if (!json_object_get(o->properties, name))
			return json_schema_fail(o->s, o->at, "required",
				"expected names of properties, found \"%.*s\"",
				json_schema_cut(name), name);
	}
	/* Each property is looked for among them. */
	if (json_array_size(o->required) > json_object_size(o->properties))
		return json_schema_fail(o->s, o->at, "required",
			"expected at most the %zu properties, each once, found %zu names",
			json_object_size(o->properties), json_array_size(o->required));
	return 0;
}

/*
 * Names that are not among the properties', as a trie: in each node the characters that go on to
 * another, any other and what follows, and the end where no name ends.
 */
struct names {
	const char **list; /* [n] sorted */
	size_t n;
};

static bool is_raw(uint32_t code)
{
	return code >= 0x20 && code != '"' && code != '\\' && code != 0x7f;
}

/* Of those that are alike up to n_bytes; some may end there. */
static int write_node(struct object *o, const char *const *list, size_t n, size_t n_bytes)
{
	FILE *f;
	_cleanup_(cleanup_free)
	char *text = NULL;
	size_t n_text;
	uint32_t node = o->n_nodes++;
	bool is_name = false;
	int r = 0;

	f = open_memstream(&text, &n_text);
	if (!f)
		return -ENOMEM;
	/* U+007F is no raw character: the class is never empty, and the same for all. */
	fputs("[^\\\"\\\\\\x00-\\x1f\\x7f", f);
	for (size_t i = 0; i < n; i++) {
		uint32_t code;

		if (!list[i][n_bytes])
			is_name = true;
		else if (utf8_class_decode(list[i] + n_bytes, strlen(list[i] + n_bytes), &code) &&
			 is_raw(code))
			fprintf(f, "\\U%08X", code);
	}
	fputs("] raw*", f);
	if (!is_name)
		fputs(" | \"\"", f);
	for (size_t i = 0, k; !r && i < n; i = k) {
		uint32_t code = 0, n_char = 0;

		if (list[i][n_bytes])
			n_char = utf8_class_decode(
				list[i] + n_bytes, strlen(list[i] + n_bytes), &code);
		for (k = i + 1; k < n && n_char; k++)
			if (strncmp(list[k] + n_bytes, list[i] + n_bytes, n_char) != 0)
				break;
		/* A name with a character that has to be escaped is not met by one without. */
		if (!n_char || !is_raw(code))
			continue;
		fputs(" | ", f);
		json_schema_write_literal(f, list[i] + n_bytes, n_char);
		fprintf(f, " s%u-x%u", o->rule, o->n_nodes);
		r = write_node(o, list + i, k - i, n_bytes + n_char);
	}
	fclose(f);
	if (!r)
		fprintf(o->s->out, "s%u-x%u ::= %s\n", o->rule, node, text);
	return r;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The rule s<N>-p: another property. */
static int write_additional(struct object *o)
{
	_cleanup_(cleanup_free)
	const char **list = calloc(json_object_size(o->properties) + 1, sizeof(*list));
	size_t n = 0;
	const char *name;
	json_t *value;
	const struct json_schema_place at = {.up = o->at, .key = "additionalProperties"};
	uint32_t rule;

	if (!list)
		return -ENOMEM;
	json_object_foreach(o->properties, name, value)
	{
		if (strlen(name) > JSON_SCHEMA_MAX_NAME_BYTES)
			return json_schema_fail(o->s, o->at, "properties",
				"expected names of at most %d bytes beside "
				"additionalProperties",
				JSON_SCHEMA_MAX_NAME_BYTES);
		list[n++] = name;
	}
	qsort(list, n, sizeof(*list), compare_names);
	int r = json_schema_build(o->s, o->additional, &at, &rule);
	if (!r)
		r = write_node(o, list, n, 0);
	if (!r)
		fprintf(o->s->out, "s%u-p ::= \"\\\"\" s%u-x0 \"\\\":\" ws s%u\n", o->rule, o->rule,
			rule);
	return r;
}

/* Behind the last property; has: is there one before? */
static void write_end(struct object *o, size_t i, int has)
{
	fprintf(o->s->out, "s%u-%zu-%d ::= ", o->rule, i, has);
	if (has && o->additional)
		fprintf(o->s->out, "(\",\" ws s%u-p)* ws\n", o->rule);
	else if (has)
		fputs("ws\n", o->s->out);
	else if (o->additional)
		fprintf(o->s->out, "(s%u-p (\",\" ws s%u-p)* ws)?\n", o->rule, o->rule);
	else
		fputs("\"\"\n", o->s->out);
}

/*
 * s<N>-<i>-<has> is what may come from the property i on: it, behind a comma where there is one
 * before, or (where it need not be there) what may come from the next on.
 */
static int write_properties(struct object *o)
{
	const struct json_schema_place in = {.up = o->at, .key = "properties"};
	FILE *out = o->s->out;
	const char *name;
	json_t *value;
	size_t i = 0;
	uint32_t rule;

	json_object_foreach(o->properties, name, value)
	{
		const struct json_schema_place at = {.up = &in, .key = name};
		_cleanup_(json_decrefp)
		json_t *key = json_string(name);
		int r = key ? json_schema_build(o->s, value, &at, &rule) : -ENOMEM;

		if (r)
			return r;
		fprintf(out, "s%u-%zu ::= ", o->rule, i);
		r = json_schema_write_value(out, key);
		if (r)
			return r;
		fprintf(out, " \":\" ws s%u\n", rule);
		for (int has = 0; has < 2; has++) {
			fprintf(out, "s%u-%zu-%d ::= %ss%u-%zu s%u-%zu-1", o->rule, i, has,
				has ? "\",\" ws " : "", o->rule, i, o->rule, i + 1);
			if (!is_required(o, name))
				fprintf(out, " | s%u-%zu-%d", o->rule, i + 1, has);
			fputs("\n", out);
		}
		i++;
	}
	write_end(o, i, 0);
	write_end(o, i, 1);
	return 0;
}

int json_schema_object(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	uint32_t rule, FILE *f)
{
	struct object o = {
		.s = s,
		.at = at,
		.rule = rule,
		.properties = json_object_get(schema, "properties"),
		.required = json_object_get(schema, "required"),
		.additional = json_object_get(schema, "additionalProperties"),
	};
	int r;

	if (o.properties && !json_is_object(o.properties))
		return json_schema_fail(s, at, "properties", "expected an object");
	if (json_object_size(o.properties) > JSON_SCHEMA_MAX_PROPERTIES)
		return json_schema_fail(
			s, at, "properties", "expected at most %d", JSON_SCHEMA_MAX_PROPERTIES);
	r = check_required(&o);
	if (r)
		return r;
	if (!o.properties && !o.additional) {
		fputs("object", f);
		return 0;
	}
	if (json_is_false(o.additional))
		o.additional = NULL;
	if (o.additional)
		r = write_additional(&o);
	if (!r)
		r = write_properties(&o);
	if (!r)
		fprintf(f, "\"{\" ws s%u-0-0 \"}\"", rule);
	return r;
}

/* An array's lengths, with what the schemas of its items allow. */
static int get_lengths(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	uint64_t n_prefix, bool has_rest, uint64_t *ret_min, uint64_t *ret_max)
{
	uint64_t min = 0, max = UINT64_MAX;
	int r = json_schema_get_count(s, schema, at, "minItems", &min);

	if (!r)
		r = json_schema_get_count(s, schema, at, "maxItems", &max);
	if (r)
		return r;
	if (min > GBNF_MAX_REPETITION)
		return json_schema_fail(
			s, at, "minItems", "expected at most %d", GBNF_MAX_REPETITION);
	if (!has_rest && max > n_prefix)
		max = n_prefix;
	if (max != UINT64_MAX && max > GBNF_MAX_REPETITION)
		max = GBNF_MAX_REPETITION;
	if (min > max)
		return json_schema_fail(s, at, "minItems",
			"expected at most as many as there can be, %llu", (unsigned long long)max);
	*ret_min = min;
	*ret_max = max;
	return 0;
}

static int write_prefix(struct json_schema *s, json_t *prefix, const struct json_schema_place *at,
	uint64_t n, FILE *f)
{
	const struct json_schema_place in = {.up = at, .key = "prefixItems"};

	for (size_t i = 0; i < n; i++) {
		const struct json_schema_place place = {.up = &in, .index = i};
		uint32_t rule;
		int r = json_schema_build(s, json_array_get(prefix, i), &place, &rule);

		if (r)
			return r;
		fprintf(f, "%ss%u ", i ? "\",\" ws " : "", rule);
	}
	return 0;
}

int json_schema_array(
	struct json_schema *s, json_t *schema, const struct json_schema_place *at, FILE *f)
{
	json_t *items = json_object_get(schema, "items");
	json_t *prefix = json_object_get(schema, "prefixItems");
	const struct json_schema_place in = {.up = at, .key = "items"};
	uint64_t n_prefix = json_array_size(prefix), min = 0, max = 0;
	bool has_rest = items ? !json_is_false(items) : !prefix;
	char item[32] = "value";
	uint32_t rule;

	if (prefix && !n_prefix)
		return json_schema_fail(s, at, "prefixItems", "expected an array of schemas");
	int r = get_lengths(s, schema, at, n_prefix, has_rest, &min, &max);
	if (!r && items && has_rest) {
		r = json_schema_build(s, items, &in, &rule);
		snprintf(item, sizeof(item), "s%u", rule);
	}
	if (r)
		return r;
	if (n_prefix > max)
		n_prefix = max;
	fputs("\"[\" ws ", f);
	r = write_prefix(s, prefix, at, n_prefix, f);
	if (r)
		return r;
	if (n_prefix) {
		if (has_rest && max > n_prefix) {
			fprintf(f, "(\",\" ws %s)", item);
			json_schema_write_bounds(f, min, max, n_prefix);
		}
		fputs(" ws", f);
	} else if (max) {
		fprintf(f, "(%s (\",\" ws %s)", item, item);
		json_schema_write_bounds(f, min, max, 1);
		fprintf(f, " ws)%s", min ? "" : "?");
	}
	fputs(" \"]\"", f);
	return 0;
}
