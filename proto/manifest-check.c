/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/manifest-check.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "proto/util/err.h"

static bool check_string(const struct manifest *m, struct manifest_string s)
{
	return s.offset <= m->n_string_bytes && s.n_bytes <= m->n_string_bytes - s.offset;
}

static bool check_token(const struct manifest *m, uint32_t id)
{
	return id < m->n_vocab;
}

static bool check_token_or_none(const struct manifest *m, uint32_t id)
{
	return id == MANIFEST_NONE || id < m->n_vocab;
}

static int must_check check_range(
	const char *field, uint32_t value, uint32_t min, uint32_t max, struct err *ret_err)
{
	if (value >= min && value <= max)
		return 0;
	return err_set(ret_err, EINVAL, "manifest: hparams: %s: expected %u to %u, found %u", field,
		min, max, value);
}

static int must_check check_hparams(const struct manifest *m, struct err *ret_err)
{
	const struct manifest_hparams *h = m->hparams;
	const uint32_t min_expert = h->n_expert > 0 ? 1 : 0;
	const struct {
		const char *field;
		uint32_t value, min, max;
	} rows[] = {
		{"n_layers", h->n_layers, 1, MANIFEST_MAX_LAYERS},
		{"n_ctx_train", h->n_ctx_train, 1, MANIFEST_MAX_CTX},
		{"n_embd", h->n_embd, 1, MANIFEST_MAX_EMBD},
		{"n_ff", h->n_ff, 1 - min_expert, MANIFEST_MAX_FF},
		{"n_head", h->n_head, 1, MANIFEST_MAX_HEADS},
		{"n_head_kv", h->n_head_kv, 1, h->n_head},
		{"head_dim_k", h->head_dim_k, 1, MANIFEST_MAX_HEAD_DIM},
		{"head_dim_v", h->head_dim_v, 1, MANIFEST_MAX_HEAD_DIM},
		{"n_rot", h->n_rot, 0, h->head_dim_k},
		{"n_vocab", h->n_vocab, 1, MANIFEST_MAX_VOCAB},
		{"n_expert", h->n_expert, 0, MANIFEST_MAX_EXPERTS},
		{"n_expert_used", h->n_expert_used, min_expert, h->n_expert},
		{"n_ff_expert", h->n_ff_expert, min_expert, MANIFEST_MAX_FF},
		{"tied_embeddings", h->tied_embeddings, 0, 1},
		{"n_window", h->n_window, 0, MANIFEST_MAX_CTX},
		{"window_period", h->window_period, 0, MANIFEST_MAX_LAYERS},
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		int r = check_range(
			rows[i].field, rows[i].value, rows[i].min, rows[i].max, ret_err);
		if (r < 0)
			return r;
	}
	if (!check_string(m, h->architecture) || !check_string(m, h->name))
		return err_set(ret_err, EINVAL, "manifest: hparams: a string outside the strings");
	if (h->n_head % h->n_head_kv != 0)
		return err_set(ret_err, EINVAL,
			"manifest: hparams: n_head: expected a multiple of n_head_kv %u, found %u",
			h->n_head_kv, h->n_head);
	if (h->n_rot % 2 != 0)
		return err_set(ret_err, EINVAL,
			"manifest: hparams: n_rot: expected an even number, found %u", h->n_rot);
	if (!isfinite(h->rms_eps) || h->rms_eps <= 0 || h->rms_eps >= 1)
		return err_set(ret_err, EINVAL,
			"manifest: hparams: rms_eps: expected between 0 and 1, found %g",
			(double)h->rms_eps);
	if (!isfinite(h->rope_base) || h->rope_base <= 0)
		return err_set(ret_err, EINVAL,
			"manifest: hparams: rope_base: expected a positive number, found %g",
			(double)h->rope_base);
	return 0;
}

