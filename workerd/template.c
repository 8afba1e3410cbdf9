/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/template.h"

#include <errno.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "proto/util/utf8.h"
#include "workerd/tokenizer.h"

/*
 * Each turn is start ROLE header_end gap CONTENT end behind, and the prompt of an answer is a turn
 * up to the gap. Marks are tokens.
 */
struct form {
	const char *name;
	const char *start;      /* a mark */
	const char *header_end; /* a mark, or NULL: none */
	const char *gap;
	const char *end;    /* a mark */
	const char *behind; /* a text */
	bool is_trimmed;    /* white space about the content goes */
};

/*
 * Sources: the templates of the Qwen models, and those of Llama 3 to 3.3. What Llama 3.1 and later
 * say of dates and tools in a system message is left out, as llama.cpp's own form of it does.
 */
static const struct form forms[] = {
	[TEMPLATE_CHATML] = {.name = "ChatML",
		.start = "<|im_start|>",
		.gap = "\n",
		.end = "<|im_end|>",
		.behind = "\n"},
	[TEMPLATE_LLAMA3] = {.name = "Llama 3",
		.start = "<|start_header_id|>",
		.header_end = "<|end_header_id|>",
		.gap = "\n\n",
		.end = "<|eot_id|>",
		.behind = "",
		.is_trimmed = true},
};

/* Marks by which a refusal can name a template. */
static const struct {
	const char *mark, *name;
} foreign[] = {
	{"<start_of_turn>", "Gemma"},
	{"[INST]", "Mistral or Llama 2"},
	{"<|start_of_role|>", "Granite"},
	{"<|assistant|>", "Phi or Zephyr"},
};

static bool has_text(const struct manifest *m, const char *mark)
{
	struct manifest_string s = m->tokenizer->chat_template;

	return !mark || memmem(manifest_get_string(m, s), s.n_bytes, mark, strlen(mark));
}

static bool has_token(const struct manifest *m, const char *mark)
{
	return !mark || manifest_find_token(m, mark, (uint32_t)strlen(mark)) != MANIFEST_NONE;
}

int template_find(const struct manifest *m, struct err *ret_err, enum template_kind *ret_kind)
{
	struct manifest_string s = m->tokenizer->chat_template;

	if (m->tokenizer->model == MANIFEST_TOKENIZER_NONE || s.n_bytes == 0) {
		*ret_kind = TEMPLATE_NONE;
		return 0;
	}
	for (uint32_t i = TEMPLATE_NONE + 1; i < ARRAY_SIZE(forms); i++) {
		const struct form *f = &forms[i];

		if (!has_text(m, f->start) || !has_text(m, f->header_end) || !has_text(m, f->end))
			continue;
		if (!has_token(m, f->start) || !has_token(m, f->header_end) ||
			!has_token(m, f->end))
			return err_set(ret_err, ENOTSUP,
				"chat template: %s needs the tokens %s%s%s and %s, which the "
				"vocabulary has not",
				f->name, f->start, f->header_end ? ", " : "",
				f->header_end ? f->header_end : "", f->end);
		*ret_kind = (enum template_kind)i;
		return 0;
	}
	for (uint32_t i = 0; i < ARRAY_SIZE(foreign); i++)
		if (has_text(m, foreign[i].mark))
			return err_set(ret_err, ENOTSUP,
				"chat template: expected ChatML or Llama 3, found %s (%s)",
				foreign[i].name, foreign[i].mark);
	return err_set(ret_err, ENOTSUP,
		"chat template: expected ChatML or Llama 3, found one that begins: %.*s",
		s.n_bytes < 60 ? (int)s.n_bytes : 60, (const char *)manifest_get_string(m, s));
}

static int check_role(const char *role, uint32_t index, struct err *ret_err)
{
	static const char *const roles[] = {"system", "user", "assistant"};

	for (uint32_t i = 0; i < ARRAY_SIZE(roles); i++)
		if (strcmp(role, roles[i]) == 0)
			return 0;
	return err_set(ret_err, EINVAL,
		"message %u: role: expected system, user or assistant, found %.40s", index, role);
}

static int encode_text(
	struct tokenizer *t, const char *text, struct err *ret_err, struct tokenizer_ids *ids)
{
	return tokenizer_encode(t, text, strlen(text), false, ret_err, ids);
}

