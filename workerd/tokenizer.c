/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/tokenizer.h"

#include <errno.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/util/utf8.h"
#include "workerd/bpe.h"

/*
 * Qwen2's pre-tokenizer (its tokenizer.json):
 *
 *	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 *	\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * and Llama 3's, which is the same with \p{N}{1,3},
 * written so that nothing is tried twice: possessive where giving back cannot help, and \s*[\r\n]+
 * as repeated blanks-then-breaks. Otherwise a run of a million blanks costs a backtrack for each.
 * \s is spelled out as Unicode's White_Space: PCRE2's own takes U+180E for a space too. What is a
 * letter follows the Unicode version of the PCRE2 that is installed.
 */
#define BREAK "\\r\\n"
/* White_Space without BREAK. */
#define BLANK                                                                                     \
	"\\t\\x{0b}\\x{0c} \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
	"\\x{205f}\\x{3000}"
#define WORDS(number)                                                  \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)"                                 \
	"|[^" BREAK "\\p{L}\\p{N}]?+\\p{L}++"                          \
	"|" number "| ?+[^" BREAK BLANK "\\p{L}\\p{N}]++[" BREAK "]*+" \
	"|(?:[" BLANK "]*+[" BREAK "]++)++"                            \
	"|[" BREAK BLANK "]+(?![^" BREAK BLANK "])"                    \
	"|[" BREAK BLANK "]++"

/* takes_words: a word that is a token is that token, whether merges lead there or not. */
static const struct rule {
	enum manifest_pre_tokenizer pre;
	const char *words;
	bool takes_words;
} rules[] = {
	{MANIFEST_PRE_QWEN2, WORDS("\\p{N}"), false},
	{MANIFEST_PRE_LLAMA3, WORDS("\\p{N}{1,3}+"), true},
};

struct tokenizer {
	const struct manifest *m;
	const struct rule *rule;
	struct bpe *bpe;
	pcre2_code *words;
	pcre2_match_data *match;
	uint32_t *specials;  /* [m->n_specials] ids, in memcmp order of their bytes */
	uint32_t first[257]; /* specials that begin with byte b are first[b] .. first[b + 1] */
	bool starts[2][256]; /* [parse_special][byte]: may a special that counts begin here? */
};

void tokenizer_ids_fini(struct tokenizer_ids *ids)
{
	free(ids->ids);
	*ids = (struct tokenizer_ids){0};
}

int tokenizer_ids_append(struct tokenizer_ids *ids, uint32_t id)
{
	if (ids->n == ids->n_room) {
		uint64_t n_room = ids->n_room ? 2 * ids->n_room : 64;
		uint32_t *grown = reallocarray(ids->ids, n_room, sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		ids->ids = grown;
		ids->n_room = n_room;
	}
	ids->ids[ids->n++] = id;
	return 0;
}

static int compare_specials(const void *a, const void *b, void *userdata)
{
	const struct manifest *m = userdata;
	struct manifest_string x = m->tokens[*(const uint32_t *)a].bytes;
	struct manifest_string y = m->tokens[*(const uint32_t *)b].bytes;
	uint32_t n = x.n_bytes < y.n_bytes ? x.n_bytes : y.n_bytes;
	int r = memcmp(manifest_get_string(m, x), manifest_get_string(m, y), n);

	return r ? r : (x.n_bytes > y.n_bytes) - (x.n_bytes < y.n_bytes);
}

static int index_specials(struct tokenizer *t)
{
	const struct manifest *m = t->m;
	uint32_t n = 0;

	t->specials = calloc((size_t)m->n_specials + 1, sizeof(*t->specials));
	if (!t->specials)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->n_specials; i++)
		if (m->tokens[m->specials[i]].bytes.n_bytes)
			t->specials[n++] = m->specials[i];
	qsort_r(t->specials, n, sizeof(*t->specials), compare_specials, (void *)m);
	for (uint32_t i = 0; i < n; i++) {
		const struct manifest_token *token = &m->tokens[t->specials[i]];
		uint8_t byte = *manifest_get_string(m, token->bytes);

		t->first[byte + 1] = i + 1;
		t->starts[true][byte] = true;
		t->starts[false][byte] |= token->type == MANIFEST_TOKEN_USER;
	}
	for (int byte = 0; byte < 256; byte++)
		if (t->first[byte + 1] < t->first[byte])
			t->first[byte + 1] = t->first[byte];
	return 0;
}

