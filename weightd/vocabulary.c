/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/vocabulary.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/gguf.h"
#include "weightd/validate.h"

/* Control tokens that end a turn or a text in the published chat formats. */
static const char *const vocabulary_ends[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>",
	"<|eom_id|>", "<|end_of_text|>", "<|end|>", "</s>"};

/*
 * Pre-tokenizers by the names that files have for them. add_bos: what is meant where a file does
 * not say it; llama.cpp's defaults.
 */
static const struct {
	const char *name;
	enum manifest_pre_tokenizer pre;
	bool add_bos;
} vocabulary_pres[] = {
	{"qwen2", MANIFEST_PRE_QWEN2, false},
	{"llama-bpe", MANIFEST_PRE_LLAMA3, true},
	{"llama3", MANIFEST_PRE_LLAMA3, true},
	{"llama-v3", MANIFEST_PRE_LLAMA3, true},
};

static bool equals(struct gguf_string s, const char *text)
{
	return s.n_bytes == strlen(text) && memcmp(s.data, text, s.n_bytes) == 0;
}

/* An optional key of strings. */
static int read_text(const struct gguf *g, const char *key, struct err *e, struct gguf_string *ret)
{
	const struct gguf_kv *kv = gguf_find(g, key);

	return kv ? gguf_get_string(kv, e, ret) : 0;
}

/* The only kind of tokenizer there is. */
static int check_model(const struct gguf *g, struct err *e)
{
	static const char key[] = "tokenizer.ggml.model", expected[] = "gpt2";
	const struct gguf_kv *kv = gguf_find(g, key);
	struct gguf_string found;

	if (!kv)
		return err_set(
			e, ENOTSUP, "key %s: expected \"%s\", found no such key", key, expected);
	int r = gguf_get_string(kv, e, &found);
	if (r < 0)
		return r;
	if (!equals(found, expected))
		return err_set(e, ENOTSUP,
			"key %s: tokenizer is not supported: expected \"%s\", found \"%s\"", key,
			expected, gguf_label(found).text);
	return 0;
}

static int read_pre(const struct gguf *g, struct err *e, struct manifest_tokenizer *t)
{
	static const char key[] = "tokenizer.ggml.pre";
	const struct gguf_kv *kv = gguf_find(g, key);
	struct gguf_string found;

	if (!kv)
		return err_set(e, ENOTSUP,
			"key %s: expected \"qwen2\" or \"llama-bpe\", found no such key", key);
	int r = gguf_get_string(kv, e, &found);
	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(vocabulary_pres); i++)
		if (equals(found, vocabulary_pres[i].name)) {
			t->pre = vocabulary_pres[i].pre;
			t->add_bos = vocabulary_pres[i].add_bos;
			return 0;
		}
	return err_set(e, ENOTSUP,
		"key %s: tokenizer is not supported: expected \"qwen2\" or \"llama-bpe\", found "
		"\"%s\"",
		key, gguf_label(found).text);
}

/* An optional array of one of two element types, as long as the vocabulary (0: any length). */
static int find_array(const struct gguf *g, const char *key, enum gguf_type a, enum gguf_type b,
	uint64_t n_vocab, struct err *e, const struct gguf_kv **ret)
{
	const struct gguf_kv *kv = gguf_find(g, key);

	if (!kv)
		return 0;
	if (kv->type != GGUF_ARRAY || (kv->element_type != a && kv->element_type != b)) {
		struct gguf_kv want = {.type = GGUF_ARRAY, .element_type = a};
		return err_set(e, EINVAL, "key %s: expected %s, found %s", key,
			gguf_describe_type(&want), gguf_describe_type(kv));
	}
	if (n_vocab != 0 && kv->n_elements != n_vocab)
		return err_set(e, EINVAL,
			"key %s: expected %" PRIu64 " elements as in tokenizer.ggml.tokens, found "
			"%" PRIu64,
			key, n_vocab, kv->n_elements);
	*ret = kv;
	return 0;
}

/* An optional token id, MANIFEST_NONE when absent. */
static int read_id(
	const struct gguf *g, const char *key, uint64_t n_vocab, struct err *e, uint32_t *ret)
{
	const struct gguf_kv *kv = gguf_find(g, key);
	uint64_t id;

	*ret = MANIFEST_NONE;
	if (!kv)
		return 0;
	int r = gguf_get_u64(kv, e, &id);
	if (r < 0)
		return r;
	if (id >= n_vocab)
		return err_set(e, EINVAL,
			"key %s: expected a token below %" PRIu64 ", found %" PRIu64, key, n_vocab,
			id);
	*ret = (uint32_t)id;
	return 0;
}

static int add_end(struct manifest_tokenizer *t, uint32_t id, struct err *e)
{
	if (id == MANIFEST_NONE)
		return 0;
	for (uint32_t i = 0; i < t->n_eog; i++)
		if (t->eog[i] == id)
			return 0;
	if (t->n_eog == ARRAY_SIZE(t->eog))
		return err_set(e, ENOTSUP,
			"key tokenizer.ggml.tokens: token %" PRIu32
			": expected at most %zu that end a text, found more",
			id, ARRAY_SIZE(t->eog));
	t->eog[t->n_eog++] = id;
	return 0;
}

static bool is_end(struct gguf_string token)
{
	for (size_t i = 0; i < ARRAY_SIZE(vocabulary_ends); i++)
		if (equals(token, vocabulary_ends[i]))
			return true;
	return false;
}

