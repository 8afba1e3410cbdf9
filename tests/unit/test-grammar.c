/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/case.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "tests/unit/earley.h"
#include "tests/unit/shipped-model.h"
#include "workerd/gbnf.h"
#include "workerd/grammar.h"
#include "workerd/vocab-trie.h"

static const char json_grammar[] =
	"root ::= object\n"
	"value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
	"object ::= \"{\" ws (pair (\",\" ws pair)*)? ws \"}\"\n"
	"pair ::= string \":\" ws value\n"
	"array ::= \"[\" ws (value (\",\" ws value)*)? ws \"]\"\n"
	"string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" "
	"[0-9a-f]{4}))* "
	"\"\\\"\"\n"
	"number ::= \"-\"? ([0-9] | [1-9] [0-9]{0,15}) (\".\" [0-9]+)? ([eE] [-+]? [0-9]{1,2})?\n"
	"ws ::= [ \\t\\n]{0,4}\n";

/* splitmix64, https://prng.di.unimi.it (public domain): the tests repeat themselves. */
static uint32_t draw(uint64_t *seed, uint32_t n)
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (uint32_t)((z ^ z >> 31) % n);
}

struct site {
	struct gbnf *reference; /* the same text, parsed again */
	struct grammar *grammar;
	struct grammar_cursor *cursor;
	struct earley *earley;
	const struct vocab_trie_token *tokens;
	uint32_t n_vocab;
	uint32_t n_bytes; /* accepted */
};

static struct gbnf *parse(const char *text)
{
	struct err e = ERR_NULL;
	struct gbnf *g = NULL;
	int r = gbnf_parse(text, strlen(text), GBNF_MAX_BYTES, &e, &g);

	if (r)
		fail_msg("%s: %d: %s", text, r, e.text);
	return g;
}

static void site_init(
	struct site *s, const char *text, const struct vocab_trie_token *tokens, uint32_t n_vocab)
{
	struct err e = ERR_NULL;
	struct vocab_trie *trie;

	*s = (struct site){.reference = parse(text), .tokens = tokens, .n_vocab = n_vocab};
	assert_int_equal(vocab_trie_new(tokens, n_vocab, &trie), 0);
	assert_int_equal(grammar_new(parse(text), trie, &s->grammar), 0);
	vocab_trie_free(trie);
	assert_int_equal(grammar_cursor_new(s->grammar, &e, &s->cursor), 0);
	s->earley = earley_new(s->reference);
}

static void site_fini(struct site *s)
{
	grammar_cursor_free(s->cursor);
	grammar_free(s->grammar);
	earley_free(s->earley);
	gbnf_free(s->reference);
}

/* By the reference: the bytes are tried on it, and taken back. */
static bool is_allowed(struct site *s, uint32_t token)
{
	const struct vocab_trie_token *t = &s->tokens[token];
	bool is_alive = true;

	if (t->is_end)
		return earley_is_complete(s->earley);
	if (!t->is_text || !t->n_bytes)
		return false;
	for (uint32_t i = 0; is_alive && i < t->n_bytes; i++)
		is_alive = earley_push(s->earley, t->bytes[i]);
	earley_truncate(s->earley, s->n_bytes);
	return is_alive;
}

static const uint32_t *get_mask(struct site *s)
{
	struct err e = ERR_NULL;
	const uint32_t *mask = NULL;
	int r = grammar_get_mask(s->cursor, &e, &mask);

	if (r)
		fail_msg("mask: %d: %s", r, e.text);
	return mask;
}

static bool is_too_ambiguous(const struct site *s)
{
	struct err e = ERR_NULL;
	const uint32_t *mask = NULL;

	return grammar_get_mask(s->cursor, &e, &mask) == -E2BIG;
}

static bool is_set(const uint32_t *mask, uint32_t token)
{
	return mask[token / 32] >> token % 32 & 1;
}

