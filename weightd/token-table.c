/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/token-table.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/gguf.h"
#include "weightd/validate.h"

enum { N_BYTE_CHARS = 512 }; /* code points that may stand for a byte are below 256 + 68 */

struct builder {
	const struct validate_model *model;
	struct err *err;
	struct token_table t;
	int16_t byte_of_char[N_BYTE_CHARS]; /* -1: stands for no byte */
	struct gguf_string *raw;            /* [n_vocab] the tokens as in the file */
	uint8_t *scratch;                   /* room for the bytes of any merge */
};

/*
 * GPT-2's bytes_to_unicode: printable Latin-1 characters stand for their own byte; the other bytes,
 * in order, are the characters from U+0100 on.
 */
static void init_byte_chars(int16_t byte_of_char[static N_BYTE_CHARS])
{
	uint32_t n_others = 0;

	memset(byte_of_char, 0xff, N_BYTE_CHARS * sizeof(*byte_of_char));
	for (int b = 0; b < 256; b++) {
		bool own = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
		byte_of_char[own ? (uint32_t)b : 256 + n_others++] = (int16_t)b;
	}
}

/* Byte-level text to bytes, never more than it has; false when a character stands for no byte. */
static bool decode(const struct builder *b, const char *text, uint64_t n_bytes, uint8_t *ret,
	uint32_t *ret_n_bytes)
{
	uint32_t n = 0;

	for (uint64_t i = 0; i < n_bytes; i++) {
		uint32_t c = (uint8_t)text[i];

		/* UTF-8 of two bytes reaches U+07FF; longer forms stand for no byte. */
		if (c >= 0x80) {
			if (c < 0xc2 || c > 0xdf || i + 1 == n_bytes ||
				((uint8_t)text[i + 1] & 0xc0) != 0x80)
				return false;
			c = (c & 0x1f) << 6 | ((uint8_t)text[++i] & 0x3f);
		}
		if (c >= N_BYTE_CHARS || b->byte_of_char[c] < 0)
			return false;
		ret[n++] = (uint8_t)b->byte_of_char[c];
	}
	*ret_n_bytes = n;
	return true;
}

/* The table size for n entries: a power of two, at most two thirds full. */
static uint32_t count_slots(uint32_t n)
{
	uint32_t slots = 1;

	while (slots <= n + n / 2)
		slots *= 2;
	return slots;
}

static const uint8_t *get_bytes(const struct builder *b, uint32_t id, uint32_t *ret_n_bytes)
{
	*ret_n_bytes = b->t.tokens[id].bytes.n_bytes;
	return b->t.strings + b->t.tokens[id].bytes.offset;
}

static int add_token_bytes(struct builder *b, uint32_t id, struct gguf_string raw)
{
	struct manifest_token *token = &b->t.tokens[id];
	uint8_t *to = b->t.strings + b->t.n_string_bytes;
	uint32_t n = (uint32_t)raw.n_bytes;

	token->type = MANIFEST_TOKEN_NORMAL;
	if (b->model->token_types)
		memcpy(&token->type, b->model->token_types->data + 4 * (size_t)id, 4);
	if (b->model->scores)
		memcpy(&token->score, b->model->scores->data + 4 * (size_t)id, 4);
	if (token->type != MANIFEST_TOKEN_NORMAL)
		memcpy(to, raw.data, n);
	else if (!decode(b, raw.data, raw.n_bytes, to, &n))
		return err_set(b->err, EINVAL,
			"key tokenizer.ggml.tokens: token %" PRIu32
			": expected byte-level text, found \"%s\"",
			id, gguf_label(raw).text);
	token->bytes =
		(struct manifest_string){.offset = (uint32_t)b->t.n_string_bytes, .n_bytes = n};
	b->t.n_string_bytes += n;
	b->raw[id] = raw;
	return 0;
}

/* The slot of a token's bytes: with its id, or empty. */
static int find_slot(
	const struct builder *b, const uint8_t *data, uint32_t n_bytes, uint32_t *ret_slot)
{
	uint32_t mask = b->t.n_hash - 1;
	uint32_t slot = manifest_hash_bytes(data, n_bytes) & mask;

	for (uint32_t i = 0; i < TOKEN_TABLE_MAX_PROBES && i < b->t.n_hash; i++) {
		uint32_t id = b->t.hash[slot], n = 0;
		const uint8_t *other = id == MANIFEST_NONE ? NULL : get_bytes(b, id, &n);

		if (!other || (n == n_bytes && memcmp(other, data, n) == 0)) {
			*ret_slot = slot;
			return 0;
		}
		slot = (slot + 1) & mask;
	}
	return err_set(b->err, EINVAL,
		"key tokenizer.ggml.tokens: expected spread hashes, found %d tokens with "
		"neighbouring "
		"ones",
		TOKEN_TABLE_MAX_PROBES);
}