static int compile_words(struct tokenizer *t, struct err *ret_err)
{
	PCRE2_SIZE offset;
	PCRE2_UCHAR text[128];
	int code;

	t->words = pcre2_compile((PCRE2_SPTR)t->rule->words, PCRE2_ZERO_TERMINATED,
		PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &offset, NULL);
	if (!t->words) {
		pcre2_get_error_message(code, text, sizeof(text));
		return err_set(ret_err, ENOTSUP,
			"tokenizer: regular expression: %s at %zu; is PCRE2 built with Unicode?",
			text, offset);
	}
	/* Where a policy forbids executable memory, matching is interpreted. */
	(void)pcre2_jit_compile(t->words, PCRE2_JIT_COMPLETE);
	t->match = pcre2_match_data_create(1, NULL);
	return t->match ? 0 : -ENOMEM;
}

static const struct rule *find_rule(const struct manifest_tokenizer *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
		if (t->model == MANIFEST_TOKENIZER_BPE && t->pre == rules[i].pre)
			return &rules[i];
	return NULL;
}

int tokenizer_new(const struct manifest *m, struct err *ret_err, struct tokenizer **ret_tokenizer)
{
	const struct rule *rule = find_rule(m->tokenizer);

	if (!rule)
		return err_set(ret_err, ENOTSUP,
			"tokenizer: expected byte-level BPE (%d) with pre-tokenizer qwen2 (%d) or "
			"llama3 (%d), found model %u, pre-tokenizer %u",
			MANIFEST_TOKENIZER_BPE, MANIFEST_PRE_QWEN2, MANIFEST_PRE_LLAMA3,
			m->tokenizer->model, m->tokenizer->pre);

	struct tokenizer *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->m = m;
	t->rule = rule;
	int r = bpe_new(m, &t->bpe);
	if (r == 0)
		r = index_specials(t);
	if (r == 0)
		r = compile_words(t, ret_err);
	if (r < 0) {
		tokenizer_free(t);
		return r;
	}
	*ret_tokenizer = t;
	return 0;
}

struct tokenizer *tokenizer_free(struct tokenizer *t)
{
	if (t) {
		bpe_free(t->bpe);
		pcre2_match_data_free(t->match);
		pcre2_code_free(t->words);
		free(t->specials);
		free(t);
	}
	return NULL;
}

