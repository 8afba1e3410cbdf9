/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/unit/earley.h"
#include "workerd/gbnf.h"

static struct gbnf *parse(const char *text)
{
	struct err e = ERR_NULL;
	struct gbnf *g = NULL;
	int r = gbnf_parse(text, strlen(text), GBNF_MAX_BYTES, &e, &g);

	if (r)
		fail_msg("%s: %d: %s", text, r, e.text);
	return g;
}

static void expect_err(const char *text, int code, const char *sentence)
{
	struct err e = ERR_NULL;
	struct gbnf *g = NULL;

	assert_int_equal(gbnf_parse(text, strlen(text), GBNF_MAX_BYTES, &e, &g), code);
	assert_null(g);
	assert_string_equal(e.text, sentence);
}

/* yes and no: lists of texts, with NULL behind the last. */
static void expect_texts(const char *grammar, const char *const *yes, const char *const *no)
{
	struct gbnf *g = parse(grammar);

	for (; *yes; yes++)
		if (!earley_matches(g, *yes, strlen(*yes)))
			fail_msg("%s: does not match \"%s\"", grammar, *yes);
	for (; *no; no++)
		if (earley_matches(g, *no, strlen(*no)))
			fail_msg("%s: matches \"%s\"", grammar, *no);
	gbnf_free(g);
}

#define TEXTS(...)                              \
	(const char *const[])                   \
	{                                       \
		__VA_ARGS__ __VA_OPT__(, ) NULL \
	}

static void test_literals_and_escapes(void **state)
{
	(void)state;
	expect_texts("root ::= \"abc\"", TEXTS("abc"), TEXTS("", "ab", "abcd", "abd"));
	expect_texts("root ::= \"\"", TEXTS(""), TEXTS("a"));
	expect_texts("root ::= \"\\x41\\u00e9\\U0001F600\\t\\r\\n\\\\\\\"\\[\\]\"",
		TEXTS("Aé😀\t\r\n\\\"[]"), TEXTS("A"));
	expect_texts("root ::= \"é\"", TEXTS("é"), TEXTS("\xc3", "e"));
}

static void test_classes_are_of_code_points(void **state)
{
	(void)state;
	expect_texts("root ::= [a-cx]", TEXTS("a", "b", "c", "x"), TEXTS("", "d", "ab", "-"));
	expect_texts("root ::= [^a-c]", TEXTS("d", "é", "漢", "😀", "\n"),
		TEXTS("a", "c", "", "\xff", "\xc3", "\xed\xa0\x80", "\xc0\x80",
			"\xf4\x90\x80\x80"));
	expect_texts("root ::= [à-ü]", TEXTS("à", "é", "ü"), TEXTS("ý", "ß", "a", "\xc3"));
	expect_texts("root ::= [\\U00010000-\\U0010FFFF]", TEXTS("😀", "\xf4\x8f\xbf\xbf"),
		TEXTS("漢", "\xf4\x90\x80\x80"));
	expect_texts("root ::= [-a]", TEXTS("-", "a"), TEXTS("b"));
	expect_texts("root ::= [a-]", TEXTS("-", "a"), TEXTS("b"));
	expect_texts("root ::= [\\]\\\\^\\-]", TEXTS("]", "\\", "^", "-"), TEXTS("a", "["));
	expect_texts("root ::= .", TEXTS("a", "\n", "é", "😀"), TEXTS("", "ab", "\x80"));
	expect_texts("root ::= [\\u07fe-\\u0801]", TEXTS("\xdf\xbe", "\xdf\xbf", "ࠀ", "ࠁ"),
		TEXTS("\xdf\xbd", "ࠂ"));
}

/* Every code point against every range of a few that cross the lengths of UTF-8. */
static void test_every_code_point(void **state)
{
	static const struct utf8_class_range ranges[] = {{0, 0}, {0x41, 0x7f}, {0x7f, 0x80},
		{0x7fe, 0x801}, {0x1234, 0x5678}, {0xd000, 0xe001}, {0xfff0, 0x1000f},
		{0x20000, 0x10ffff}};
	(void)state;

	for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
		struct utf8_class_table t = {0};
		struct utf8_class_range list[3] = {ranges[i]};
		uint32_t n = utf8_class_normalise(list, 1, false);
		uint16_t start, at;

		assert_int_equal(utf8_class_add(&t, list, n, &start), 0);
		for (uint32_t code = 0; code <= UTF8_CLASS_MAX; code++) {
			uint8_t bytes[4];
			uint32_t n_bytes = utf8_class_encode(code, bytes), found;
			bool is_surrogate = code >= 0xd800 && code < 0xe000;

			at = start;
			for (uint32_t k = 0; k < n_bytes; k++)
				at = t.next[at][bytes[k]];
			assert_int_equal(at == UTF8_CLASS_DONE,
				code >= ranges[i].first && code <= ranges[i].last && !is_surrogate);
			assert_int_equal(utf8_class_decode((const char *)bytes, n_bytes, &found),
				is_surrogate ? 0 : n_bytes);
		}
		utf8_class_fini(&t);
	}
}