/* Compares all tokens; returns how many of those with text are allowed. */
static uint32_t compare(struct site *s)
{
	const uint32_t *mask = get_mask(s);
	uint32_t n_allowed = 0;

	for (uint32_t i = 0; i < s->n_vocab; i++) {
		if (is_set(mask, i) != is_allowed(s, i))
			fail_msg("behind %u bytes: token %u \"%.*s\": %s, but the reference says "
				 "otherwise",
				s->n_bytes, i, (int)s->tokens[i].n_bytes, s->tokens[i].bytes,
				is_set(mask, i) ? "allowed" : "not allowed");
		n_allowed += is_set(mask, i) && !s->tokens[i].is_end;
	}
	assert_int_equal(grammar_is_complete(s->cursor), earley_is_complete(s->earley));
	assert_int_equal(grammar_is_final(s->cursor), earley_is_complete(s->earley) && !n_allowed);
	return n_allowed;
}

static void accept(struct site *s, uint32_t token)
{
	const struct vocab_trie_token *t = &s->tokens[token];
	struct err e = ERR_NULL;

	assert_int_equal(grammar_accept(s->cursor, (const char *)t->bytes, t->n_bytes, &e), 0);
	for (uint32_t i = 0; i < t->n_bytes; i++)
		assert_true(earley_push(s->earley, t->bytes[i]));
	s->n_bytes += t->n_bytes;
}

/* Takes allowed tokens at random and compares at each place. */
static void wander(struct site *s, uint64_t *seed, uint32_t n_steps)
{
	while (n_steps-- && !is_too_ambiguous(s)) {
		const uint32_t *mask;
		uint32_t n = compare(s), token = 0;

		if (!n)
			return;
		mask = get_mask(s);
		n = draw(seed, n);
		for (;; token++)
			if (is_set(mask, token) && !s->tokens[token].is_end && n-- == 0)
				break;
		accept(s, token);
	}
}

/* Tokens that cut characters, an empty one, two alike, a control token, and two that end. */
static const struct vocab_trie_token *get_small(uint32_t *ret_n)
{
#define TEXT(s)                                                  \
	{                                                        \
		(const uint8_t *)(s), sizeof(s) - 1, true, false \
	}
	static const struct vocab_trie_token tokens[] = {TEXT("a"), TEXT("b"), TEXT("c"),
		TEXT("ab"), TEXT("aba"), TEXT("abc"), TEXT("bb"), TEXT("ca"), TEXT("cab"),
		TEXT("("), TEXT(")"), TEXT("(("), TEXT("))"), TEXT("(a"), TEXT("é"), TEXT("\xc3"),
		TEXT("\xa9"), TEXT("\xa8"),
		TEXT("\xc3\xa9"
		     "a"),
		TEXT("b\xc3"), TEXT("\xe6\xbc"), TEXT("\xa2"), TEXT("漢"), TEXT("\xf0\x9f"),
		TEXT("\x98\x80"), TEXT("ab"), TEXT("\xff"), TEXT(""),
		{(const uint8_t *)"a", 1, false, false}, {(const uint8_t *)"a", 1, true, true},
		{(const uint8_t *)"", 0, false, true}};

	*ret_n = ARRAY_SIZE(tokens);
	return tokens;
}

static void test_masks_of_small_grammars(void **state)
{
	static const char *const grammars[] = {
		"root ::= \"abc\"",
		"root ::= [ab]* \"c\"",
		"root ::= \"(\" root \")\" | \"\"",
		"root ::= \"a\" root \"b\" | \"ab\"",
		"root ::= (\"a\"? \"b\"?)* \"c\"",
		"root ::= [à-ü]+ | [漢-龜]{1,2} | [\\U0001F000-\\U0001FFFF]",
		"root ::= [^a] .{0,3}",
		"root ::= x x x\nx ::= \"a\" | \"ab\" | \"b\" | \"\"",
		"root ::= (\"ab\" | \"aba\" | \"abc\"){2,3}",
		"root ::= s\ns ::= \"a\" s s | \"b\" | \"\"",
	};
	uint64_t seed = 1;
	(void)state;

	for (size_t i = 0; i < ARRAY_SIZE(grammars); i++)
		for (int k = 0; k < 8; k++) {
			uint32_t n;
			const struct vocab_trie_token *tokens = get_small(&n);
			struct site s;

			site_init(&s, grammars[i], tokens, n);
			wander(&s, &seed, 12);
			site_fini(&s);
		}
}

