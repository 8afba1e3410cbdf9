/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/unit/earley.h"
#include "workerd/gbnf.h"
#include "workerd/json-schema.h"

static struct gbnf *compile(const char *schema)
{
	struct err e = ERR_NULL;
	struct gbnf *g = NULL;
	int r = json_schema_compile(schema, strlen(schema), &e, &g);

	if (r)
		fail_msg("%s: %d: %s", schema, r, e.text);
	return g;
}

/* yes and no: lists of texts, with NULL behind the last. */
static void expect_texts(const char *schema, const char *const *yes, const char *const *no)
{
	struct gbnf *g = compile(schema);

	for (; *yes; yes++)
		if (!earley_matches(g, *yes, strlen(*yes)))
			fail_msg("%s: does not have %s", schema, *yes);
	for (; *no; no++)
		if (earley_matches(g, *no, strlen(*no)))
			fail_msg("%s: has %s", schema, *no);
	gbnf_free(g);
}

static void expect_err(const char *schema, int code, const char *sentence)
{
	struct err e = ERR_NULL;
	struct gbnf *g = NULL;

	assert_int_equal(json_schema_compile(schema, strlen(schema), &e, &g), code);
	assert_null(g);
	assert_string_equal(e.text, sentence);
}

#define TEXTS(...)                              \
	(const char *const[])                   \
	{                                       \
		__VA_ARGS__ __VA_OPT__(, ) NULL \
	}

static void test_any_value(void **state)
{
	static const char *const any[] = {"{}", "true",
		("{\"title\":\"x\",\"description\":\"x\",\"default\":1,\"examples\":[],\"$schema\":"
		 "\"x\",\"$id\":\"x\",\"$comment\":\"x\",\"$defs\":{\"q\":{\"nonsense\":1}}}")};
	(void)state;

	for (size_t i = 0; i < ARRAY_SIZE(any); i++)
		expect_texts(any[i],
			TEXTS("null", "true", "-1.5e3", "\"a\\u00e9\\n\"", "[1, \"x\",[]]",
				"{\"a\":{\"b\": [null]}}", "{\n  \"a\":1,\n  \"b\":2\n}"),
			TEXTS("", "nul", "01", "\"a", "[1,]", "{a:1}", "\"\\ud800\"", "\"\\x\"",
				"\"\n\"", "{\"a\"}", "1 "));
}

static void test_types(void **state)
{
	(void)state;
	expect_texts("{\"type\":\"string\"}", TEXTS("\"\"", "\"é\""), TEXTS("1", "null"));
	expect_texts("{\"type\":\"integer\"}", TEXTS("0", "-12", "999999999999999"),
		TEXTS("1.0", "-0", "007", "1000000000000000"));
	expect_texts(
		"{\"type\":\"number\"}", TEXTS("0", "-1.25", "1e10", "2E-3"), TEXTS(".5", "1."));
	expect_texts("{\"type\":\"boolean\"}", TEXTS("true", "false"), TEXTS("null"));
	expect_texts("{\"type\":\"null\"}", TEXTS("null"), TEXTS("0"));
	expect_texts("{\"type\":[\"integer\",\"null\"],\"minimum\":3}", TEXTS("3", "null"),
		TEXTS("2", "\"\""));
	expect_texts("{\"type\":[\"integer\",\"number\"]}", TEXTS("1", "1.5"), TEXTS("null"));
	expect_texts("{\"type\":\"object\"}", TEXTS("{}", "{\"a\":1}"), TEXTS("[]"));
	expect_texts("{\"type\":\"array\"}", TEXTS("[]", "[1, {}]"), TEXTS("{}"));
}

