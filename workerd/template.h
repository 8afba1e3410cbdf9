/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_TEMPLATE_H
#define WORKERD_TEMPLATE_H

/*
 * Chat messages to tokens. The forms of ChatML and of Llama 3 are known by their marks in the
 * model's template; another template is refused by name. What a message says is plain text: a
 * "<|im_end|>" typed by a user does not end his turn. A BOS token is no part of it: see
 * workerd/text.c.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct manifest;
struct tokenizer;
struct tokenizer_ids;

enum template_kind { TEMPLATE_NONE, TEMPLATE_CHATML, TEMPLATE_LLAMA3 };

struct template_message {
	const char *role; /* "system", "user", "assistant", NUL-terminated */
	const char *content;
	uint64_t n_content_bytes;
};

/* Which template the model has. -ENOTSUP with ret_err for one we do not know. */
int must_check template_find(
	const struct manifest *m, struct err *ret_err, enum template_kind *ret_kind);

/* Appends to *ids; unchanged on failure. -EINVAL: an unknown role. */
int must_check template_encode(enum template_kind kind, struct tokenizer *t,
	const struct template_message *messages, uint32_t n_messages, bool add_generation_prompt,
	struct err *ret_err, struct tokenizer_ids *ids);

#endif