/* An expression over a small alphabet, rules r0 to r3 among it. */
static int write_expression(char *text, uint64_t *seed, int depth)
{
	static const char *const leaves[] = {"\"a\"", "\"b\"", "\"ab\"", "\"(\"", "\")\"", "[a-c]",
		"[^a]", "[é-漢]", "\"é\"", "r1", "r2", "r3", "\"\"", "."};
	static const char *const ends[] = {"", "", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}"};
	int n = 0, n_parts = 1 + (int)draw(seed, 3);

	for (int i = 0; i < n_parts; i++) {
		if (depth < 3 && draw(seed, 3) == 0) {
			n += sprintf(text + n, "(");
			n += write_expression(text + n, seed, depth + 1);
			n += sprintf(text + n, ")%s", ends[draw(seed, ARRAY_SIZE(ends))]);
		} else {
			n += sprintf(text + n, "%s%s", leaves[draw(seed, ARRAY_SIZE(leaves))],
				ends[draw(seed, ARRAY_SIZE(ends))]);
		}
		if (i + 1 < n_parts)
			n += sprintf(text + n, draw(seed, 3) ? " " : " | ");
	}
	return n;
}

static void test_masks_of_random_grammars(void **state)
{
	uint64_t seed = 2;
	uint32_t n_good = 0, n_all = 0, n_ambiguous = 0, n_vocab;
	const struct vocab_trie_token *tokens = get_small(&n_vocab);
	(void)state;

	for (; n_good < 300; n_all++) {
		char text[8192];
		struct err e = ERR_NULL;
		struct gbnf *g;
		struct site s;
		int n = 0;

		for (int i = 0; i < 4; i++) {
			n += sprintf(text + n, i ? "r%d ::= " : "root ::= ", i);
			n += write_expression(text + n, &seed, 0);
			n += sprintf(text + n, "\n");
		}
		int r = gbnf_parse(text, (uint64_t)n, GBNF_MAX_BYTES, &e, &g);
		if (r) { /* left recursion, or no end */
			assert_int_equal(r, -EINVAL);
			continue;
		}
		gbnf_free(g);
		n_good++;
		site_init(&s, text, tokens, n_vocab);
		wander(&s, &seed, 8);
		n_ambiguous += is_too_ambiguous(&s);
		site_fini(&s);
	}
	printf("# %u grammars of %u random texts, %u too ambiguous\n", n_good, n_all, n_ambiguous);
	assert_in_range(n_ambiguous, 0, n_good / 20);
}

static struct vocab_trie_token *get_shipped(struct manifest *m)
{
	struct vocab_trie_token *tokens = calloc(m->n_vocab, sizeof(*tokens));

	assert_non_null(tokens);
	for (uint32_t i = 0; i < m->n_vocab; i++)
		tokens[i] = (struct vocab_trie_token){
			.bytes = manifest_get_string(m, m->tokens[i].bytes),
			.n_bytes = m->tokens[i].bytes.n_bytes,
			.is_text = m->tokens[i].type != MANIFEST_TOKEN_CONTROL,
			.is_end = manifest_is_eog(m, i),
		};
	return tokens;
}

static void test_masks_of_json_with_the_shipped_vocabulary(void **state)
{
	struct manifest *m = shipped_model_open();
	struct vocab_trie_token *tokens = get_shipped(m);
	uint64_t seed = 3;
	struct site s;
	(void)state;

	for (int i = 0; i < 3; i++) {
		site_init(&s, json_grammar, tokens, m->n_vocab);
		wander(&s, &seed, 12);
		site_fini(&s);
	}
	free(tokens);
	manifest_free(m);
}