static void test_properties_keep_their_order(void **state)
{
	static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
				     "\"integer\"},\"b\":true,\"c\":{\"type\":\"null\"}},"
				     "\"required\":[\"b\"]}";
	(void)state;

	expect_texts(schema,
		TEXTS("{\"b\":1}", "{\"a\":1,\"b\":2}", "{\"b\":[],\"c\":null}",
			"{ \"a\": 1, \"b\": {}, \"c\": null }"),
		TEXTS("{}", "{\"a\":1}", "{\"b\":1,\"a\":1}", "{\"b\":1,\"d\":1}", "{\"b\":1,}",
			"{,\"b\":1}", "{\"a\":null,\"b\":1}", "{\"b\":1,\"b\":1}"));
	expect_texts("{\"properties\":{\"a\":true,\"b\":true}}",
		TEXTS("{}", "{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":1}"),
		TEXTS("{\"a\":1\"b\":1}", "{,}", "1"));
	expect_texts("{\"properties\":{\"a\\\"\\n\\\\é\":true}}",
		TEXTS("{\"a\\\"\\n\\\\é\":1}", "{}"), TEXTS("{\"a\":1}"));
}

static void test_additional_properties_have_other_names(void **state)
{
	(void)state;
	expect_texts("{\"properties\":{\"ab\":{\"type\":\"null\"},\"abcd\":{\"type\":\"null\"}},"
		     "\"additionalProperties\":{\"type\":\"integer\"}}",
		TEXTS("{}", "{\"ab\":null}", "{\"ab\":null,\"abcd\":null,\"x\":1}", "{\"a\":1}",
			"{\"abc\":1, \"abcde\":2}", "{\"\":1}", "{\"é\":1}", "{\"abx\":1}"),
		TEXTS("{\"ab\":1}", "{\"abcd\":1}", "{\"x\":1,\"ab\":null}", "{\"x\":null}",
			"{\"\\u0061b\":1}"));
	expect_texts("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
		TEXTS("{}", "{\"a\":1}", "{\"a\":1,\"b\":2}"), TEXTS("{\"a\":null}"));
	expect_texts("{\"type\":\"object\",\"additionalProperties\":false}", TEXTS("{}", "{ }"),
		TEXTS("{\"a\":1}"));
	expect_texts("{\"properties\":{\"é\":true,\"è\":true,\"q\\\"\":true},\"required\":[\"é\"],"
		     "\"additionalProperties\":true}",
		TEXTS("{\"é\":1}", "{\"é\":1,\"ê\":2}", "{\"é\":1,\"q\":2}"),
		TEXTS("{\"ê\":1}", "{\"é\":1,\"é\":2}"));
}

static void test_arrays(void **state)
{
	(void)state;
	expect_texts("{\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
		TEXTS("[1,2]", "[1, 2, 3]"), TEXTS("[]", "[1]", "[1,2,3,4]", "[1,null]"));
	expect_texts("{\"type\":\"array\",\"maxItems\":0}", TEXTS("[]", "[ ]"), TEXTS("[1]"));
	expect_texts("{\"type\":\"array\",\"maxItems\":1}", TEXTS("[]", "[1]"), TEXTS("[1,2]"));
	expect_texts("{\"type\":\"array\",\"minItems\":1}", TEXTS("[1]", "[1,2,3]"), TEXTS("[]"));
	expect_texts("{\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"integer\"}]}",
		TEXTS("[null,1]"), TEXTS("[null]", "[1,null]", "[null,1,2]", "[]"));
	expect_texts("{\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"type\":\"integer\"},"
		     "\"minItems\":2,\"maxItems\":3}",
		TEXTS("[null,1]", "[null,1,2]"), TEXTS("[null]", "[null,1,2,3]", "[1,2]"));
	expect_texts("{\"prefixItems\":[{\"type\":\"null\"}],\"items\":false}", TEXTS("[null]"),
		TEXTS("[null,1]", "[]"));
	expect_texts("{\"prefixItems\":[true,true],\"maxItems\":1}", TEXTS("[1]"), TEXTS("[1,2]"));
	expect_texts("{\"items\":false}", TEXTS("[]"), TEXTS("[1]"));
	expect_texts("{\"items\":{\"type\":\"null\"}}", TEXTS("[]", "[null,null]"), TEXTS("[1]"));
}

static void test_values(void **state)
{
	(void)state;
	expect_texts("{\"enum\":[1,\"a\\\"b\\\\\",null,{\"x\":[1.5,true]},\"é\\u0001\"]}",
		TEXTS("1", "\"a\\\"b\\\\\"", "null", "{\"x\":[1.5,true]}", "\"é\\u0001\""),
		TEXTS("2", "\"a\""));
	expect_texts("{\"type\":\"string\",\"enum\":[1,\"a\"]}", TEXTS("\"a\""), TEXTS("1"));
	expect_texts("{\"const\":\"x\"}", TEXTS("\"x\""), TEXTS("\"y\""));
	expect_texts("{\"const\":null}", TEXTS("null"), TEXTS("\"y\""));
}

