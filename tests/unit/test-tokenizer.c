/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/tokenizer.h"

#include <errno.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "tests/case.h"
#include "tests/unit/shipped-model.h"
#include "workerd/bpe.h"

static struct manifest *shipped;
static struct tokenizer *tokenizer; /* of the shipped model */

static void encode(struct tokenizer *t, const char *text, uint64_t n_bytes, bool parse_special,
	struct tokenizer_ids *ids)
{
	struct err err = ERR_NULL;
	int r = tokenizer_encode(t, text, n_bytes, parse_special, &err, ids);

	if (r < 0)
		fail_msg("%d: %s", r, err.text);
}

static void assert_ids(const struct tokenizer_ids *ids, uint64_t n, const uint32_t *expected)
{
	assert_int_equal(ids->n, n);
	for (uint64_t i = 0; i < n; i++)
		assert_int_equal(ids->ids[i], expected[i]);
}

/* The bytes of the tokens, behind each other, are the text. */
static void assert_bytes(
	struct tokenizer *t, const struct tokenizer_ids *ids, const char *text, uint64_t n_bytes)
{
	uint64_t at = 0;

	for (uint64_t i = 0; i < ids->n; i++) {
		const char *bytes;
		uint32_t n;

		assert_int_equal(tokenizer_get_bytes(t, ids->ids[i], NULL, &bytes, &n), 0);
		assert_true(n <= n_bytes - at);
		assert_memory_equal(bytes, text + at, n);
		at += n;
	}
	assert_int_equal(at, n_bytes);
}

static void test_reference(void **state)
{
	(void)state;
	json_t *ref = shipped_model_ref("tokenization.json"), *row;
	json_t *cases = json_object_get(ref, "cases");
	size_t i, n_wrong = 0;

	assert_int_equal(json_array_size(cases), 200);
	json_array_foreach(cases, i, row)
	{
		json_t *text = json_object_get(row, "text"),
		       *expected = json_object_get(row, "ids");
		struct tokenizer_ids ids = {0};

		encode(tokenizer, json_string_value(text), json_string_length(text), true, &ids);
		bool same = ids.n == json_array_size(expected);
		for (uint64_t k = 0; same && k < ids.n; k++)
			same = ids.ids[k] == json_integer_value(json_array_get(expected, k));
		if (!same) {
			fprintf(stderr, "case %zu: %s\n", i, json_string_value(text));
			n_wrong++;
		}
		assert_bytes(tokenizer, &ids, json_string_value(text), json_string_length(text));
		tokenizer_ids_fini(&ids);
	}
	json_decref(ref);
	assert_int_equal(n_wrong, 0);
}

/* xorshift32, https://www.jstatsoft.org/article/view/v008i14: any fixed sequence would do. */
static uint32_t next_random(uint32_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 17;
	*x ^= *x << 5;
	return *x;
}

static void test_random_bytes(void **state)
{
	(void)state;
	static const char *const pieces[] = {"<|im_start|>", "<|im_", " ", "\n", "\r\n",
		"\xe3\x80\x80", "\xf0\x9f\x98\x80", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80",
		"the", "'s", "7", "\xe3\x80", "\xcc\x81", "\xe1\xa0\x8e"};
	uint32_t x = 1;

	for (int round = 0; round < 2000; round++) {
		char text[256];
		uint32_t n = 0;

		while (n < 200 && next_random(&x) % 64) {
			const char *piece = pieces[next_random(&x) % ARRAY_SIZE(pieces)];
			if (next_random(&x) % 2) {
				text[n++] = (char)next_random(&x);
			} else {
				memcpy(text + n, piece, strlen(piece));
				n += (uint32_t)strlen(piece);
			}
		}
		struct tokenizer_ids ids = {0};
		encode(tokenizer, text, n, round % 2, &ids);
		assert_bytes(tokenizer, &ids, text, n);
		tokenizer_ids_fini(&ids);
	}
}