/* Of specials[low..high), which agree before byte `at` and are longer: the first with byte >= c. */
static uint32_t lower_bound(
	const struct tokenizer *t, uint32_t low, uint32_t high, uint32_t at, unsigned c)
{
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		struct manifest_string s = t->m->tokens[t->specials[middle]].bytes;

		if (manifest_get_string(t->m, s)[at] < c)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The longest special that text[0..n) begins with, or MANIFEST_NONE. */
static uint32_t find_special(
	const struct tokenizer *t, const uint8_t *text, uint64_t n, bool parse_special)
{
	uint32_t low = t->first[text[0]], high = t->first[text[0] + 1];
	uint32_t best = MANIFEST_NONE;

	/* Those that agree with the text in the bytes before `at`; a prefix sorts first. */
	for (uint32_t at = 1; low < high; at++) {
		const struct manifest_token *token = &t->m->tokens[t->specials[low]];

		if (token->bytes.n_bytes == at) {
			if (parse_special || token->type == MANIFEST_TOKEN_USER)
				best = t->specials[low];
			low++;
		}
		if (at == n)
			break;
		low = lower_bound(t, low, high, at, text[at]);
		high = lower_bound(t, low, high, at, text[at] + 1u);
	}
	return best;
}

static int encode_word(struct tokenizer *t, const uint8_t *word, uint32_t n_bytes,
	struct err *ret_err, struct tokenizer_ids *ids)
{
	uint32_t id = MANIFEST_NONE;

	if (t->rule->takes_words)
		id = manifest_find_token(t->m, word, n_bytes);
	/* Of equal bytes a normal token is found first; a special one is no word. */
	if (id != MANIFEST_NONE && t->m->tokens[id].type == MANIFEST_TOKEN_NORMAL)
		return tokenizer_ids_append(ids, id);
	return bpe_encode(t->bpe, word, n_bytes, ret_err, ids);
}

/* Valid UTF-8 without specials. */
static int encode_utf8(struct tokenizer *t, const uint8_t *text, uint64_t n_bytes,
	struct err *ret_err, struct tokenizer_ids *ids)
{
	for (uint64_t at = 0; at < n_bytes;) {
		int r = pcre2_match(
			t->words, text, n_bytes, at, PCRE2_NO_UTF_CHECK, t->match, NULL);
		if (r < 0) {
			PCRE2_UCHAR why[128];
			pcre2_get_error_message(r, why, sizeof(why));
			return err_set(ret_err, r == PCRE2_ERROR_NOMEMORY ? ENOMEM : EIO,
				"text: regular expression: %s", why);
		}
		uint64_t end = pcre2_get_ovector_pointer(t->match)[1];
		r = encode_word(t, text + at, (uint32_t)(end - at), ret_err, ids);
		if (r < 0)
			return r;
		at = end;
	}
	return 0;
}

/* Any bytes without specials. */
static int encode_plain(struct tokenizer *t, const uint8_t *text, uint64_t n_bytes,
	struct err *ret_err, struct tokenizer_ids *ids)
{
	for (uint64_t at = 0; at < n_bytes;) {
		uint64_t end = at;
		int n_char;

		while (end < n_bytes && (n_char = utf8_char(text + end, n_bytes - end)) > 0)
			end += (uint64_t)n_char;
		int r = encode_utf8(t, text + at, end - at, ret_err, ids);
		if (r == 0 && end < n_bytes)
			r = bpe_encode(t->bpe, text + end++, 1, ret_err, ids);
		if (r < 0)
			return r;
		at = end;
	}
	return 0;
}

static int encode(struct tokenizer *t, const uint8_t *text, uint64_t n_bytes, bool parse_special,
	struct err *ret_err, struct tokenizer_ids *ids)
{
	const bool *starts = t->starts[parse_special];
	uint64_t plain = 0; /* where the text that is not yet encoded begins */
	int r;

	for (uint64_t at = 0; at < n_bytes;) {
		uint32_t id = MANIFEST_NONE;

		if (starts[text[at]])
			id = find_special(t, text + at, n_bytes - at, parse_special);
		if (id == MANIFEST_NONE) {
			at++;
			continue;
		}
		r = encode_plain(t, text + plain, at - plain, ret_err, ids);
		if (r == 0)
			r = tokenizer_ids_append(ids, id);
		if (r < 0)
			return r;
		at += t->m->tokens[id].bytes.n_bytes;
		plain = at;
	}
	return encode_plain(t, text + plain, n_bytes - plain, ret_err, ids);
}

int tokenizer_encode(struct tokenizer *t, const char *text, uint64_t n_bytes, bool parse_special,
	struct err *ret_err, struct tokenizer_ids *ids)
{
	uint64_t n_before = ids->n;

	if (n_bytes > TOKENIZER_MAX_BYTES)
		return err_set(ret_err, E2BIG, "text: at most %d bytes, found %llu",
			TOKENIZER_MAX_BYTES, (unsigned long long)n_bytes);
	int r = encode(t, (const uint8_t *)text, n_bytes, parse_special, ret_err, ids);
	bpe_trim(t->bpe);
	if (r < 0)
		ids->n = n_before;
	return r;
}

int tokenizer_get_bytes(const struct tokenizer *t, uint32_t id, struct err *ret_err,
	const char **ret_bytes, uint32_t *ret_n_bytes)
{
	if (id >= t->m->n_vocab)
		return err_set(ret_err, EINVAL, "token: expected an id below %u, found %u",
			t->m->n_vocab, id);
	struct manifest_string s = t->m->tokens[id].bytes;
	*ret_bytes = (const char *)manifest_get_string(t->m, s);
	*ret_n_bytes = s.n_bytes;
	return 0;
}

uint64_t tokenizer_whole_utf8(const char *bytes, uint64_t n_bytes)
{
	const uint8_t *end = (const uint8_t *)bytes + n_bytes;

	for (uint64_t n_left = 1; n_left <= 3 && n_left <= n_bytes; n_left++)
		if (utf8_char(end - n_left, n_left) == UTF8_CUT)
			return n_bytes - n_left;
	return n_bytes;
}
