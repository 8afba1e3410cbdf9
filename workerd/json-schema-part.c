/* SPDX-License-Identifier: Apache-2.0 */
/* What schemas of all types read and write. */
#include <errno.h>
#include <string.h>

#include "workerd/json-schema-internal.h"

bool json_schema_is_annotation(const char *key)
{
	static const char *const names[] = {"title", "description", "default", "examples",
		"$schema", "$id", "$comment", "$defs", "definitions"};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strcmp(names[i], key) == 0)
			return true;
	return false;
}

int json_schema_get_count(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	const char *key, uint64_t *ret_n)
{
	json_t *value = json_object_get(schema, key);

	if (!value)
		return 0;
	/* 2.0 is a whole number too. */
	double real = json_is_number(value) ? json_number_value(value) : -1;
	if (!(real >= 0 && real <= 1e15) || real != (double)(uint64_t)real)
		return json_schema_fail(s, at, key, "expected a whole number from 0 to 1e15");
	*ret_n = (uint64_t)real;
	return 0;
}

void json_schema_write_bounds(FILE *f, uint64_t min, uint64_t max, uint64_t n)
{
	uint64_t low = min > n ? min - n : 0;

	if (max == UINT64_MAX)
		fprintf(f, "{%llu,}", (unsigned long long)low);
	else
		fprintf(f, "{%llu,%llu}", (unsigned long long)low, (unsigned long long)(max - n));
}

void json_schema_write_literal(FILE *f, const char *bytes, size_t n_bytes)
{
	putc('"', f);
	for (size_t i = 0; i < n_bytes; i++) {
		if (bytes[i] == '"' || bytes[i] == '\\')
			putc('\\', f);
		putc(bytes[i], f);
	}
	putc('"', f);
}

int json_schema_write_value(FILE *f, const json_t *value)
{
	_cleanup_(cleanup_free)
	char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

	if (!text)
		return -ENOMEM;
	json_schema_write_literal(f, text, strlen(text));
	return 0;
}