/* One pass over tokens and types: each has text and a known type; the ends known by name. */
static int scan_tokens(struct validate_model *m, struct err *e)
{
	uint32_t n_ends_left = ARRAY_SIZE(vocabulary_ends); /* a name twice is refused later */
	struct gguf_string token;
	uint64_t at = 0;

	for (uint32_t id = 0; gguf_next_string(m->tokens, &at, &token); id++) {
		uint32_t type = MANIFEST_TOKEN_NORMAL;

		if (m->token_types)
			memcpy(&type, m->token_types->data + id * sizeof(type), sizeof(type));
		if (token.n_bytes == 0)
			return err_set(e, EINVAL,
				"key tokenizer.ggml.tokens: token %" PRIu32
				": expected at least 1 byte, found none",
				id);
		if (type < MANIFEST_TOKEN_NORMAL || type > MANIFEST_TOKEN_BYTE)
			return err_set(e, EINVAL,
				"key tokenizer.ggml.token_type: token %" PRIu32
				": expected 1 to %d, found %" PRIu32,
				id, MANIFEST_TOKEN_BYTE, type);
		if (type == MANIFEST_TOKEN_CONTROL && n_ends_left > 0 && is_end(token)) {
			int r = add_end(&m->tokenizer, id, e);
			if (r < 0)
				return r;
			n_ends_left--;
		}
	}
	return 0;
}

static int read_arrays(const struct gguf *g, struct err *e, struct validate_model *m)
{
	int r = find_array(g, "tokenizer.ggml.tokens", GGUF_STRING, GGUF_STRING, 0, e, &m->tokens);

	if (r < 0)
		return r;
	if (!m->tokens || m->tokens->n_elements == 0)
		return err_set(e, EINVAL,
			"key tokenizer.ggml.tokens: expected at least 1 token, found none");
	uint64_t n = m->tokens->n_elements;
	r = find_array(g, "tokenizer.ggml.token_type", GGUF_I32, GGUF_U32, n, e, &m->token_types);
	if (r == 0)
		r = find_array(g, "tokenizer.ggml.scores", GGUF_F32, GGUF_F32, n, e, &m->scores);
	if (r == 0)
		r = find_array(
			g, "tokenizer.ggml.merges", GGUF_STRING, GGUF_STRING, 0, e, &m->merges);
	if (r == 0 && m->merges && m->merges->n_elements > VOCABULARY_MAX_MERGES)
		r = err_set(e, EINVAL,
			"key tokenizer.ggml.merges: expected at most %d, found %" PRIu64,
			VOCABULARY_MAX_MERGES, m->merges->n_elements);
	if (r == 0)
		m->tokenizer.n_merges = m->merges ? (uint32_t)m->merges->n_elements : 0;
	return r;
}

static int read_ids(const struct gguf *g, struct err *e, struct validate_model *m)
{
	struct manifest_tokenizer *t = &m->tokenizer;
	const struct gguf_kv *add_bos = gguf_find(g, "tokenizer.ggml.add_bos_token");
	uint64_t n = m->tokens->n_elements;
	uint32_t eot = MANIFEST_NONE;
	bool flag = t->add_bos;
	int r = read_id(g, "tokenizer.ggml.bos_token_id", n, e, &t->bos);

	if (r == 0)
		r = read_id(g, "tokenizer.ggml.eos_token_id", n, e, &t->eos);
	if (r == 0)
		r = read_id(g, "tokenizer.ggml.eot_token_id", n, e, &eot);
	if (r == 0)
		r = read_id(g, "tokenizer.ggml.padding_token_id", n, e, &t->pad);
	if (r == 0 && add_bos)
		r = gguf_get_bool(add_bos, e, &flag);
	if (r == 0 && add_bos && flag && t->bos == MANIFEST_NONE)
		r = err_set(e, EINVAL,
			"key tokenizer.ggml.add_bos_token: expected a bos_token_id beside it, "
			"found "
			"none");
	if (r < 0)
		return r;
	t->add_bos = flag && t->bos != MANIFEST_NONE;
	r = add_end(t, t->eos, e);
	return r == 0 ? add_end(t, eot, e) : r;
}

int vocabulary_read(const struct gguf *g, struct err *ret_err, struct validate_model *ret_model)
{
	struct validate_model m = *ret_model;

	m.tokenizer = (struct manifest_tokenizer){
		.model = MANIFEST_TOKENIZER_NONE,
		.bos = MANIFEST_NONE,
		.eos = MANIFEST_NONE,
		.pad = MANIFEST_NONE,
	};
	int r = read_text(g, "tokenizer.chat_template", ret_err, &m.chat_template);
	if (r == 0 &&
		(gguf_find(g, "tokenizer.ggml.model") || gguf_find(g, "tokenizer.ggml.tokens"))) {
		m.tokenizer.model = MANIFEST_TOKENIZER_BPE;
		r = check_model(g, ret_err);
		if (r == 0)
			r = read_pre(g, ret_err, &m.tokenizer);
		if (r == 0)
			r = read_arrays(g, ret_err, &m);
		if (r == 0)
			r = read_ids(g, ret_err, &m);
		if (r == 0)
			r = scan_tokens(&m, ret_err);
	}
	if (r == 0)
		*ret_model = m;
	return r;
}
