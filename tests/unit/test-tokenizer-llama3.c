/* SPDX-License-Identifier: Apache-2.0 */
/* Llama 3's words: where they end, and that a word which is a token needs no merges. */
#include <string.h>

#include "proto/util/err.h"
#include "tests/case.h"
#include "tests/unit/pair-vocabulary.h"
#include "workerd/tokenizer.h"

/*
 * Tokens with a | between them, as llama.cpp makes them with a file of the same vocabulary and
 * tokenizer.ggml.pre "llama-bpe": llama_tokenize of the CPU libraries in the npm package
 * node-llama-cpp 3.22.1 (llama.cpp release v0.5.0 as it calls it), 1 December 2026. In the same run
 * another 8,700 random texts were looked at, and in four surroundings the code points below U+20000
 * and some of those above: U+017F after an apostrophe is a contraction here and not there (it is
 * one by the expression in Llama's tokenizer.json), and letters and digits since Unicode 15 are
 * none for PCRE2 10.42.
 */
static const char *const rows[] = {
	"hello",
	"hello| world",
	"hello| | world",
	"H|el|lo| h|el|lo",
	" world| world",
	"x| y",
	"123",
	"123|4",
	"123|45",
	"123|4|56|7|89|0",
	"a|1|b|23|c|4|56|d|7|89|0",
	"3|.|1|41|59",
	"1|,|00|0|,|00|0",
	" |12",
	" |123|4",
	"\xd9|\xa3\xd9|\xa4\xd9|\xa5|\xd9\xa6|\xd9\xa7",
	"\xe0\xa5|\xa7|\xe0\xa5|\xa8|\xe0\xa5|\xa9|\xe0\xa5|\xaa|\xe0\xa5|\xab| x",
	"\xe2|\x91\xa0|\xe2\x91|\xa1|\xe2\x91|\xa2|\xe2\x91|\xa3|\xe2\x91|\xa4",
	"\xc2|\xbd\xe2|\x85\xa7|\xc2\xb2|\xc2\xb3|\xc2\xb9",
	"do|n|'t",
	"D|ON|'T",
	"I|'ll| w|e|'v|e| |th|ey|'R|E| h|e|'d| I|'m| |it|'S",
	"I|'|LL",
	"'ll",
	"'t|is",
	"'x",
	"''|s",
	"a|'s|b",
	"'r|e|'",
	"o|'|cl|oc|k|'s",
	"a|\n|b",
	"a|\n\n\n|b",
	"\n\n\n",
	"a| \n| b",
	"a|\r\n|b",
	"\r|\n\r|\n",
	" \n",
	"\n| ",
	" | \n|\n| | x",
	"\t|\tx",
	"a|\t| b",
	"x|  | y",
	"  | ",
	"x|  ",
	"x| |\xc2\xa0| y",
	"x|\xe3\x80|\x80y",
	"\xe3|\x80\x80|\xe3|\x80\x80|\xe6|\x9d\xb1|\xe4|\xba\xac",
	"\xe6\x9d\xb1\xe4\xba\xac| \xe6|\x9d\xb1|\xe4|\xba\xac",
	"\xe2\x80|\xa8x",
	"\xc2\x85|\n\n",
	"\xe1|\xa0\x8e|x",
	"\xe2\x80|\x8bx",
	"\xe1|\x9a\x80| x",
	" !!!",
	"!!|!",
	" !|!!|!",
	"..|.\n|\n",
	"?|!\r|\n\n|x",
	" |--| x",
	"$|1|,|2|34|.|56",
	"a|_b|-c",
	"C|++| <|b|>",
	"{\"|a|\":| [|1|,| |23|]}",
	"ht|tp|:|//|a|.b|/c|?d|=|1",
	"e|\xcc|\x81t|\xc3\xa9",
	"\xc4\xb0|st|a|nb|ul| |\xc3\x9f|\xc3\x9f",
	"\xe4|\xb8\xad|\xe6\x96|\x87|\xe5\xad|\x97|123",
	"\xed\x95|\x9c\xea|\xb5|\xad\xec|\x96\xb4| \xed|\x85\x8c|\xec|\x8a\xa4|\xed\x8a|\xb8",
	"\xd7\xa2|\xd7\x91|\xd7\xa8|\xd7\x99|\xd7\xaa| |123|45",
	"\xe0|\xb9\x84|\xe0\xb8|\x97|\xe0\xb8|\xa2\xe0|\xb9|\x81\xe0|\xb8\xa5|\xe0|\xb8\x99|"
	"\xe0\xb8|\x94|\xe0|\xb9\x8c",
	"\xf0|\x9f\x98|\x80\xf0|\x9f\x98|\x80| "
	"\xf0|\x9f|\x91\xa9|\xe2\x80|\x8d\xf0|\x9f|\x91\xa9|\xe2\x80|\x8d\xf0|\x9f|\x91\xa7",
	"\xf0\x9f|\x87\xa9|\xf0\x9f|\x87\xaa|x",
	"\x7f\xc2|\x80|x",
};