static void test_unions_and_merges(void **state)
{
	(void)state;
	expect_texts("{\"anyOf\":[{\"type\":\"null\"},{\"const\":3}],\"title\":\"t\"}",
		TEXTS("null", "3"), TEXTS("4"));
	expect_texts(
		"{\"oneOf\":[{\"type\":\"null\"},{\"const\":3}]}", TEXTS("null", "3"), TEXTS("4"));
	expect_texts("{\"allOf\":[{\"type\":\"string\",\"maxLength\":1}]}", TEXTS("\"a\""),
		TEXTS("\"ab\""));
	expect_texts(
		"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"required\":["
		"\"a\"],\"allOf\":[{\"$ref\":\"#/$defs/b\"},{\"properties\":{\"c\":true},"
		"\"required\":[\"c\",\"b\"]}],\"$defs\":{\"b\":{\"properties\":{\"b\":{\"type\":"
		"\"null\"}}}}}",
		TEXTS("{\"a\":null,\"b\":null,\"c\":1}"),
		TEXTS("{\"a\":null,\"b\":null}", "{\"a\":null,\"c\":1}", "{}"));
}

static void test_references(void **state)
{
	(void)state;
	expect_texts(
		"{\"$ref\":\"#/$defs/tree\",\"$defs\":{\"tree\":{\"properties\":{\"v\":{\"type\":"
		"\"integer\"},\"l\":{\"$ref\":\"#/$defs/tree\"},\"r\":{\"$ref\":\"#/$defs/tree\"}},"
		"\"required\":[\"v\"]}}}",
		TEXTS("{\"v\":1}", "{\"v\":1,\"l\":{\"v\":2,\"r\":{\"v\":3}},\"r\":{\"v\":4}}"),
		TEXTS("{}", "{\"v\":1,\"l\":2}"));
	expect_texts("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", TEXTS("[]", "[[],[[]]]"),
		TEXTS("[1]"));
	expect_texts("{\"items\":{\"$ref\":\"#/definitions/a~1b~0\"},\"definitions\":{\"a/b~\":{"
		     "\"const\":1}}}",
		TEXTS("[1,1]"), TEXTS("[2]"));
}

static void test_strings(void **state)
{
	(void)state;
	expect_texts("{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}",
		TEXTS("\"a\"", "\"é漢\"", "\"😀\\n\"", "\"\\u00e9\\\\\""),
		TEXTS("\"\"", "\"abc\"", "\"\\ud83d\\ude00\""));
	expect_texts("{\"minLength\":2}", TEXTS("\"ab\"", "\"abcdef\""), TEXTS("\"a\"", "1"));
	expect_texts("{\"maxLength\":100000}", TEXTS("\"\"", "\"ab\""), TEXTS("1"));
	expect_texts("{\"format\":\"date\"}",
		TEXTS("\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\"", "\"2023-04-30\""),
		TEXTS("\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"2023-13-01\"",
			"\"2023-00-10\"", "\"2023-01-00\"", "\"2023-1-1\"", "\"2023-01-32\""));
	expect_texts("{\"format\":\"time\"}",
		TEXTS("\"23:59:59Z\"", "\"00:00:00.123+02:00\"", "\"12:30:00-11:30\""),
		TEXTS("\"24:00:00Z\"", "\"12:60:00Z\"", "\"12:00:00\"", "\"1:00:00Z\""));
	expect_texts("{\"format\":\"date-time\"}", TEXTS("\"2024-02-29T23:59:59Z\""),
		TEXTS("\"2024-02-30T23:59:59Z\"", "\"2024-02-29 23:59:59Z\""));
	expect_texts("{\"format\":\"uuid\"}", TEXTS("\"123e4567-E89b-12d3-a456-426614174000\""),
		TEXTS("\"123e4567e89b12d3a456426614174000\"",
			"\"123e4567-e89b-12d3-a456-42661417400g\""));
}

