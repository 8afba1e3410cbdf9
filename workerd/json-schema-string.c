/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "workerd/gbnf.h"
#include "workerd/json-schema-internal.h"
#include "workerd/json-schema.h"

static int write_format(
	struct json_schema *s, json_t *format, const struct json_schema_place *at, FILE *f)
{
	static const struct {
		const char *name;
		const char *expression;
	} formats[] = {{"date", "\"\\\"\" date \"\\\"\""}, {"time", "\"\\\"\" time \"\\\"\""},
		{"date-time", "\"\\\"\" date \"T\" time \"\\\"\""},
		{"uuid", "\"\\\"\" uuid \"\\\"\""}};
	const char *name = json_string_value(format);

	for (size_t i = 0; name && i < ARRAY_SIZE(formats); i++)
		if (strcmp(name, formats[i].name) == 0) {
			fputs(formats[i].expression, f);
			return 0;
		}
	return json_schema_fail(s, at, "format",
		"expected \"date\", \"time\", \"date-time\" or \"uuid\", found %.*s",
		name ? json_schema_cut(name) : 9, name ? name : "no string");
}

static int write_lengths(
	struct json_schema *s, json_t *schema, const struct json_schema_place *at, FILE *f)
{
	uint64_t min = 0, max = UINT64_MAX;
	int r = json_schema_get_count(s, schema, at, "minLength", &min);

	if (!r)
		r = json_schema_get_count(s, schema, at, "maxLength", &max);
	if (r)
		return r;
	if (min > GBNF_MAX_REPETITION)
		return json_schema_fail(
			s, at, "minLength", "expected at most %d", GBNF_MAX_REPETITION);
	if (min > max)
		return json_schema_fail(
			s, at, "minLength", "expected at most maxLength, which is less");
	if (max != UINT64_MAX && max > GBNF_MAX_REPETITION)
		max = GBNF_MAX_REPETITION;
	fputs("\"\\\"\" char", f);
	json_schema_write_bounds(f, min, max, 0);
	fputs(" \"\\\"\"", f);
	return 0;
}

int json_schema_string(
	struct json_schema *s, json_t *schema, const struct json_schema_place *at, FILE *f)
{
	json_t *pattern = json_object_get(schema, "pattern");
	json_t *format = json_object_get(schema, "format");
	bool has_lengths =
		json_object_get(schema, "minLength") || json_object_get(schema, "maxLength");
	int r;

	if ((pattern != NULL) + (format != NULL) + has_lengths > 1)
		return json_schema_fail(s, at, pattern ? "pattern" : "format",
			"expected one of pattern, format, and minLength with maxLength");
	if (format)
		return write_format(s, format, at, f);
	if (has_lengths)
		return write_lengths(s, schema, at, f);
	if (!pattern) {
		fputs("string", f);
		return 0;
	}
	if (!json_is_string(pattern))
		return json_schema_fail(s, at, "pattern", "expected a string");
	fputs("\"\\\"\" ", f);
	r = json_schema_pattern(s, json_string_value(pattern), json_string_length(pattern), at, f);
	fputs(" \"\\\"\"", f);
	return r;
}