/* The text of a row, and its tokens as the row has them. */
static void tokenize(struct tokenizer *t, const char *row, char *ret_text, char *ret_tokens)
{
	struct tokenizer_ids ids = {0};
	struct err err = ERR_NULL;
	size_t n_text = 0, n = 0;

	for (; *row; row++)
		if (*row != '|')
			ret_text[n_text++] = *row;
	if (tokenizer_encode(t, ret_text, n_text, true, &err, &ids))
		fail_msg("%s", err.text);
	for (uint64_t i = 0; i < ids.n; i++) {
		const char *bytes = NULL;
		uint32_t n_bytes = 0;

		assert_int_equal(tokenizer_get_bytes(t, ids.ids[i], &err, &bytes, &n_bytes), 0);
		if (i)
			ret_tokens[n++] = '|';
		memcpy(ret_tokens + n, bytes, n_bytes);
		n += n_bytes;
	}
	ret_tokens[n] = '\0';
	tokenizer_ids_fini(&ids);
}

static void test_reference(void **state)
{
	struct pair_vocabulary v;
	struct tokenizer *t = NULL;
	struct err err = ERR_NULL;
	char text[128], tokens[256];

	(void)state;
	pair_vocabulary_init(&v, MANIFEST_PRE_LLAMA3);
	assert_int_equal(tokenizer_new(&v.m, &err, &t), 0);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		assert_in_range(strlen(rows[i]), 1, sizeof(text) - 1);
		tokenize(t, rows[i], text, tokens);
		assert_string_equal(tokens, rows[i]);
	}
	tokenizer_free(t);
	pair_vocabulary_fini(&v);
}

/* The same vocabulary with the words of Qwen 2: digits alone, and merges or nothing. */
static void test_others_take_no_words(void **state)
{
	static const char *const qwen2_rows[] = {
		"he|l|lo", " |w|or|l|d", "1|2|3", "\n\n|\n", "'|l|l", "x| y"};
	struct pair_vocabulary v;
	struct tokenizer *t = NULL;
	struct err err = ERR_NULL;
	char text[128], tokens[256];
	size_t n_other = 0;

	(void)state;
	pair_vocabulary_init(&v, MANIFEST_PRE_QWEN2);
	assert_int_equal(tokenizer_new(&v.m, &err, &t), 0);
	for (size_t i = 0; i < ARRAY_SIZE(qwen2_rows); i++) {
		tokenize(t, qwen2_rows[i], text, tokens);
		for (char *word = strtok(tokens, "|"); word; word = strtok(NULL, "|"))
			assert_true(strlen(word) <= 2);
	}
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		tokenize(t, rows[i], text, tokens);
		n_other += strcmp(tokens, rows[i]) != 0;
	}
	assert_in_range(n_other, 10, ARRAY_SIZE(rows) / 2);
	tokenizer_free(t);
	pair_vocabulary_fini(&v);
}

/* Control tokens are what parse_special says, also where the text of one is a word. */
static void test_specials_are_no_words(void **state)
{
	struct pair_vocabulary v;
	struct tokenizer *t = NULL;
	struct tokenizer_ids ids = {0};

	(void)state;
	pair_vocabulary_init(&v, MANIFEST_PRE_LLAMA3);
	v.tokens[PAIR_VOCABULARY_FIRST_WORD].type = MANIFEST_TOKEN_CONTROL;    /* "hello" */
	v.tokens[PAIR_VOCABULARY_FIRST_WORD + 1].type = MANIFEST_TOKEN_UNUSED; /* " world" */
	assert_int_equal(tokenizer_new(&v.m, NULL, &t), 0);
	assert_int_equal(tokenizer_encode(t, "hello world", 11, false, NULL, &ids), 0);
	for (uint64_t i = 0; i < ids.n; i++)
		assert_true(ids.ids[i] < PAIR_VOCABULARY_FIRST_WORD);
	ids.n = 0;
	assert_int_equal(tokenizer_encode(t, "<|eot_id|>", 10, false, NULL, &ids), 0);
	assert_true(ids.n > 4);
	ids.n = 0;
	assert_int_equal(tokenizer_encode(t, "x<|eot_id|>y", 12, true, NULL, &ids), 0);
	assert_int_equal(ids.n, 3);
	assert_int_equal(ids.ids[1], PAIR_VOCABULARY_EOT);
	tokenizer_ids_fini(&ids);
	tokenizer_free(t);
	pair_vocabulary_fini(&v);
}

/* A megabyte of one thing ends within the case's time. */
static void test_long_texts(void **state)
{
	static const char *const units[] = {"1", "12a", " ", "\n", " \n", "a", "'", "\xd9\xa3"};
	enum { N_BYTES = 1000000 };
	struct pair_vocabulary v;
	struct tokenizer *t = NULL;
	char *text = malloc(N_BYTES);

	(void)state;
	assert_non_null(text);
	pair_vocabulary_init(&v, MANIFEST_PRE_LLAMA3);
	assert_int_equal(tokenizer_new(&v.m, NULL, &t), 0);
	for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
		struct tokenizer_ids ids = {0};
		for (size_t at = 0; at < N_BYTES; at++)
			text[at] = units[i][at % strlen(units[i])];
		assert_int_equal(tokenizer_encode(t, text, N_BYTES, true, NULL, &ids), 0);
		assert_in_range(ids.n, N_BYTES / 6, N_BYTES);
		tokenizer_ids_fini(&ids);
	}
	free(text);
	tokenizer_free(t);
	pair_vocabulary_fini(&v);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_reference),
		CASE(test_others_take_no_words),
		CASE(test_specials_are_no_words),
		CASE(test_long_texts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