static void test_patterns(void **state)
{
	(void)state;
	expect_texts("{\"pattern\":\"^[A-Z]{2}-\\\\d+(x|yz)?$\"}",
		TEXTS("\"AB-1\"", "\"ZZ-123yz\""),
		TEXTS("\"A-1\"", "\"AB-\"", "\"AB-1y\"", "\"aB-1\""));
	expect_texts("{\"pattern\":\"^a.c$\"}",
		TEXTS("\"abc\"", "\"a\\\"c\"", "\"a\\\\c\"", "\"aéc\""),
		TEXTS("\"ac\"", "\"a\\nc\""));
	expect_texts("{\"pattern\":\"^[\\\"\\\\\\\\\\\\n\\\\]]$\"}",
		TEXTS("\"\\\"\"", "\"\\\\\"", "\"\\n\"", "\"]\""), TEXTS("\"n\"", "\"\"\""));
	expect_texts("{\"pattern\":\"^[^a\\\"]*$\"}", TEXTS("\"\"", "\"bé\\\\\""),
		TEXTS("\"a\"", "\"\\\"\"", "\"\\u0061\""));
	expect_texts("{\"pattern\":\"^(?:\\\\w|\\\\s|\\\\.)\\\\/\\\\x41\\\\u00e9$\"}",
		TEXTS("\"_/Aé\"", "\"\\t/Aé\"", "\" /Aé\"", "\"./Aé\""), TEXTS("\"-/Aé\""));
	expect_texts("{\"pattern\":\"^\\\\D\\\\W\\\\S$\"}", TEXTS("\"a-b\"", "\"\\\"\\\\b\""),
		TEXTS("\"1-b\"", "\"aab\"", "\"a- \""));
	expect_texts("{\"pattern\":\"^[!-~]$\"}",
		TEXTS("\"!\"", "\"~\"", "\"\\\"\"", "\"\\\\\"", "\"[\""),
		TEXTS("\" \"", "\"\"\"", "\"\\\""));
	expect_texts("{\"pattern\":\"^(a|)b{2,3}c{2,}d{1}$\"}", TEXTS("\"abbccd\"", "\"bbbcccd\""),
		TEXTS("\"abccd\"", "\"bbcd\"", "\"bbccdd\""));
	expect_texts("{\"pattern\":\"^[a-]$\"}", TEXTS("\"a\"", "\"-\""), TEXTS("\"b\""));
	expect_texts("{\"pattern\":\"^$\"}", TEXTS("\"\""), TEXTS("\"a\""));
	expect_texts("{\"pattern\":\"^\\\\$\\\\t$\"}", TEXTS("\"$\\t\""), TEXTS("\"$\""));
}

/* All integers about the bounds, and each bound's neighbours, for bounds of all kinds. */
static void check_range(int64_t low, int64_t high)
{
	char schema[128], text[32];
	struct gbnf *g;

	snprintf(schema, sizeof(schema),
		"{\"type\":\"integer\",\"minimum\":%" PRId64 ",\"maximum\":%" PRId64 "}", low,
		high);
	g = compile(schema);
	for (int64_t base = 0; base < 5; base++)
		for (int64_t i = -120; i <= 120; i++) {
			const int64_t bases[] = {0, low, high, 1000, -1000};
			int64_t n;

			if (__builtin_add_overflow(bases[base], i, &n))
				continue;
			snprintf(text, sizeof(text), "%" PRId64, n);
			if (earley_matches(g, text, strlen(text)) != (n >= low && n <= high))
				fail_msg("%s: %s", schema, text);
		}
	assert_false(earley_matches(g, "-0", 2));
	assert_false(earley_matches(g, "00", 2));
	assert_false(earley_matches(g, "05", 2));
	gbnf_free(g);
}

