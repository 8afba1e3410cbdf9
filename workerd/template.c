/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/template.h"

#include <errno.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "workerd/tokenizer.h"

/*
 * ChatML: <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message, then <|im_start|>assistant\n.
 * Source: the templates of the Qwen models.
 */
static const char turn_start[] = "<|im_start|>";
static const char turn_end[] = "<|im_end|>";

/* Marks by which a refusal can name a template. */
static const struct {
	const char *mark, *name;
} foreign[] = {
	{"<|start_header_id|>", "Llama 3"},
	{"<start_of_turn>", "Gemma"},
	{"[INST]", "Mistral or Llama 2"},
	{"<|start_of_role|>", "Granite"},
	{"<|assistant|>", "Phi or Zephyr"},
};

static bool has_token(const struct manifest *m, const char *mark)
{
	return manifest_find_token(m, mark, (uint32_t)strlen(mark)) != MANIFEST_NONE;
}

int template_find(const struct manifest *m, struct err *ret_err, enum template_kind *ret_kind)
{
	struct manifest_string s = m->tokenizer->chat_template;
	const char *text = (const char *)manifest_get_string(m, s);

	if (m->tokenizer->model == MANIFEST_TOKENIZER_NONE || s.n_bytes == 0) {
		*ret_kind = TEMPLATE_NONE;
		return 0;
	}
	if (memmem(text, s.n_bytes, turn_start, strlen(turn_start)) &&
		memmem(text, s.n_bytes, turn_end, strlen(turn_end))) {
		if (!has_token(m, turn_start) || !has_token(m, turn_end))
			return err_set(ret_err, ENOTSUP,
				"chat template: ChatML needs the tokens %s and %s, which the "
				"vocabulary "
				"has not",
				turn_start, turn_end);
		*ret_kind = TEMPLATE_CHATML;
		return 0;
	}
	for (uint32_t i = 0; i < ARRAY_SIZE(foreign); i++)
		if (memmem(text, s.n_bytes, foreign[i].mark, strlen(foreign[i].mark)))
			return err_set(ret_err, ENOTSUP,
				"chat template: expected ChatML, found %s (%s)", foreign[i].name,
				foreign[i].mark);
	return err_set(ret_err, ENOTSUP,
		"chat template: expected ChatML, found one that begins: %.*s",
		s.n_bytes < 60 ? (int)s.n_bytes : 60, text);
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

static int encode_mark(
	struct tokenizer *t, const char *mark, struct err *ret_err, struct tokenizer_ids *ids)
{
	return tokenizer_encode(t, mark, strlen(mark), true, ret_err, ids);
}

/*
 * Role, line break and content are one text to the pre-tokenizer, as when the rendered template is
 * tokenised whole: a content that begins with a line break shares its word with the template's.
 */
static int encode_message(struct tokenizer *t, const struct template_message *message,
	struct err *ret_err, struct tokenizer_ids *ids)
{
	uint64_t n_role = strlen(message->role), n_bytes;

	if (__builtin_add_overflow(n_role + 1, message->n_content_bytes, &n_bytes))
		return -EOVERFLOW;
	_cleanup_(cleanup_free)
	char *text = malloc(n_bytes);
	if (!text)
		return -ENOMEM;
	memcpy(text, message->role, n_role);
	text[n_role] = '\n';
	if (message->n_content_bytes)
		memcpy(text + n_role + 1, message->content, message->n_content_bytes);

	int r = encode_mark(t, turn_start, ret_err, ids);
	if (r == 0)
		r = tokenizer_encode(t, text, n_bytes, false, ret_err, ids);
	if (r == 0)
		r = encode_mark(t, turn_end, ret_err, ids);
	if (r == 0)
		r = tokenizer_encode(t, "\n", 1, false, ret_err, ids);
	return r;
}

int template_encode(enum template_kind kind, struct tokenizer *t,
	const struct template_message *messages, uint32_t n_messages, bool add_generation_prompt,
	struct err *ret_err, struct tokenizer_ids *ids)
{
	static const char prompt[] = "assistant\n";
	uint64_t n_before = ids->n;
	int r = 0;

	if (kind != TEMPLATE_CHATML)
		return err_set(ret_err, ENOTSUP, "chat template: the model has none");
	for (uint32_t i = 0; i < n_messages; i++) {
		r = check_role(messages[i].role, i, ret_err);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < n_messages && r == 0; i++)
		r = encode_message(t, &messages[i], ret_err, ids);
	if (r == 0 && add_generation_prompt)
		r = encode_mark(t, turn_start, ret_err, ids);
	if (r == 0 && add_generation_prompt)
		r = tokenizer_encode(t, prompt, strlen(prompt), false, ret_err, ids);
	if (r < 0)
		ids->n = n_before;
	return r;
}
