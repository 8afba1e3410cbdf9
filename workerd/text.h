/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_TEXT_H
#define WORKERD_TEXT_H

/*
 * The text thread: tokenizing, detokenizing, chat templates and grammars, so that a megabyte of
 * prompt or schema holds up neither the loop nor the engine. It takes MESSAGE_APPEND (text and
 * chat), MESSAGE_GENERATE (with a constraint), MESSAGE_TOKENIZE and MESSAGE_DETOKENIZE from its
 * queue, in order; and MESSAGE_MANIFEST, from which on it goes by
 * another model's tables. It keeps the manifest that it uses alive.
 */
#include <stdbool.h>

#include "proto/util/cleanup.h"

struct err;
struct manifest;
struct queue;
struct text;

struct text_params {
	struct manifest *manifest; /* a reference is taken */
	struct queue *in;
	struct queue *engine; /* where an Append goes that became tokens, and a Generate */
	struct queue *out;    /* answers and refusals, to the loop */
};

/*
 * Starts the thread; all borrowed. A model without a tokenizer or with a template that we do not
 * know is served all the same: requests that need one are refused with the reason.
 */
int must_check text_new(
	const struct text_params *params, struct err *ret_err, struct text **ret_text);

/*
 * The thread ends when it has served what is in its queue; MESSAGE_STOP is the last that it sends.
 * Does nothing the second time.
 */
void text_stop(struct text *t);

/* Stops and waits for the thread. Accepts NULL; returns NULL. */
struct text *text_free(struct text *t);

/* Of the first manifest. Any thread. */
bool text_has_chat_template(const struct text *t);

#endif