static int must_check check_allocs(const struct manifest *m, struct err *ret_err)
{
	if (m->n_allocs > MANIFEST_MAX_ALLOCS)
		return err_set(ret_err, EINVAL,
			"manifest: allocations: expected at most %d, found %u", MANIFEST_MAX_ALLOCS,
			m->n_allocs);
	for (uint32_t i = 0; i < m->n_allocs; i++) {
		const struct manifest_alloc *a = &m->allocs[i];

		if (a->n_bytes == 0 || a->n_bytes > INT64_MAX)
			return err_set(ret_err, EINVAL,
				"manifest: allocation %u: size: found %llu bytes", i,
				(unsigned long long)a->n_bytes);
		if (a->placement < MANIFEST_PLACEMENT_DEVICE ||
			a->placement > MANIFEST_PLACEMENT_PAGED)
			return err_set(ret_err, EINVAL,
				"manifest: allocation %u: unknown placement %u", i, a->placement);
		if (a->pad != 0)
			return err_set(ret_err, EINVAL,
				"manifest: allocation %u: padding: expected 0, found %u", i,
				a->pad);
	}
	return 0;
}

/* memcmp order, a shorter name before a longer one that begins with it. */
static int compare_names(
	const struct manifest *m, struct manifest_string a, struct manifest_string b)
{
	uint32_t n = a.n_bytes < b.n_bytes ? a.n_bytes : b.n_bytes;
	int order = n > 0 ? memcmp(manifest_get_string(m, a), manifest_get_string(m, b), n) : 0;

	return order != 0 ? order : (a.n_bytes > b.n_bytes) - (a.n_bytes < b.n_bytes);
}

/* What is wrong with the shape, NULL when nothing. */
static const char *check_shape(const struct manifest_tensor *t)
{
	const struct dtype *dtype = dtype_find(t->dtype);
	uint64_t n_elements, n_bytes;

	if (!dtype)
		return "unknown block format";
	if (t->n_dims < 1 || t->n_dims > 4)
		return "expected 1 to 4 dimensions";
	for (uint32_t i = 0; i < 4; i++) {
		if (t->ne[i] == 0)
			return "a dimension of 0";
		if (i >= t->n_dims && t->ne[i] != 1)
			return "expected 1 for unused dimensions";
	}
	if (dtype_tensor_bytes(dtype, t->n_dims, t->ne, &n_elements, &n_bytes) < 0)
		return "a shape that is no whole number of blocks or overflows";
	if (n_bytes != t->n_bytes)
		return "a size that is not its shape's";
	return NULL;
}

/* The same for where it is. */
static const char *check_place(const struct manifest *m, const struct manifest_tensor *t)
{
	if (t->alloc >= m->n_allocs)
		return "an allocation that is not there";
	if (t->layout != MANIFEST_LAYOUT_RAW)
		return "unknown layout";
	if (t->n_bytes > m->allocs[t->alloc].n_bytes ||
		t->offset > m->allocs[t->alloc].n_bytes - t->n_bytes)
		return "a range outside its allocation";
	return NULL;
}

static int must_check check_tensors(const struct manifest *m, struct err *ret_err)
{
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];
		const char *what;

		if (!check_string(m, t->name) || t->name.n_bytes == 0)
			return err_set(ret_err, EINVAL,
				"manifest: tensor %u: name: empty or outside the strings", i);
		if (i > 0 && compare_names(m, m->tensors[i - 1].name, t->name) >= 0)
			return err_set(ret_err, EINVAL,
				"manifest: tensor %u: name: twice or out of order", i);
		what = check_shape(t);
		if (!what)
			what = check_place(m, t);
		if (what)
			return err_set(ret_err, EINVAL, "manifest: tensor %.*s: %s",
				(int)(t->name.n_bytes < 64 ? t->name.n_bytes : 64),
				(const char *)manifest_get_string(m, t->name), what);
	}
	return 0;
}

/* n rows are there: none, or a power of two with room for n_used and one empty slot. */
static bool check_table_size(uint64_t n, uint64_t n_used)
{
	return n > n_used && (n & (n - 1)) == 0;
}