static void test_integers_have_exact_bounds(void **state)
{
	static const int64_t some[] = {INT64_MIN + 1, -1000000000000000000, -12345, -1000, -999,
		-100, -99, -11, -10, -9, -1, 0, 1, 9, 10, 11, 19, 90, 99, 100, 101, 123, 199, 200,
		999, 1000, 1001, 65535, 999999999999999, 9007199254740993, INT64_MAX};
	(void)state;

	for (size_t i = 0; i < ARRAY_SIZE(some); i++)
		for (size_t k = i; k < ARRAY_SIZE(some); k += 1 + (i + k) % 3)
			check_range(some[i], some[k]);
	expect_texts("{\"type\":\"integer\",\"minimum\":-9223372036854775808,\"maximum\":0}",
		TEXTS("-9223372036854775808", "-1", "0"), TEXTS("-9223372036854775809", "1"));
	expect_texts("{\"type\":\"integer\",\"exclusiveMinimum\":1,\"exclusiveMaximum\":4}",
		TEXTS("2", "3"), TEXTS("1", "4"));
	expect_texts("{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":3.5}", TEXTS("2", "3"),
		TEXTS("1", "4"));
	expect_texts("{\"type\":\"integer\",\"exclusiveMinimum\":1.5,\"exclusiveMaximum\":3.0}",
		TEXTS("2"), TEXTS("1", "3"));
	expect_texts("{\"type\":\"integer\",\"minimum\":5}", TEXTS("5", "999999999999999"),
		TEXTS("4", "1000000000000000"));
	expect_texts("{\"type\":\"integer\",\"maximum\":5}", TEXTS("5", "-999999999999999"),
		TEXTS("6", "-1000000000000000"));
	expect_texts("{\"type\":\"integer\",\"minimum\":9999999999999999}",
		TEXTS("9999999999999999", "9223372036854775807"), TEXTS("9999999999999998", "1"));
}

static void test_refusals_name_the_place(void **state)
{
	(void)state;
	expect_err("{", -EINVAL,
		"json_schema:1:1: expected JSON, found string or '}' expected near end of file");
	expect_err("3", -EINVAL, "json_schema: /: expected a schema: an object or a boolean");
	expect_err("false", -EINVAL, "json_schema: /: expected a schema that allows something");
	expect_err("{\"uniqueItems\":true}", -EINVAL, "json_schema: /uniqueItems: not supported");
	expect_err("{\"properties\":{\"a\":{\"items\":{\"contains\":1}}}}", -EINVAL,
		"json_schema: /properties/a/items/contains: not supported");
	expect_err("{\"anyOf\":[true,{\"not\":{}}]}", -EINVAL,
		"json_schema: /anyOf/1/not: not supported");
	expect_err("{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"if\":1}}}", -EINVAL,
		"json_schema: /#/$defs/x/if: not supported");
	expect_err("{\"type\":\"text\"}", -EINVAL,
		"json_schema: /type: expected \"object\", \"array\", \"string\", \"integer\", "
		"\"number\", \"boolean\" or \"null\"");
	expect_err("{\"type\":\"string\",\"minimum\":1}", -EINVAL,
		"json_schema: /minimum: expected no such keyword beside this type");
	expect_err("{\"type\":\"number\",\"minimum\":1}", -EINVAL,
		"json_schema: /minimum: expected no such keyword beside this type");
	expect_err("{\"minimum\":1}", -EINVAL,
		"json_schema: /minimum: supported beside the type \"integer\" alone");
	expect_err("{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}", -EINVAL,
		"json_schema: /: expected bounds with an integer between");
	expect_err("{\"type\":\"integer\",\"minimum\":\"1\"}", -EINVAL,
		"json_schema: /minimum: expected a number from -9e18 to 9e18");
	expect_err("{\"required\":[\"a\"]}", -EINVAL,
		"json_schema: /required: expected names of properties, found \"a\"");
	expect_err("{\"properties\":[]}", -EINVAL, "json_schema: /properties: expected an object");
	expect_err("{\"enum\":[]}", -EINVAL,
		"json_schema: /enum: expected a value (of the type), found none");
	expect_err("{\"enum\":[1],\"minimum\":1}", -EINVAL,
		"json_schema: /minimum: expected no such keyword beside enum");
	expect_err("{\"minItems\":3,\"maxItems\":2}", -EINVAL,
		"json_schema: /minItems: expected at most as many as there can be, 2");
	expect_err("{\"minItems\":-1}", -EINVAL,
		"json_schema: /minItems: expected a whole number from 0 to 1e15");
	expect_err("{\"minLength\":1,\"pattern\":\"^$\"}", -EINVAL,
		"json_schema: /pattern: expected one of pattern, format, and minLength with "
		"maxLength");
	expect_err("{\"format\":\"email\"}", -EINVAL,
		"json_schema: /format: expected \"date\", \"time\", \"date-time\" or \"uuid\", "
		"found "
		"email");
	expect_err("{\"$ref\":\"other.json\"}", -EINVAL,
		"json_schema: /$ref: expected #, #/$defs/NAME or #/definitions/NAME, found "
		"other.json");
	expect_err("{\"$ref\":\"#/$defs/x\"}", -EINVAL,
		"json_schema: /$ref: expected a schema that is there, found #/$defs/x");
	expect_err("{\"allOf\":[{\"type\":\"object\"},{\"type\":\"string\"}]}", -EINVAL,
		"json_schema: /allOf/1/type: not supported with allOf, which is for objects with "
		"properties and required");
	expect_err("{\"allOf\":[{\"properties\":{\"a\":true}},{\"properties\":{\"a\":{}}}]}",
		-EINVAL,
		"json_schema: /allOf/1/properties: expected \"a\" in one member of allOf, found "
		"another");
	expect_err("{\"a\":1,\"a\":2}", -EINVAL,
		"json_schema:1:10: expected JSON, found duplicate object key near '\"a\"'");
}