/* A megabyte of one thing ends within the case's time; quadratic work would take hours. */
static void test_long_texts(void **state)
{
	(void)state;
	static const char *const units[] = {"a", " ", "\n", "\r", "\t", "<", "1", "'", ".", "\xff",
		"\xe3\x80\x80", "\xc3\xa9", "\xf0\x9f\x98\x80", "\xcc\x81", "<|im_start|>",
		"<|im_start|", "e ", " \n", "'s", " x", "the", "\xe3\x80"};
	enum { N_BYTES = 1000000 };
	char *text = malloc(N_BYTES + 1);

	assert_non_null(text);
	for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
		size_t n_unit = strlen(units[i]);
		struct tokenizer_ids ids = {0};

		for (size_t at = 0; at < N_BYTES; at++)
			text[at] = units[i][at % n_unit];
		text[N_BYTES - 1] = 'x'; /* what runs of blanks must look ahead to */
		encode(tokenizer, text, N_BYTES, true, &ids);
		assert_bytes(tokenizer, &ids, text, N_BYTES);
		tokenizer_ids_fini(&ids);
	}
	free(text);
}

/* The definition: while a pair merges, replace the one of lowest rank, the leftmost of equals. */
static uint32_t merge_naively(const struct manifest *m, uint32_t *ids, uint32_t n)
{
	for (;;) {
		const struct manifest_merge *best = NULL;
		uint32_t at = 0;

		for (uint32_t i = 0; i + 1 < n; i++) {
			const struct manifest_merge *p = manifest_find_merge(m, ids[i], ids[i + 1]);
			if (p && (!best || p->rank < best->rank)) {
				best = p;
				at = i;
			}
		}
		if (!best)
			return n;
		ids[at] = best->result;
		memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof(*ids));
		n--;
	}
}

/* Words on both sides of the length where scanning gives way to a heap. */
static void test_merges(void **state)
{
	(void)state;
	static const char letters[] = "aeiounrtsl hcTd";
	struct bpe *b = NULL;
	uint32_t x = 7;

	assert_int_equal(bpe_new(shipped, &b), 0);
	for (int round = 0; round < 3000; round++) {
		uint8_t word[160];
		uint32_t expected[160], n = 1 + next_random(&x) % 160,
					n_letters = 1 + next_random(&x) % 15;
		struct tokenizer_ids ids = {0};

		for (uint32_t i = 0; i < n; i++) {
			word[i] = (uint8_t)letters[next_random(&x) % n_letters];
			expected[i] = shipped->byte_tokens[word[i]];
		}
		assert_int_equal(bpe_encode(b, word, n, NULL, &ids), 0);
		assert_ids(&ids, merge_naively(shipped, expected, n), expected);
		tokenizer_ids_fini(&ids);
	}
	bpe_free(b);
}

/* A vocabulary made by hand: 256 bytes, then what is added. */
struct made {
	struct manifest m;
	struct manifest_tokenizer tokenizer;
	char strings[1024];
	struct manifest_token tokens[320];
	uint32_t byte_tokens[256];
	struct manifest_merge merges[64];
	uint32_t specials[64];
};

static uint32_t add_token(struct made *v, const char *bytes, uint32_t n_bytes, uint32_t type)
{
	uint32_t id = v->m.n_vocab++;

	v->tokens[id] = (struct manifest_token){
		.bytes = {.offset = (uint32_t)v->m.n_string_bytes, .n_bytes = n_bytes},
		.type = type};
	memcpy(v->strings + v->m.n_string_bytes, bytes, n_bytes);
	v->m.n_string_bytes += n_bytes;
	if (type == MANIFEST_TOKEN_CONTROL || type == MANIFEST_TOKEN_USER)
		v->specials[v->m.n_specials++] = id;
	return id;
}

static void add_merge(struct made *v, uint32_t left, uint32_t right, uint32_t rank, uint32_t result)
{
	uint32_t at = manifest_hash_pair(left, right) & v->m.merge_mask;

	while (v->merges[at].left != MANIFEST_NONE)
		at = (at + 1) & v->m.merge_mask;
	v->merges[at] = (struct manifest_merge){left, right, rank, result};
}

static void make(struct made *v)
{
	*v = (struct made){
		.tokenizer = {.model = MANIFEST_TOKENIZER_BPE, .pre = MANIFEST_PRE_QWEN2}};
	v->m.tokenizer = &v->tokenizer;
	v->m.strings = (const uint8_t *)v->strings;
	v->m.tokens = v->tokens;
	v->m.byte_tokens = v->byte_tokens;
	v->m.merges = v->merges;
	v->m.merge_mask = ARRAY_SIZE(v->merges) - 1;
	v->m.specials = v->specials;
	for (uint32_t i = 0; i < ARRAY_SIZE(v->merges); i++)
		v->merges[i].left = MANIFEST_NONE;
	for (int i = 0; i < 256; i++)
		v->byte_tokens[i] = add_token(v, &(char){(char)i}, 1, MANIFEST_TOKEN_NORMAL);
}