static int must_check check_tokenizer(const struct manifest *m, struct err *ret_err)
{
	const struct manifest_tokenizer *t = m->tokenizer;

	if (t->model > MANIFEST_TOKENIZER_BPE)
		return err_set(ret_err, EINVAL, "manifest: tokenizer: unknown model %u", t->model);
	if (t->model == MANIFEST_TOKENIZER_BPE && t->pre != MANIFEST_PRE_QWEN2 &&
		t->pre != MANIFEST_PRE_LLAMA3)
		return err_set(
			ret_err, EINVAL, "manifest: tokenizer: unknown pre-tokenizer %u", t->pre);
	if (!check_token_or_none(m, t->bos) || !check_token_or_none(m, t->eos) ||
		!check_token_or_none(m, t->pad))
		return err_set(ret_err, EINVAL,
			"manifest: tokenizer: bos, eos, pad: expected below %u or none, found %u, "
			"%u, %u",
			m->n_vocab, t->bos, t->eos, t->pad);
	if (t->n_eog > ARRAY_SIZE(t->eog))
		return err_set(ret_err, EINVAL,
			"manifest: tokenizer: end tokens: expected at most %zu, found %u",
			ARRAY_SIZE(t->eog), t->n_eog);
	for (uint32_t i = 0; i < t->n_eog; i++)
		if (!check_token(m, t->eog[i]))
			return err_set(ret_err, EINVAL,
				"manifest: tokenizer: end token: expected below %u, found %u",
				m->n_vocab, t->eog[i]);
	if (t->add_bos > 1)
		return err_set(ret_err, EINVAL,
			"manifest: tokenizer: add_bos: expected 0 or 1, found %u", t->add_bos);
	if (!check_string(m, t->chat_template))
		return err_set(
			ret_err, EINVAL, "manifest: tokenizer: chat template: outside the strings");
	return 0;
}

static int must_check check_tokens(const struct manifest *m, struct err *ret_err)
{
	if (m->n_vocab != m->hparams->n_vocab)
		return err_set(ret_err, EINVAL, "manifest: tokens: expected n_vocab %u, found %u",
			m->hparams->n_vocab, m->n_vocab);
	for (uint32_t i = 0; i < m->n_vocab; i++) {
		const struct manifest_token *t = &m->tokens[i];

		if (!check_string(m, t->bytes))
			return err_set(
				ret_err, EINVAL, "manifest: token %u: outside the strings", i);
		if (t->type < MANIFEST_TOKEN_NORMAL || t->type > MANIFEST_TOKEN_BYTE)
			return err_set(
				ret_err, EINVAL, "manifest: token %u: unknown type %u", i, t->type);
	}
	return 0;
}

static int must_check check_token_hash(
	const struct manifest *m, uint64_t n_slots, struct err *ret_err)
{
	uint64_t n_used = 0;

	for (uint64_t i = 0; i < n_slots; i++) {
		uint32_t id = m->token_hash[i];

		if (!check_token_or_none(m, id))
			return err_set(ret_err, EINVAL,
				"manifest: token hash: slot %llu: expected below %u, found %u",
				(unsigned long long)i, m->n_vocab, id);
		n_used += id != MANIFEST_NONE;
	}
	if (!check_table_size(n_slots, n_used > m->n_vocab ? n_used : m->n_vocab))
		return err_set(ret_err, EINVAL,
			"manifest: token hash: expected a power of two above %u slots with one "
			"empty, "
			"found %llu with %llu used",
			m->n_vocab, (unsigned long long)n_slots, (unsigned long long)n_used);
	return 0;
}