static void test_patterns_that_are_refused(void **state)
{
	static const struct {
		const char *pattern;
		const char *why;
	} rows[] = {
		{"abc$", "at byte 0: expected ^ at the start, found a"},
		{"^abc", "at byte 4: expected $ at the end, found the end"},
		{"^a|b$", "at byte 2: expected | in a group alone, found |"},
		{"^a*?$", "at byte 3: expected no second repetition, found ?"},
		{"^(?=a)$",
			"at byte 2: expected ?: or no ? behind ( (look-around and names are not "
			"supported), found ?"},
		{"^\\\\bx$",
			"at byte 2: expected a character that can be escaped (\\b, \\B, \\k, \\p, "
			"\\c and back references are not supported), found b"},
		{"^(a)\\\\1$",
			"at byte 5: expected a character that can be escaped (\\b, \\B, \\k, "
			"\\p, \\c and back references are not supported), found 1"},
		{"^[a$", "at byte 4: expected ], found the end"},
		{"^[]$", "at byte 3: expected a class that has a character, found $"},
		{"^[\\\\D]$", "at byte 2: expected no \\D, \\W or \\S in a class, found \\"},
		{"^a{5000}$", "at byte 7: expected a number up to 4096, found }"},
		{"^(a$", "at byte 3: expected ), found $"},
		{"^a)$", "at byte 2: expected $ at the end, found )"},
		{"^a$b$", "at byte 2: expected a character, a class or a group, found $"},
		{"^*$", "at byte 1: expected a character, a class or a group, found *"},
	};
	(void)state;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char schema[256], why[512];

		snprintf(schema, sizeof(schema), "{\"pattern\":\"%s\"}", rows[i].pattern);
		snprintf(why, sizeof(why), "json_schema: /pattern: %s", rows[i].why);
		expect_err(schema, -EINVAL, why);
	}
}

static void expect_err_end(const char *schema, const char *end)
{
	struct err e = ERR_NULL;
	struct gbnf *g = NULL;

	assert_int_equal(json_schema_compile(schema, strlen(schema), &e, &g), -EINVAL);
	assert_memory_equal(e.text, "json_schema: ", 13);
	assert_true(strlen(e.text) > strlen(end));
	assert_string_equal(e.text + strlen(e.text) - strlen(end), end);
}

/* References that never come to a value. */
static void test_endless_references_are_refused(void **state)
{
	(void)state;
	expect_err_end("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{"
		       "\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/a\"}]}}}",
		"rule \"d0\": expected something before it comes again, found left recursion");
	expect_err_end("{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
		"rule \"s1\": expected an alternate that ends, found none");
	expect_err_end("{\"allOf\":[{\"$ref\":\"#\"},true]}",
		": expected at most 1024 members of allOf, 64 deep");
}