static void test_repetitions(void **state)
{
	(void)state;
	expect_texts("root ::= \"a\"*", TEXTS("", "a", "aaaa"), TEXTS("b", "aab"));
	expect_texts("root ::= \"ab\"+", TEXTS("ab", "abab"), TEXTS("", "aba", "abb"));
	expect_texts("root ::= [a-b]?", TEXTS("", "a", "b"), TEXTS("ab"));
	expect_texts("root ::= \"a\"{2}", TEXTS("aa"), TEXTS("", "a", "aaa"));
	expect_texts("root ::= \"a\"{2,}", TEXTS("aa", "aaaaa"), TEXTS("a"));
	expect_texts("root ::= \"a\"{1,3} \"b\"", TEXTS("ab", "aab", "aaab"), TEXTS("b", "aaaab"));
	expect_texts("root ::= (\"a\" | \"b\"){0,2}", TEXTS("", "a", "ba"), TEXTS("aba"));
	expect_texts("root ::= \"a\"{0} \"b\"", TEXTS("b"), TEXTS("ab"));
	expect_texts("root ::= (\"a\"?)* \"b\"", TEXTS("b", "aab"), TEXTS("a"));
	expect_texts("root ::= \"\"* \"b\"", TEXTS("b"), TEXTS(""));
	expect_texts("root ::= \"a\"+?", TEXTS("", "aa"), TEXTS("b"));
}

static void test_rules_comments_and_lines(void **state)
{
	(void)state;
	expect_texts(
		"# numbers\r\nroot ::= a # the first\r\n  \n\ta ::=\n  b |\n  \"x\" (\n \"y\"\n | "
		"\"z\" # inner\n )\nb ::= \"0\" | \"1\" b",
		TEXTS("0", "110", "xy", "xz"), TEXTS("x", "1", ""));
	expect_texts("root ::= | \"a\"", TEXTS("", "a"), TEXTS("aa"));
	expect_texts(
		"root ::= \"[\" root \"]\" | \"\"", TEXTS("", "[]", "[[[]]]"), TEXTS("[", "]["));
}

static void test_refusals_say_where(void **state)
{
	(void)state;
	expect_err("", -EINVAL, "grammar:1:1: rule \"root\": expected a definition, found none");
	expect_err("root ::= x", -EINVAL,
		"grammar:1:10: rule \"x\": expected a definition, found none");
	expect_err("root ::= \"a\"\nroot ::= \"b\"", -EINVAL,
		"grammar:1:1: rule \"root\": expected one definition, found another");
	expect_err("root = \"a\"", -EINVAL, "grammar:1:6: expected ::=, found '='");
	expect_err("root ::= \"a", -EINVAL,
		"grammar:1:12: expected \" at the end of the literal, found the end");
	expect_err("root ::= \"é\\q\"", -EINVAL,
		"grammar:1:13: expected x, u, U, t, r, n, \\, \", [, ], - or ^ behind \\, found "
		"'q'");
	expect_err("root ::= \"a\\", -EINVAL,
		"grammar:1:13: expected x, u, U, t, r, n, \\, \", [, ], - or ^ behind \\, found "
		"the end");
	expect_err("root ::= \"\\ud800\"", -EINVAL,
		"grammar:1:11: expected a code point up to 10FFFF that is no surrogate, found "
		"'\\'");
	expect_err("root ::= \"\\x4\"", -EINVAL,
		"grammar:1:14: expected a hexadecimal digit, found '\"'");
	expect_err("root ::= \"a\nb\"", -EINVAL,
		"grammar:1:12: expected a character, found the end of the line");
	expect_err("root ::= \"\xff\"", -EINVAL,
		"grammar:1:11: expected a character, found byte 0xff");
	expect_err("root ::= [a-", -EINVAL,
		"grammar:1:13: expected ] at the end of the class, found the end");
	expect_err("root ::= []", -EINVAL,
		"grammar:1:10: expected a class that has a character, found '['");
	expect_err(
		"root ::= [b-a]", -EINVAL, "grammar:1:11: expected a range that rises, found 'b'");
	expect_err("root ::= [^\\x00-\\U0010FFFF]", -EINVAL,
		"grammar:1:10: expected a class that has a character, found '['");
	expect_err("root ::= (\"a\"", -EINVAL, "grammar:1:14: expected ), found the end");
	expect_err("root ::= \"a\")", -EINVAL,
		"grammar:1:13: expected an element, | or the end of the line, found ')'");
	expect_err("root ::= *", -EINVAL, "grammar:1:10: expected something to repeat, found '*'");
	expect_err("root ::= \"a\"{x}", -EINVAL, "grammar:1:14: expected a number, found 'x'");
	expect_err("root ::= \"a\"{2", -EINVAL, "grammar:1:15: expected }, found the end");
	expect_err("root ::= \"a\"{3,2}", -EINVAL,
		"grammar:1:13: expected an upper bound that is not below the lower, found '{'");
	expect_err("root ::= \"a\"{4097}", -EINVAL,
		"grammar:1:14: expected a repetition of at most 4096, found '4'");
	expect_err("root ::= <think>", -EINVAL,
		"grammar:1:10: expected an element, | or the end of the line, found '<'");
}

