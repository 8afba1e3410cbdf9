/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/text.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "proto/manifest.h"
#include "proto/stream.h"
#include "proto/util/err.h"
#include "workerd/grammar-cache.h"
#include "workerd/message.h"
#include "workerd/queue.h"
#include "workerd/template.h"
#include "workerd/tokenizer.h"

struct text {
	struct text_params params;
	struct manifest *manifest; /* a reference */
	uint64_t epoch;
	struct tokenizer *tokenizer; /* NULL: tokenizer_code and _err say why */
	int tokenizer_code;
	struct err tokenizer_err;
	enum template_kind template;
	int template_code; /* not 0: the model's template is none that we know */
	struct err template_err;
	bool had_template; /* at first; constant */
	struct grammar_cache *grammars;
	struct message *stop; /* until it is sent */
	pthread_t thread;
};

/* The model's BOS token first, where one is asked for and the model wants one. */
static int text_add_bos(const struct text *t, struct tokenizer_ids *ids)
{
	const struct manifest_tokenizer *tokenizer = t->manifest->tokenizer;

	if (!tokenizer->add_bos || tokenizer->bos == MANIFEST_NONE)
		return 0;
	return tokenizer_ids_append(ids, tokenizer->bos);
}

static int text_encode(struct text *t, const char *text, uint64_t n_bytes, bool parse_special,
	bool add_bos, struct err *ret_err, struct tokenizer_ids *ids)
{
	int r = add_bos ? text_add_bos(t, ids) : 0;

	if (r)
		return r;
	return tokenizer_encode(t->tokenizer, text, n_bytes, parse_special, ret_err, ids);
}

/* A conversation begins with BOS where the model wants one; that is no part of a later message. */
static int text_encode_chat(
	struct text *t, struct message_append *a, struct err *ret_err, struct tokenizer_ids *ids)
{
	if (t->template_code) {
		*ret_err = t->template_err;
		return t->template_code;
	}
	if (t->template == TEMPLATE_NONE)
		return err_set(ret_err, ENOTSUP, "chat: the model has no template");
	int r = text_add_bos(t, ids);
	if (r)
		return r;
	a->begins_with_bos = ids->n > 0;
	return template_encode(t->template, t->tokenizer, a->chat, a->n_chat,
		a->add_generation_prompt, ret_err, ids);
}

static int text_append(struct text *t, struct message *m, struct err *ret_err)
{
	struct message_append *a = &m->append;
	int r;

	if (a->input == MESSAGE_INPUT_CHAT)
		r = text_encode_chat(t, a, ret_err, &m->made_ids);
	else
		r = text_encode(t, a->text, a->n_text_bytes, a->parse_special, a->add_bos, ret_err,
			&m->made_ids);
	if (r)
		return r;
	m->epoch = t->epoch;
	a->ids = m->made_ids.ids;
	a->n_ids = m->made_ids.n;
	return 0;
}

static int text_tokenize(struct text *t, struct message *m, struct err *ret_err)
{
	int r = text_encode(t, m->text.text, m->text.n_text_bytes, m->text.parse_special,
		m->text.add_bos, ret_err, &m->made_ids);

	if (r)
		return r;
	m->text.ids = m->made_ids.ids;
	m->text.n_ids = m->made_ids.n;
	return 0;
}

static int text_publish(struct text *t, struct message *m, struct err *ret_err)
{
	struct message_publish *p = &m->publish;
	int r = text_encode(
		t, p->text, p->n_text_bytes, p->parse_special, p->add_bos, ret_err, &m->made_ids);

	if (r)
		return r;
	m->epoch = t->epoch;
	p->ids = m->made_ids.ids;
	p->n_ids = m->made_ids.n;
	return 0;
}

static int text_compile(struct text *t, struct message *m, struct err *ret_err)
{
	struct message_generate *g = &m->generate;

	/* The engine refuses it when it has another model by then: masks are of these tokens. */
	m->epoch = t->epoch;
	return grammar_cache_get(t->grammars, t->manifest, g->constraint, g->n_constraint_bytes,
		g->is_schema, ret_err, &g->grammar);
}