static void test_the_trie_of_a_manifest(void **state)
{
	struct manifest *m = shipped_model_open();
	struct vocab_trie_token *tokens = get_shipped(m);
	struct vocab_trie *of = NULL, *by_hand = NULL;
	(void)state;

	assert_int_equal(vocab_trie_new_of(m, &of), 0);
	assert_int_equal(vocab_trie_new(tokens, m->n_vocab, &by_hand), 0);
	assert_int_equal(of->n_entries, by_hand->n_entries);
	assert_memory_equal(of->entries, by_hand->entries, of->n_entries * sizeof(*of->entries));
	assert_true(of->n_ends > 0);
	assert_int_equal(of->n_ends, by_hand->n_ends);
	assert_memory_equal(of->ends, by_hand->ends, of->n_ends * sizeof(*of->ends));
	vocab_trie_free(vocab_trie_ref(of));
	assert_true(of->n_entries > 256);
	vocab_trie_free(of);
	vocab_trie_free(by_hand);
	free(tokens);
	manifest_free(m);
}

static void test_a_refused_token_leaves_the_cursor(void **state)
{
	uint32_t n;
	const struct vocab_trie_token *tokens = get_small(&n);
	struct err e = ERR_NULL;
	struct site s;
	(void)state;

	site_init(&s, "root ::= \"ab\" \"c\"", tokens, n);
	assert_int_equal(grammar_accept(s.cursor, "ac", 2, &e), -EINVAL);
	assert_string_equal(e.text, "grammar: expected a token that it allows, found another");
	compare(&s);
	accept(&s, 3);
	compare(&s);
	accept(&s, 2);
	assert_true(grammar_is_final(s.cursor));
	assert_true(grammar_has_end(s.cursor));
	compare(&s);
	site_fini(&s);
}

/* Cursors of one grammar share its masks and do not disturb each other. */
static void test_masks_are_kept_by_state(void **state)
{
	uint32_t n;
	const struct vocab_trie_token *tokens = get_small(&n);
	const struct grammar_counters *counters;
	struct grammar_cursor *other;
	struct err e = ERR_NULL;
	const uint32_t *mask;
	struct site s;
	(void)state;

	site_init(&s, "root ::= [ab]* \"c\"", tokens, n);
	counters = grammar_get_counters(s.grammar);
	assert_int_equal(grammar_cursor_new(s.grammar, &e, &other), 0);
	compare(&s);
	assert_int_equal(counters->made, 1);
	accept(&s, 0);
	accept(&s, 6);
	compare(&s);
	assert_int_equal(grammar_get_mask(other, &e, &mask), 0);
	/* [ab]* is one state however often it was gone round. */
	assert_int_equal(counters->made, 1);
	assert_int_equal(counters->found, 2);
	assert_int_equal(grammar_accept(other, "c", 1, &e), 0);
	assert_int_equal(grammar_get_mask(other, &e, &mask), 0);
	assert_int_equal(counters->made, 2);
	assert_true(grammar_is_final(other));
	assert_false(grammar_is_final(s.cursor));
	grammar_cursor_free(other);
	site_fini(&s);
}

/* Depth is a state of its own: the tables fill, are emptied, and what is pinned lives on. */
static void test_full_tables_are_emptied(void **state)
{
	const struct vocab_trie_token *tokens;
	struct grammar_cursor *pinned;
	struct err e = ERR_NULL;
	uint64_t seed = 4;
	const uint32_t *mask;
	uint32_t n;
	struct site s;
	(void)state;

	tokens = get_small(&n);
	site_init(&s, "root ::= (\"a\" | \"b\" | \"(\" root \")\"){0,4000}", tokens, n);
	assert_int_equal(grammar_cursor_new(s.grammar, &e, &pinned), 0);
	assert_int_equal(grammar_accept(pinned, "a(b(", 4, &e), 0);
	for (int i = 0; i < 3000; i++) {
		static const char *const moves[] = {"a", "b", "(a)", "((b)", ")"};

		mask = get_mask(&s);
		(void)mask;
		int r = grammar_accept(s.cursor, moves[i % 5], (uint32_t)strlen(moves[i % 5]), &e);
		assert_int_equal(r, 0);
	}
	assert_true(grammar_get_counters(s.grammar)->flushed > 0);
	/* The reference goes with the pinned one. */
	for (int i = 0; i < 4; i++)
		assert_true(earley_push(s.earley, (uint8_t) "a(b("[i]));
	s.n_bytes = 4;
	struct grammar_cursor *walked = s.cursor;
	s.cursor = pinned;
	wander(&s, &seed, 4);
	s.cursor = walked;
	grammar_cursor_free(pinned);
	site_fini(&s);
}