/*
 * A short text that asks for much: lists with the same name again and again, and members of allOf
 * that refer to them again and again. What is compared is bounded, and duplicates are none.
 */
static void test_work_is_bounded(void **state)
{
	enum { N_NAMES = 2000, N_MEMBERS = 1000 };
	_cleanup_(cleanup_free)
	char *text = NULL;
	size_t n_text;
	FILE *f = open_memstream(&text, &n_text);
	(void)state;

	assert_non_null(f);
	fputs("{\"$defs\":{\"a\":{\"required\":[\"q\"", f);
	for (int i = 1; i < N_NAMES; i++)
		fputs(",\"q\"", f);
	fputs("]}},\"allOf\":[{\"properties\":{\"q\":true}}", f);
	for (int i = 1; i < N_MEMBERS; i++)
		fputs(",{\"$ref\":\"#/$defs/a\"}", f);
	fputs("]}", f);
	fclose(f);
	expect_err_end(text,
		"required: expected at most 262144 values in all members of allOf, found more");
	expect_err("{\"properties\":{\"q\":true},\"required\":[\"q\",\"q\"]}", -EINVAL,
		"json_schema: /required: expected at most the 1 properties, each once, found 2 "
		"names");
	/* In several members a name may be again. */
	expect_texts("{\"properties\":{\"q\":{\"type\":\"null\"}},\"required\":[\"q\"],\"allOf\":[{"
		     "\"required\":[\"q\"]},{\"required\":[\"q\"]}]}",
		TEXTS("{\"q\":null}"), TEXTS("{}"));
}

/* So are members that many schemas refer to. */
static void test_members_are_bounded(void **state)
{
	enum { N_MEMBERS = 1000, N_SCHEMAS = 500 };
	_cleanup_(cleanup_free)
	char *text = NULL;
	size_t n_text;
	FILE *f = open_memstream(&text, &n_text);
	(void)state;

	assert_non_null(f);
	fputs("{\"$defs\":{\"a\":{\"allOf\":[{}", f);
	for (int i = 1; i < N_MEMBERS; i++)
		fputs(",{}", f);
	fputs("]}},\"anyOf\":[true", f);
	for (int i = 1; i < N_SCHEMAS; i++)
		fputs(",{\"allOf\":[{\"$ref\":\"#/$defs/a\"},{}]}", f);
	fputs("]}", f);
	fclose(f);
	expect_err_end(
		text, ": expected at most 262144 values in all members of allOf, found more");
}

static void test_caps(void **state)
{
	char text[8192];
	struct err e = ERR_NULL;
	struct gbnf *g = NULL;
	int n = 0;
	(void)state;

	for (int i = 0; i < 65; i++)
		n += sprintf(text + n, "{\"items\":");
	n += sprintf(text + n, "{}");
	for (int i = 0; i < 65; i++)
		n += sprintf(text + n, "}");
	assert_int_equal(json_schema_compile(text, (uint64_t)n, &e, &g), -EINVAL);
	assert_non_null(strstr(e.text, "expected schemas at most 64 deep"));
	n = sprintf(text, "{\"prefixItems\":[");
	for (int i = 0; i < 20; i++)
		n += sprintf(text + n, "%s{\"maxLength\":4096}", i ? "," : "");
	n += sprintf(text + n, "]}");
	assert_int_equal(json_schema_compile(text, (uint64_t)n, &e, &g), -E2BIG);
	assert_non_null(strstr(e.text, "expected at most 65536 rules"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_any_value),
		CASE(test_types),
		CASE(test_properties_keep_their_order),
		CASE(test_additional_properties_have_other_names),
		CASE(test_arrays),
		CASE(test_values),
		CASE(test_unions_and_merges),
		CASE(test_references),
		CASE(test_strings),
		CASE(test_patterns),
		CASE(test_integers_have_exact_bounds),
		CASE(test_refusals_name_the_place),
		CASE(test_patterns_that_are_refused),
		CASE(test_endless_references_are_refused),
		CASE(test_work_is_bounded),
		CASE(test_members_are_bounded),
		CASE(test_caps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