static int encode_mark(
	struct tokenizer *t, const char *mark, struct err *ret_err, struct tokenizer_ids *ids)
{
	return tokenizer_encode(t, mark, strlen(mark), true, ret_err, ids);
}

/*
 * Bytes of the white space that text begins with, 0 for another character: what str.strip() of
 * Python takes away, which is what templates mean by trim.
 */
static uint32_t count_space(const uint8_t *text, uint64_t n_bytes)
{
	int n = n_bytes ? utf8_char(text, n_bytes) : 0;

	if (n <= 0)
		return 0;
	uint32_t code = n == 1 ? text[0] : text[0] & (0x7fu >> n);
	for (int i = 1; i < n; i++)
		code = code << 6 | (text[i] & 0x3f);
	bool is_space = (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20) ||
			code == 0x85 || code == 0xa0 || code == 0x1680 ||
			(code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
			code == 0x202f || code == 0x205f || code == 0x3000;
	return is_space ? (uint32_t)n : 0;
}

static void trim(const char **content, uint64_t *n_bytes)
{
	const uint8_t *text = (const uint8_t *)*content;
	uint64_t end = *n_bytes, at = 0;
	uint32_t n;

	while (at < end && (n = count_space(text + at, end - at)))
		at += n;
	do {
		/* A character is what its first byte says, up to three bytes before the end. */
		for (n = 1; n < 3 && n < end - at && (text[end - n] & 0xc0) == 0x80; n++)
			;
		n = end > at && count_space(text + end - n, n) == n ? n : 0;
		end -= n;
	} while (n);
	*content += at;
	*n_bytes = end - at;
}

/* The head of a turn, and the text behind it: the gap and, as one text with it, the content. */
static int encode_head(struct tokenizer *t, const struct form *f, const char *role,
	const char *content, uint64_t n_content_bytes, struct err *ret_err,
	struct tokenizer_ids *ids)
{
	/* Without a mark behind it the role is a part of that text too. */
	const char *front = f->header_end ? "" : role;
	uint64_t n_front = strlen(front), n_gap = strlen(f->gap), n_bytes;

	if (__builtin_add_overflow(n_front + n_gap, n_content_bytes, &n_bytes))
		return -EOVERFLOW;
	_cleanup_(cleanup_free)
	char *text = malloc(n_bytes);
	if (!text)
		return -ENOMEM;
	memcpy(text, front, n_front);
	memcpy(text + n_front, f->gap, n_gap);
	if (n_content_bytes)
		memcpy(text + n_front + n_gap, content, n_content_bytes);

	int r = encode_mark(t, f->start, ret_err, ids);
	if (r == 0 && f->header_end)
		r = encode_text(t, role, ret_err, ids);
	if (r == 0 && f->header_end)
		r = encode_mark(t, f->header_end, ret_err, ids);
	return r == 0 ? tokenizer_encode(t, text, n_bytes, false, ret_err, ids) : r;
}

/*
 * What comes before the content is one text with it to the pre-tokenizer, as when the rendered
 * template is tokenised whole: a content that begins with a line break shares its word with the
 * template's.
 */
static int encode_message(struct tokenizer *t, const struct form *f,
	const struct template_message *message, struct err *ret_err, struct tokenizer_ids *ids)
{
	const char *content = message->content;
	uint64_t n_bytes = message->n_content_bytes;

	if (f->is_trimmed)
		trim(&content, &n_bytes);
	int r = encode_head(t, f, message->role, content, n_bytes, ret_err, ids);
	if (r == 0)
		r = encode_mark(t, f->end, ret_err, ids);
	return r == 0 ? encode_text(t, f->behind, ret_err, ids) : r;
}

int template_encode(enum template_kind kind, struct tokenizer *t,
	const struct template_message *messages, uint32_t n_messages, bool add_generation_prompt,
	struct err *ret_err, struct tokenizer_ids *ids)
{
	const struct form *f = &forms[kind];
	uint64_t n_before = ids->n;
	int r = 0;

	if (kind == TEMPLATE_NONE)
		return err_set(ret_err, ENOTSUP, "chat template: the model has none");
	for (uint32_t i = 0; i < n_messages; i++) {
		r = check_role(messages[i].role, i, ret_err);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < n_messages && r == 0; i++)
		r = encode_message(t, f, &messages[i], ret_err, ids);
	if (r == 0 && add_generation_prompt)
		r = encode_head(t, f, "assistant", "", 0, ret_err, ids);
	if (r < 0)
		ids->n = n_before;
	return r;
}