static int refuse_twice(const struct builder *b, uint32_t id, uint32_t other)
{
	return err_set(b->err, EINVAL,
		"key tokenizer.ggml.tokens: token %" PRIu32
		": expected a text of its own, found \"%s\" of token %" PRIu32,
		id, gguf_label(b->raw[id]).text, other);
}

static int hash_token(struct builder *b, uint32_t id)
{
	uint32_t slot, n;
	const uint8_t *data = get_bytes(b, id, &n);
	int r = find_slot(b, data, n, &slot);

	if (r < 0)
		return r;
	uint32_t other = b->t.hash[slot];
	if (other == MANIFEST_NONE) {
		b->t.hash[slot] = id;
		return 0;
	}
	/* Normal tokens come first and stay: a special one may look like their bytes. */
	bool same_kind = (b->t.tokens[id].type == MANIFEST_TOKEN_NORMAL) ==
			 (b->t.tokens[other].type == MANIFEST_TOKEN_NORMAL);
	bool same_text = b->raw[id].n_bytes == b->raw[other].n_bytes &&
			 memcmp(b->raw[id].data, b->raw[other].data, b->raw[id].n_bytes) == 0;
	if (!same_kind && !same_text)
		return 0;
	return refuse_twice(b, id, other);
}

static int hash_tokens(struct builder *b)
{
	int r = 0;

	memset(b->t.hash, 0xff, b->t.n_hash * sizeof(*b->t.hash));
	for (uint32_t id = 0; id < b->t.n_vocab && r == 0; id++)
		if (b->t.tokens[id].type == MANIFEST_TOKEN_NORMAL)
			r = hash_token(b, id);
	for (uint32_t id = 0; id < b->t.n_vocab && r == 0; id++)
		if (b->t.tokens[id].type != MANIFEST_TOKEN_NORMAL)
			r = hash_token(b, id);
	return r;
}

/* The normal token of these bytes, MANIFEST_NONE when there is none. */
static int find_normal(
	const struct builder *b, const uint8_t *data, uint32_t n_bytes, uint32_t *ret_id)
{
	uint32_t slot;
	int r = find_slot(b, data, n_bytes, &slot);

	if (r < 0)
		return r;
	uint32_t id = b->t.hash[slot];
	bool found = id != MANIFEST_NONE && b->t.tokens[id].type == MANIFEST_TOKEN_NORMAL;
	*ret_id = found ? id : MANIFEST_NONE;
	return 0;
}

static int find_byte_tokens(struct builder *b)
{
	int r = 0;

	for (uint32_t i = 0; i < 256 && r == 0; i++) {
		uint8_t byte = (uint8_t)i;
		r = find_normal(b, &byte, 1, &b->t.byte_tokens[i]);
	}
	return r;
}

/* Longest first; equal ones become neighbours. */
static int compare_specials(const void *x, const void *y, void *userdata)
{
	const struct builder *b = userdata;
	uint32_t n_x, n_y;
	const uint8_t *data_x = get_bytes(b, *(const uint32_t *)x, &n_x);
	const uint8_t *data_y = get_bytes(b, *(const uint32_t *)y, &n_y);

	return n_x != n_y ? (n_x < n_y) - (n_x > n_y) : memcmp(data_x, data_y, n_x);
}

static int list_specials(struct builder *b)
{
	uint32_t *specials = calloc(b->t.n_vocab, sizeof(*specials)), n = 0;

	if (!specials)
		return err_set(b->err, ENOMEM, "vocabulary: no memory for %u special tokens",
			b->t.n_vocab);
	b->t.specials = specials;
	for (uint32_t id = 0; id < b->t.n_vocab; id++) {
		uint32_t type = b->t.tokens[id].type;
		if (type == MANIFEST_TOKEN_CONTROL || type == MANIFEST_TOKEN_USER)
			specials[n++] = id;
	}
	b->t.n_specials = n;
	qsort_r(specials, n, sizeof(*specials), compare_specials, b);
	/* A normal token with the same bytes hides two of them from the hash. */
	for (uint32_t i = 1; i < n; i++)
		if (compare_specials(&specials[i - 1], &specials[i], b) == 0)
			return refuse_twice(b, specials[i], specials[i - 1]);
	return 0;
}

static int refuse_merge(
	const struct builder *b, uint32_t rank, struct gguf_string text, const char *expected)
{
	return err_set(b->err, EINVAL,
		"key tokenizer.ggml.merges: merge %" PRIu32 ": expected %s, found \"%s\"", rank,
		expected, gguf_label(text).text);
}

/* "left right" to three tokens; the space is the only one, as U+0120 stands for spaces. */
static int parse_merge(
	struct builder *b, uint32_t rank, struct gguf_string text, struct manifest_merge *ret)
{
	const char *space = text.n_bytes ? memchr(text.data, ' ', text.n_bytes) : NULL;
	struct manifest_merge m = {.rank = rank};
	uint32_t n_left, n_right;