static void assert_made(struct tokenizer *t, const char *text, bool parse_special, uint32_t n,
	const uint32_t *expected)
{
	struct tokenizer_ids ids = {0};

	encode(t, text, strlen(text), parse_special, &ids);
	assert_ids(&ids, n, expected);
	tokenizer_ids_fini(&ids);
}

#define ASSERT_MADE(t, text, parse_special, ...)                                                  \
	assert_made(t, text, parse_special, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), \
		(const uint32_t[]){__VA_ARGS__})

static void test_specials(void **state)
{
	(void)state;
	struct made v;
	struct tokenizer *t = NULL;

	make(&v);
	uint32_t long_control = add_token(&v, "<ab>", 4, MANIFEST_TOKEN_CONTROL);
	uint32_t short_control = add_token(&v, "<a", 2, MANIFEST_TOKEN_CONTROL);
	uint32_t user = add_token(&v, "<u", 2, MANIFEST_TOKEN_USER);
	uint32_t long_user = add_token(&v, "<a--", 4, MANIFEST_TOKEN_USER);
	assert_int_equal(tokenizer_new(&v.m, NULL, &t), 0);

	ASSERT_MADE(t, "<ab>", true, long_control);
	ASSERT_MADE(t, "<ab", true, short_control, 'b');
	ASSERT_MADE(t, "<a", true, short_control);
	ASSERT_MADE(t, "<", true, '<');
	ASSERT_MADE(t, "<<a<ab><a", true, '<', short_control, long_control, short_control);
	ASSERT_MADE(t, "<a--<a-", true, long_user, short_control, '-');
	ASSERT_MADE(t, "x<u<ab>", true, 'x', user, long_control);
	ASSERT_MADE(t, "x<u<ab>", false, 'x', user, '<', 'a', 'b', '>');
	ASSERT_MADE(t, "<a--<a-", false, long_user, '<', 'a', '-');
	tokenizer_free(t);
}

/* A merge across the end of a word is not made: so it shows where words end. */
static void test_words(void **state)
{
	(void)state;
	struct made v;
	struct tokenizer *t = NULL;

	make(&v);
	uint32_t mark = add_token(&v, "!\xe1", 2, MANIFEST_TOKEN_NORMAL);
	uint32_t s = add_token(&v, "'S", 2, MANIFEST_TOKEN_NORMAL);
	uint32_t sx = add_token(&v, "Sx", 2, MANIFEST_TOKEN_NORMAL);
	uint32_t blanks = add_token(&v, "  ", 2, MANIFEST_TOKEN_NORMAL);
	uint32_t word = add_token(&v, " w", 2, MANIFEST_TOKEN_NORMAL);
	uint32_t lines = add_token(&v, "\n\n", 2, MANIFEST_TOKEN_NORMAL);
	uint32_t longs = add_token(&v, "\xbfy", 2, MANIFEST_TOKEN_NORMAL);
	add_merge(&v, '!', 0xe1, 0, mark);
	add_merge(&v, 'S', 'x', 1, sx);
	add_merge(&v, '\'', 'S', 2, s);
	add_merge(&v, ' ', ' ', 3, blanks);
	add_merge(&v, ' ', 'w', 4, word);
	add_merge(&v, '\n', '\n', 5, lines);
	add_merge(&v, 0xbf, 'y', 6, longs);
	assert_int_equal(tokenizer_new(&v.m, NULL, &t), 0);

	/* U+180E is no White_Space, U+3000 and U+0085 are. */
	ASSERT_MADE(t, "!\xe1\xa0\x8e", false, mark, 0xa0, 0x8e);
	ASSERT_MADE(t, "!\xe1\x9a\x80", false, '!', 0xe1, 0x9a, 0x80); /* U+1680: a space */
	ASSERT_MADE(t, "\xe3\x80\x80 w", false, 0xe3, 0x80, 0x80, word);
	ASSERT_MADE(t, "\xc2\x85\n\n", false, 0xc2, 0x85, lines);
	/* The contraction ends before the x; U+017F is an s without case. */
	ASSERT_MADE(t, "'Sx", false, s, 'x');
	ASSERT_MADE(t, "'\xc5\xbfy", false, '\'', 0xc5, 0xbf, 'y');
	ASSERT_MADE(t, "\"\xc5\xbfy", false, '"', 0xc5, longs);
	/* The last blank of a run belongs to the word behind it, if there is one. */
	ASSERT_MADE(t, "   w", false, blanks, word);
	ASSERT_MADE(t, "  ", false, blanks);
	ASSERT_MADE(t, "  \n\n  w", false, blanks, lines, ' ', word);
	tokenizer_free(t);
}