static void test_left_recursion_is_refused(void **state)
{
	(void)state;
	expect_err("root ::= root \"a\" | \"b\"", -EINVAL,
		"grammar:1:1: rule \"root\": expected something before it comes again, found left "
		"recursion");
	expect_err("root ::= a\na ::= b \"x\"\nb ::= \"\" a | \"y\"", -EINVAL,
		"grammar:2:1: rule \"a\": expected something before it comes again, found left "
		"recursion");
	expect_err("root ::= \"q\" | e root \"a\"\ne ::= \"c\"?", -EINVAL,
		"grammar:1:1: rule \"root\": expected something before it comes again, found left "
		"recursion");
	expect_err("root ::= (root)? \"a\"", -EINVAL,
		"grammar:1:1: rule \"root\": expected something before it comes again, found left "
		"recursion");
	expect_err("root ::= a*\na ::= root", -EINVAL,
		"grammar:1:1: rule \"root\": expected something before it comes again, found left "
		"recursion");
}

static void test_rules_that_never_end_are_refused(void **state)
{
	(void)state;
	expect_err("root ::= \"a\" root", -EINVAL,
		"grammar:1:1: rule \"root\": expected an alternate that ends, found none");
	expect_err("root ::= \"a\" | \"b\" x\nx ::= \"(\" y\ny ::= \")\" x", -EINVAL,
		"grammar:2:1: rule \"x\": expected an alternate that ends, found none");
}

static void test_caps(void **state)
{
	char *text = malloc(GBNF_MAX_BYTES + 2);
	struct err e = ERR_NULL;
	struct gbnf *g = NULL;
	int n;
	(void)state;

	assert_non_null(text);
	memset(text, '#', GBNF_MAX_BYTES + 1);
	assert_int_equal(gbnf_parse(text, GBNF_MAX_BYTES + 1, GBNF_MAX_BYTES, &e, &g), -E2BIG);
	assert_string_equal(e.text, "grammar: expected at most 65536 bytes, found 65537");
	gbnf_free(parse("root ::= ((\"a\"{4000}){4000}){4000}"));
	n = sprintf(text, "root ::=");
	for (int i = 0; i < 17; i++)
		n += sprintf(text + n, " [a-b]{0,4000}");
	expect_err(text, -E2BIG,
		"grammar:1:247: expected at most 65536 rules, 524288 elements and 8192 states of "
		"classes with repetitions written out, found more");
	gbnf_free(parse("root ::= (([a-b]{0,4000}){0,4000}[a-c]{0,4000})"));
	memset(text, '(', 4096);
	n = snprintf(text, 64, "root ::= ");
	text[n] = '(';
	assert_int_equal(gbnf_parse(text, 4096, GBNF_MAX_BYTES, &e, &g), -EINVAL);
	assert_string_equal(
		e.text, "grammar:1:74: expected parentheses at most 64 deep, found '('");
	free(text);
}

/* A chain of rules as long as the text allows is judged without recursion. */
static void test_a_long_chain(void **state)
{
	_cleanup_(cleanup_free)
	char *text = malloc(GBNF_MAX_BYTES);
	struct err e = ERR_NULL;
	struct gbnf *g = NULL;
	int n = 0, n_rules = 4000;
	(void)state;

	assert_non_null(text);
	n += sprintf(text, "root ::= r0\n");
	for (int i = 0; i < n_rules; i++)
		n += sprintf(text + n, "r%d ::= r%d\n", i, i + 1);
	n += sprintf(text + n, "r%d ::= \"a\"\n", n_rules);
	assert_true(n < GBNF_MAX_BYTES);
	assert_int_equal(gbnf_parse(text, (uint64_t)n, GBNF_MAX_BYTES, &e, &g), 0);
	gbnf_free(g);
	g = NULL;
	n -= (int)strlen("\"a\"\n");
	n += sprintf(text + n, "r7\n");
	assert_int_equal(gbnf_parse(text, (uint64_t)n, GBNF_MAX_BYTES, &e, &g), -EINVAL);
	assert_non_null(strstr(e.text, "rule \"r7\": expected something before it comes again"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_literals_and_escapes),
		CASE(test_classes_are_of_code_points),
		CASE(test_every_code_point),
		CASE(test_repetitions),
		CASE(test_rules_comments_and_lines),
		CASE(test_refusals_say_where),
		CASE(test_left_recursion_is_refused),
		CASE(test_rules_that_never_end_are_refused),
		CASE(test_caps),
		CASE(test_a_long_chain),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