static void test_nesting_is_capped(void **state)
{
	uint32_t n;
	const struct vocab_trie_token *tokens = get_small(&n);
	const uint32_t *mask;
	struct err e = ERR_NULL;
	struct site s;
	int depth = 0;
	(void)state;

	site_init(&s, "root ::= \"(\" root \")\" | \"a\"", tokens, n);
	while (grammar_accept(s.cursor, "(", 1, &e) == 0)
		depth++;
	assert_in_range(depth, 200, 300);
	mask = get_mask(&s);
	assert_true(is_set(mask, 0));
	assert_false(is_set(mask, 9));
	assert_int_equal(grammar_accept(s.cursor, "a", 1, &e), 0);
	while (depth--)
		assert_int_equal(grammar_accept(s.cursor, ")", 1, &e), 0);
	assert_true(grammar_is_final(s.cursor));
	site_fini(&s);
}

static void test_too_many_ways_are_refused(void **state)
{
	uint32_t n;
	const struct vocab_trie_token *tokens = get_small(&n);
	struct err e = ERR_NULL;
	struct grammar *g;
	struct grammar_cursor *c = NULL;
	struct vocab_trie *trie;
	(void)state;

	assert_int_equal(vocab_trie_new(tokens, n, &trie), 0);
	assert_int_equal(
		grammar_new(parse("root ::= (x{0,4000}){2}\nx ::= [ab] | \"c\" | \"(\""), trie, &g),
		0);
	assert_int_equal(grammar_cursor_new(g, &e, &c), 0);
	grammar_cursor_free(c);
	grammar_free(g);
	assert_int_equal(
		grammar_new(parse("root ::= (\"a\"? \"b\"? \"c\"? \"(\"?){1100}"), trie, &g), 0);
	assert_int_equal(grammar_cursor_new(g, &e, &c), -E2BIG);
	assert_string_equal(
		e.text, "grammar: expected a text to be read in at most 4096 ways, found more");
	grammar_free(g);
	vocab_trie_free(trie);
}

/* More states than masks are kept: the least recently used go, and come back the same. */
static void test_masks_go_when_there_are_many(void **state)
{
	/* So many tokens that few masks fit. */
	const uint32_t n = GRAMMAR_MASK_BYTES / 12 * 8;
	struct vocab_trie_token *tokens = calloc(n, sizeof(*tokens));
	static uint8_t bytes[2] = "ab";
	struct err e = ERR_NULL;
	struct site s;
	(void)state;

	assert_non_null(tokens);
	for (uint32_t i = 0; i < 2; i++)
		tokens[i] = (struct vocab_trie_token){&bytes[i], 1, true, false};
	site_init(&s, "root ::= \"a\"{30} \"b\"", tokens, n);
	struct grammar_cursor *again;
	assert_int_equal(grammar_cursor_new(s.grammar, &e, &again), 0);
	for (int i = 0; i <= 30; i++) {
		assert_int_equal(get_mask(&s)[0], i < 30 ? 1 : 2);
		assert_int_equal(grammar_accept(s.cursor, i < 30 ? "a" : "b", 1, &e), 0);
	}
	assert_int_equal(grammar_get_counters(s.grammar)->made, 31);
	grammar_cursor_free(s.cursor);
	s.cursor = again;
	for (int i = 0; i <= 30; i++) {
		for (int k = 0; k < 2; k++)
			assert_int_equal(get_mask(&s)[0], i < 30 ? 1 : 2);
		assert_int_equal(grammar_accept(s.cursor, i < 30 ? "a" : "b", 1, &e), 0);
	}
	assert_int_equal(grammar_get_counters(s.grammar)->made, 62);
	assert_int_equal(grammar_get_counters(s.grammar)->found, 31);
	site_fini(&s);
	free(tokens);
}