static int text_detokenize(struct text *t, struct message *m, struct err *ret_err)
{
	const char *bytes;
	uint32_t n_bytes;
	uint64_t n_total = 0;
	int r;

	for (uint64_t i = 0; i < m->text.n_ids; i++) {
		r = tokenizer_get_bytes(t->tokenizer, m->text.ids[i], ret_err, &bytes, &n_bytes);
		if (r)
			return r;
		n_total += n_bytes;
		if (n_total > STREAM_MAX_BYTES)
			return err_set(ret_err, EMSGSIZE,
				"detokenize: expected at most 1 MiB of text, found more");
	}
	m->made_text = malloc(n_total ? n_total : 1);
	if (!m->made_text)
		return -ENOMEM;
	m->text.text = m->made_text;
	for (uint64_t i = 0; i < m->text.n_ids; i++) {
		r = tokenizer_get_bytes(t->tokenizer, m->text.ids[i], ret_err, &bytes, &n_bytes);
		if (r)
			return r;
		memcpy(m->made_text + m->text.n_text_bytes, bytes, n_bytes);
		m->text.n_text_bytes += n_bytes;
	}
	return 0;
}

static void text_handle(struct text *t, struct message *m)
{
	struct err e = ERR_NULL;
	int r;

	if (!t->tokenizer) {
		r = t->tokenizer_code;
		e = t->tokenizer_err;
	} else if (m->kind == MESSAGE_APPEND) {
		r = text_append(t, m, &e);
	} else if (m->kind == MESSAGE_GENERATE) {
		r = text_compile(t, m, &e);
	} else if (m->kind == MESSAGE_PUBLISH) {
		r = text_publish(t, m, &e);
	} else if (m->kind == MESSAGE_TOKENIZE) {
		r = text_tokenize(t, m, &e);
	} else {
		r = text_detokenize(t, m, &e);
	}
	if (r)
		message_refuse(m, r, &e);
	bool is_for_engine = m->kind == MESSAGE_APPEND || m->kind == MESSAGE_GENERATE ||
			     m->kind == MESSAGE_PUBLISH;
	queue_push(is_for_engine && !r ? t->params.engine : t->params.out, &m->node);
}

static void text_init_tables(struct text *t)
{
	t->tokenizer_code = tokenizer_new(t->manifest, &t->tokenizer_err, &t->tokenizer);
	t->template_code = template_find(t->manifest, &t->template_err, &t->template);
}

static bool text_has_template(const struct text *t)
{
	return t->tokenizer && !t->template_code && t->template != TEMPLATE_NONE;
}

/* Nothing of the former model's tables is used any more: answers are copies. */
static void text_replace(struct text *t, struct message *m)
{
	t->tokenizer = tokenizer_free(t->tokenizer);
	grammar_cache_clear(t->grammars);
	manifest_free(t->manifest);
	t->manifest = TAKE_PTR(m->manifest.manifest);
	t->epoch = m->manifest.epoch;
	text_init_tables(t);
	m->manifest.has_chat_template = text_has_template(t);
	queue_push(t->params.out, &m->node);
}

static void *text_run(void *userdata)
{
	struct text *t = userdata;

	for (;;) {
		queue_wait(t->params.in);
		struct message *m = message_from_node(queue_take(t->params.in));

		if (m->kind == MESSAGE_STOP) {
			queue_push(t->params.out, &m->node);
			return NULL;
		}
		if (m->kind == MESSAGE_MANIFEST)
			text_replace(t, m);
		else
			text_handle(t, m);
	}
}

static struct text *text_destroy(struct text *t)
{
	message_free(t->stop);
	tokenizer_free(t->tokenizer);
	grammar_cache_free(t->grammars);
	manifest_free(t->manifest);
	free(t);
	return NULL;
}

int text_new(const struct text_params *params, struct err *ret_err, struct text **ret_text)
{
	struct text *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	t->params = *params;
	t->stop = message_new(MESSAGE_STOP, 0, 0);
	if (!t->stop || grammar_cache_new(&t->grammars)) {
		text_destroy(t);
		return -ENOMEM;
	}
	t->manifest = manifest_ref(params->manifest);
	t->epoch = 1;
	text_init_tables(t);
	t->had_template = text_has_template(t);
	r = -pthread_create(&t->thread, NULL, text_run, t);
	if (r) {
		err_set(ret_err, -r, "cannot start the text thread: %s", strerror(-r));
		text_destroy(t);
		return r;
	}
	*ret_text = t;
	return 0;
}

void text_stop(struct text *t)
{
	if (t->stop)
		queue_push(t->params.in, &TAKE_PTR(t->stop)->node);
}

struct text *text_free(struct text *t)
{
	if (!t)
		return NULL;
	text_stop(t);
	pthread_join(t->thread, NULL);
	return text_destroy(t);
}

bool text_has_chat_template(const struct text *t)
{
	return t->had_template;
}