static void test_refusals(void **state)
{
	(void)state;
	struct made v;
	struct tokenizer *t = NULL;
	struct err err = ERR_NULL;
	struct tokenizer_ids ids = {0};

	make(&v);
	v.byte_tokens['q'] = MANIFEST_NONE;
	assert_int_equal(tokenizer_new(&v.m, &err, &t), 0);
	encode(t, "ab", 2, false, &ids);
	assert_int_equal(tokenizer_encode(t, "cdq", 3, false, &err, &ids), -EINVAL);
	assert_non_null(strstr(err.text, "0x71"));
	assert_ids(&ids, 2, (const uint32_t[]){'a', 'b'});
	assert_int_equal(
		tokenizer_encode(t, "", (uint64_t)TOKENIZER_MAX_BYTES + 1, false, &err, &ids),
		-E2BIG);
	tokenizer_ids_fini(&ids);

	const char *bytes;
	uint32_t n;
	assert_int_equal(tokenizer_get_bytes(t, 256, &err, &bytes, &n), -EINVAL);
	assert_non_null(strstr(err.text, "256"));
	assert_int_equal(tokenizer_get_bytes(t, 'x', &err, &bytes, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(bytes[0], 'x');
	t = tokenizer_free(t);

	v.tokenizer.pre = 99;
	assert_int_equal(tokenizer_new(&v.m, &err, &t), -ENOTSUP);
	assert_non_null(strstr(err.text, "99"));
	v.tokenizer.model = MANIFEST_TOKENIZER_NONE;
	assert_int_equal(tokenizer_new(&v.m, &err, &t), -ENOTSUP);
	assert_null(t);
}

static void test_whole_utf8(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		uint64_t n_whole;
	} rows[] = {
		{"", 0},
		{"a", 1},
		{"a\xc3", 1},
		{"a\xc3\xa9", 3},
		{"\xe3", 0},
		{"\xe3\x80", 0},
		{"\xe3\x80\x80", 3},
		{"\xf0\x9f\x98", 0},
		{"x\xf0\x9f", 1},
		{"\xf0\x9f\x98\x80", 4},
		{"\xf0\x9f\x98\x80\xf0", 4},
		{"\x80", 1},             /* continues nothing */
		{"\xff", 1},             /* in no character */
		{"\xc0", 1},             /* overlong */
		{"\xed\xa0", 2},         /* a surrogate */
		{"\xed\x9f", 0},         /* U+D7C0 and on */
		{"\xf4\x90", 2},         /* above U+10FFFF */
		{"\xe0\x80", 2},         /* overlong */
		{"\xe3\x80\x80\x80", 4}, /* one too many */
		{"\xe3x", 2},
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		assert_int_equal(
			tokenizer_whole_utf8(rows[i].text, strlen(rows[i].text)), rows[i].n_whole);
}

static int open_shipped(void **state)
{
	(void)state;
	shipped = shipped_model_open();
	return tokenizer_new(shipped, NULL, &tokenizer);
}

static int close_shipped(void **state)
{
	(void)state;
	tokenizer = tokenizer_free(tokenizer);
	shipped = manifest_free(shipped);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_reference),
		CASE(test_random_bytes),
		CASE(test_long_texts),
		CASE(test_merges),
		CASE(test_specials),
		CASE(test_words),
		CASE(test_refusals),
		CASE(test_whole_utf8),
	};

	return cmocka_run_group_tests(tests, open_shipped, close_shipped);
}
