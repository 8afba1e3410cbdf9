/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "workerd/json-schema-internal.h"
#include "workerd/json-schema.h"

enum {
	MAX_MEMBERS = 1024,
	/* Values looked at, of one text: members may refer to the same long list again and again.
	 */
	MAX_VALUES = 1 << 18,
};

/* What allOf's members have in all. */
struct merge {
	struct json_schema *s;
	json_t *properties;
	json_t *required; /* an object whose keys they are */
	uint32_t depth;
	uint32_t n_members;
};

static int spend(
	struct merge *m, uint64_t n_values, const struct json_schema_place *at, const char *key)
{
	if (n_values > MAX_VALUES - m->s->n_merged)
		return json_schema_fail(m->s, at, key,
			"expected at most %d values in all members of allOf, found more",
			MAX_VALUES);
	m->s->n_merged += (uint32_t)n_values;
	return 0;
}

/* Deep as the parser allows. */
static uint64_t count_values(json_t *value)
{
	const char *key;
	json_t *member;
	uint64_t n = 1;
	size_t i;

	if (json_is_object(value))
		json_object_foreach(value, key, member) n += count_values(member);
	else
		json_array_foreach(value, i, member) n += count_values(member);
	return n;
}

static int merge_properties(struct merge *m, json_t *properties, const struct json_schema_place *at)
{
	const char *name;
	json_t *value;

	if (!json_is_object(properties))
		return json_schema_fail(m->s, at, "properties", "expected an object");
	json_object_foreach(properties, name, value)
	{
		json_t *other = json_object_get(m->properties, name);
		int r = spend(
			m, other && other != value ? count_values(value) : 1, at, "properties");

		if (r)
			return r;
		if (other && !json_equal(other, value))
			return json_schema_fail(m->s, at, "properties",
				"expected \"%.*s\" in one member of allOf, found another",
				json_schema_cut(name), name);
		if (!other && json_object_set(m->properties, name, value))
			return -ENOMEM;
	}
	return 0;
}

static int merge_required(struct merge *m, json_t *required, const struct json_schema_place *at)
{
	json_t *name;
	size_t i;

	if (!json_is_array(required))
		return json_schema_fail(m->s, at, "required", "expected an array");
	int r = spend(m, json_array_size(required), at, "required");
	if (r)
		return r;
	json_array_foreach(required, i, name)
	{
		if (!json_is_string(name))
			return json_schema_fail(m->s, at, "required", "expected strings");
		if (json_object_set(m->required, json_string_value(name), name))
			return -ENOMEM;
	}
	return 0;
}

static int merge_one(struct merge *m, json_t *schema, const struct json_schema_place *at);

static int merge_members(struct merge *m, json_t *list, const struct json_schema_place *at)
{
	const struct json_schema_place in = {.up = at, .key = "allOf"};
	json_t *member;
	size_t i;

	if (!json_array_size(list))
		return json_schema_fail(m->s, at, "allOf", "expected an array of schemas");
	json_array_foreach(list, i, member)
	{
		const struct json_schema_place place = {.up = &in, .index = i};
		int r = merge_one(m, member, &place);

		if (r)
			return r;
	}
	return 0;
}

static int merge_ref(struct merge *m, json_t *schema, const struct json_schema_place *at)
{
	json_t *found = NULL;
	int r = json_schema_find(m->s, schema, at, &found);

	return r ? r : merge_one(m, found, at);
}

static int merge_keyword(struct merge *m, json_t *schema, const char *key, json_t *value,
	const struct json_schema_place *at)
{
	if (json_schema_is_annotation(key))
		return 0;
	if (strcmp(key, "properties") == 0)
		return merge_properties(m, value, at);
	if (strcmp(key, "required") == 0)
		return merge_required(m, value, at);
	if (strcmp(key, "allOf") == 0)
		return merge_members(m, value, at);
	if (strcmp(key, "$ref") == 0)
		return merge_ref(m, schema, at);
	if (strcmp(key, "type") == 0 && json_is_string(value) &&
		strcmp(json_string_value(value), "object") == 0)
		return 0;
	return json_schema_fail(m->s, at, key,
		"not supported with allOf, which is for objects with properties and required");
}

static int merge_one(struct merge *m, json_t *schema, const struct json_schema_place *at)
{
	const char *key;
	json_t *value;
	int r = 0;

	if (!json_is_object(schema))
		return json_schema_fail(m->s, at, NULL, "expected a schema of an object");
	/* Members that refer to each other would be gone round for ever. */
	if (m->depth == JSON_SCHEMA_MAX_DEPTH || m->n_members == MAX_MEMBERS)
		return json_schema_fail(m->s, at, NULL,
			"expected at most %d members of allOf, %d deep", MAX_MEMBERS,
			JSON_SCHEMA_MAX_DEPTH);
	r = spend(m, 1, at, NULL);
	if (r)
		return r;
	m->depth++;
	m->n_members++;
	json_object_foreach(schema, key, value)
	{
		r = merge_keyword(m, schema, key, value, at);
		if (r)
			break;
	}
	m->depth--;
	return r;
}

int json_schema_merge(struct json_schema *s, json_t *schema, const struct json_schema_place *at,
	json_t **ret_merged)
{
	_cleanup_(json_decrefp)
	json_t *properties = json_object();
	_cleanup_(json_decrefp)
	json_t *required = json_array();
	_cleanup_(json_decrefp)
	json_t *names = json_object();
	struct merge m = {.s = s, .properties = properties, .required = names};
	json_t *merged, *value;
	const char *name;
	int r;

	if (!properties || !required || !names)
		return -ENOMEM;
	r = merge_one(&m, schema, at);
	if (r)
		return r;
	json_object_foreach(
		names, name, value) if (json_array_append(required, value)) return -ENOMEM;
	merged = json_pack("{s:s, s:O, s:O}", "type", "object", "properties", properties,
		"required", required);
	if (!merged)
		return -ENOMEM;
	*ret_merged = merged;
	return 0;
}