	if (!space)
		return refuse_merge(b, rank, text, "two tokens with a space between them");
	uint64_t n = (uint64_t)(space - text.data);
	if (!decode(b, text.data, n, b->scratch, &n_left) ||
		!decode(b, space + 1, text.n_bytes - n - 1, b->scratch + n_left, &n_right))
		return refuse_merge(b, rank, text, "byte-level text");
	int r = find_normal(b, b->scratch, n_left, &m.left);
	if (r == 0)
		r = find_normal(b, b->scratch + n_left, n_right, &m.right);
	if (r == 0)
		r = find_normal(b, b->scratch, n_left + n_right, &m.result);
	if (r < 0)
		return r;
	if (m.left == MANIFEST_NONE || m.right == MANIFEST_NONE)
		return refuse_merge(b, rank, text, "two known tokens");
	if (m.result == MANIFEST_NONE)
		return refuse_merge(b, rank, text, "a known token as result");
	*ret = m;
	return 0;
}

static int hash_merge(struct builder *b, struct gguf_string text, struct manifest_merge m)
{
	uint32_t mask = b->t.n_merges - 1;
	uint32_t slot = manifest_hash_pair(m.left, m.right) & mask;

	for (uint32_t i = 0; i < TOKEN_TABLE_MAX_PROBES && i < b->t.n_merges; i++) {
		struct manifest_merge *other = &b->t.merges[slot];

		if (other->left == MANIFEST_NONE) {
			*other = m;
			return 0;
		}
		if (other->left == m.left && other->right == m.right)
			return refuse_merge(b, m.rank, text, "a pair of its own");
		slot = (slot + 1) & mask;
	}
	return refuse_merge(b, m.rank, text, "spread hashes");
}

static int hash_merges(struct builder *b)
{
	const struct gguf_kv *merges = b->model->merges;
	struct manifest_merge m = {.rank = 0};
	struct gguf_string text;
	uint64_t at = 0;
	int r = 0;

	memset(b->t.merges, 0xff, b->t.n_merges * sizeof(*b->t.merges));
	if (!merges)
		return 0;
	b->scratch = malloc(merges->n_bytes + 1);
	if (!b->scratch)
		return err_set(b->err, ENOMEM,
			"vocabulary: no memory for %" PRIu64 " bytes of merges", merges->n_bytes);
	for (uint32_t rank = 0; r == 0 && gguf_next_string(merges, &at, &text); rank++) {
		r = parse_merge(b, rank, text, &m);
		if (r == 0)
			r = hash_merge(b, text, m);
	}
	return r;
}

static int allocate(struct builder *b)
{
	struct token_table *t = &b->t;
	uint64_t n_text = b->model->tokens->n_bytes;

	if (n_text > MANIFEST_MAX_BYTES)
		return err_set(b->err, EINVAL,
			"key tokenizer.ggml.tokens: expected at most %d bytes, found %" PRIu64,
			MANIFEST_MAX_BYTES, n_text);
	t->n_vocab = (uint32_t)b->model->tokens->n_elements;
	t->n_hash = count_slots(t->n_vocab);
	t->n_merges = count_slots(b->model->tokenizer.n_merges);
	t->tokens = calloc((size_t)t->n_vocab + 1, sizeof(*t->tokens));
	t->strings = malloc(n_text + 1);
	t->hash = malloc(t->n_hash * sizeof(*t->hash));
	t->merges = malloc(t->n_merges * sizeof(*t->merges));
	b->raw = calloc((size_t)t->n_vocab + 1, sizeof(*b->raw));
	if (!t->tokens || !t->strings || !t->hash || !t->merges || !b->raw)
		return err_set(b->err, ENOMEM, "vocabulary: no memory for %u tokens and %u merges",
			t->n_vocab, t->n_merges);
	return 0;
}

static int build(struct builder *b)
{
	struct gguf_string raw;
	uint64_t at = 0;
	int r = allocate(b);

	init_byte_chars(b->byte_of_char);
	for (uint32_t id = 0; r == 0 && id < b->t.n_vocab; id++)
		if (gguf_next_string(b->model->tokens, &at, &raw))
			r = add_token_bytes(b, id, raw);
	if (r == 0)
		r = hash_tokens(b);
	if (r == 0)
		r = find_byte_tokens(b);
	if (r == 0)
		r = list_specials(b);
	if (r == 0)
		r = hash_merges(b);
	return r;
}

int token_table_init(
	const struct validate_model *model, struct err *ret_err, struct token_table *ret_table)
{
	struct builder b = {.model = model, .err = ret_err};
	int r = model->tokens ? build(&b) : 0;

	free(b.raw);
	free(b.scratch);
	if (r < 0)
		token_table_fini(&b.t);
	else
		*ret_table = b.t;
	return r;
}

void token_table_fini(struct token_table *t)
{
	free(t->tokens);
	free(t->strings);
	free(t->hash);
	free(t->merges);
	free(t->specials);
	*t = TOKEN_TABLE_NULL;
}