static int must_check check_merges(const struct manifest *m, uint64_t n_slots, struct err *ret_err)
{
	uint32_t n_merges = m->tokenizer->n_merges;
	uint64_t n_used = 0;

	for (uint64_t i = 0; i < n_slots; i++) {
		const struct manifest_merge *e = &m->merges[i];

		if (e->left == MANIFEST_NONE)
			continue;
		n_used++;
		if (!check_token(m, e->left) || !check_token(m, e->right) ||
			!check_token(m, e->result))
			return err_set(ret_err, EINVAL,
				"manifest: merge slot %llu: expected tokens below %u, found %u + "
				"%u = %u",
				(unsigned long long)i, m->n_vocab, e->left, e->right, e->result);
		if (e->rank >= n_merges)
			return err_set(ret_err, EINVAL,
				"manifest: merge slot %llu: rank: expected below %u, found %u",
				(unsigned long long)i, n_merges, e->rank);
	}
	if (n_used != n_merges || !check_table_size(n_slots, n_used))
		return err_set(ret_err, EINVAL,
			"manifest: merges: expected %u in a power of two of slots with one empty, "
			"found %llu in %llu",
			n_merges, (unsigned long long)n_used, (unsigned long long)n_slots);
	return 0;
}

static int must_check check_byte_tokens(const struct manifest *m, struct err *ret_err)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t id = m->byte_tokens[i];

		if (id == MANIFEST_NONE)
			continue;
		if (!check_token(m, id) || m->tokens[id].bytes.n_bytes != 1 ||
			*manifest_get_string(m, m->tokens[id].bytes) != i)
			return err_set(ret_err, EINVAL,
				"manifest: byte 0x%02x: expected the token of that byte, found %u",
				i, id);
	}
	return 0;
}

/* Longest first, so that the first one that fits is the right one; an empty one always fits. */
static int must_check check_specials(const struct manifest *m, struct err *ret_err)
{
	uint32_t last = UINT32_MAX;

	for (uint32_t i = 0; i < m->n_specials; i++) {
		uint32_t id = m->specials[i];

		if (!check_token(m, id))
			return err_set(ret_err, EINVAL,
				"manifest: special %u: expected a token below %u, found %u", i,
				m->n_vocab, id);
		if (m->tokens[id].type != MANIFEST_TOKEN_CONTROL &&
			m->tokens[id].type != MANIFEST_TOKEN_USER)
			return err_set(ret_err, EINVAL,
				"manifest: special %u: token %u: expected a control or user token, "
				"found type %u",
				i, id, m->tokens[id].type);
		if (m->tokens[id].bytes.n_bytes == 0 || m->tokens[id].bytes.n_bytes > last)
			return err_set(ret_err, EINVAL,
				"manifest: special %u: token %u: empty or longer than the one "
				"before",
				i, id);
		last = m->tokens[id].bytes.n_bytes;
	}
	return 0;
}

int manifest_check(const struct manifest *m, struct err *ret_err)
{
	const struct manifest_section *sections = m->header->sections;
	int r = check_hparams(m, ret_err);

	if (r == 0)
		r = check_allocs(m, ret_err);
	if (r == 0)
		r = check_tensors(m, ret_err);
	if (r == 0)
		r = check_tokenizer(m, ret_err);
	if (r < 0)
		return r;
	if (m->tokenizer->model == MANIFEST_TOKENIZER_NONE) {
		for (int i = MANIFEST_TOKENS; i <= MANIFEST_SPECIALS; i++)
			if (sections[i].n_bytes != 0)
				return err_set(ret_err, EINVAL,
					"manifest: section %d: expected none without a tokenizer",
					i);
		return 0;
	}
	if (sections[MANIFEST_BYTE_TOKENS].n_bytes != 256 * sizeof(uint32_t))
		return err_set(ret_err, EINVAL,
			"manifest: byte tokens: expected 256, found %llu bytes",
			(unsigned long long)sections[MANIFEST_BYTE_TOKENS].n_bytes);
	r = check_tokens(m, ret_err);
	if (r == 0)
		r = check_token_hash(
			m, sections[MANIFEST_TOKEN_HASH].n_bytes / sizeof(uint32_t), ret_err);
	if (r == 0)
		r = check_merges(m,
			sections[MANIFEST_MERGES].n_bytes / sizeof(struct manifest_merge), ret_err);
	if (r == 0)
		r = check_byte_tokens(m, ret_err);
	if (r == 0)
		r = check_specials(m, ret_err);
	return r;
}