/* A hostile grammar: every byte takes thousands of steps, and a token has thousands of bytes. */
static void test_work_is_capped(void **state)
{
	static uint8_t bytes[3000];
	const struct vocab_trie_token token = {bytes, sizeof(bytes), true, false};
	char *text = malloc(GBNF_MAX_BYTES);
	struct vocab_trie *trie;
	struct grammar *g;
	struct grammar_cursor *c;
	const uint32_t *mask;
	struct err e = ERR_NULL;
	int n;
	(void)state;

	assert_non_null(text);
	memset(bytes, 'a', sizeof(bytes));
	n = sprintf(text, "root ::= r0{4000}\n");
	for (int i = 0; i < 2000; i++)
		n += sprintf(text + n, "r%d ::= r%d\n", i, i + 1);
	sprintf(text + n, "r2000 ::= \"a\"\n");
	assert_int_equal(vocab_trie_new(&token, 1, &trie), 0);
	assert_int_equal(grammar_new(parse(text), trie, &g), 0);
	assert_int_equal(grammar_cursor_new(g, &e, &c), 0);
	assert_int_equal(grammar_get_mask(c, &e, &mask), -EOVERFLOW);
	assert_string_equal(e.text,
		"grammar: expected at most 4194304 steps to find the next tokens, found more");
	grammar_cursor_free(c);
	grammar_free(g);
	vocab_trie_free(trie);
	free(text);
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Not a test but a figure: a mask that is made, one that is kept. */
static void test_print_what_a_mask_costs(void **state)
{
	struct manifest *m = shipped_model_open();
	struct vocab_trie_token *tokens = get_shipped(m);
	uint32_t n_copies = 32, n = m->n_vocab * n_copies;
	struct vocab_trie_token *many = calloc(n, sizeof(*many));
	uint8_t *bytes = calloc(n, 64);
	struct err e = ERR_NULL;
	struct site s;
	(void)state;

	/* As many texts as a large vocabulary has: each with two letters behind it. */
	assert_non_null(many);
	assert_non_null(bytes);
	for (uint32_t i = 0; i < n; i++) {
		const struct vocab_trie_token *t = &tokens[i % m->n_vocab];

		many[i] = *t;
		if (t->n_bytes > 60)
			continue;
		memcpy(bytes + 64ull * i, t->bytes, t->n_bytes);
		many[i].bytes = bytes + 64ull * i;
		for (uint32_t k = i / m->n_vocab; k; k /= 6)
			bytes[64ull * i + many[i].n_bytes++] = (uint8_t)('a' + k % 6);
	}
	site_init(&s, json_grammar, many, n);
	assert_int_equal(grammar_accept(s.cursor, "{\"a", 3, &e), 0);
	double start = seconds();
	get_mask(&s);
	double made = seconds();
	for (int i = 0; i < 1000; i++)
		get_mask(&s);
	double kept = seconds();
	printf("# %u tokens, inside a string: %.3f ms to make a mask, %.6f ms to find it\n", n,
		(made - start) * 1e3, (kept - made));
	site_fini(&s);
	free(many);
	free(bytes);
	free(tokens);
	manifest_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_masks_of_small_grammars),
		CASE(test_masks_of_random_grammars),
		CASE(test_masks_of_json_with_the_shipped_vocabulary),
		CASE(test_the_trie_of_a_manifest),
		CASE(test_a_refused_token_leaves_the_cursor),
		CASE(test_masks_are_kept_by_state),
		CASE(test_full_tables_are_emptied),
		CASE(test_nesting_is_capped),
		CASE(test_too_many_ways_are_refused),
		CASE(test_masks_go_when_there_are_many),
		CASE(test_work_is_capped),
		CASE(test_print_what_a_mask_costs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
