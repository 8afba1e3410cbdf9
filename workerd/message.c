/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/message.h"

#include <errno.h>
#include <string.h>

#include "proto/manifest.h"
#include "workerd/grammar.h"

struct message *message_new(enum message_kind kind, uint64_t client, uint32_t n_extra)
{
	struct message *m = calloc(1, sizeof(*m) + n_extra);

	if (!m)
		return NULL;
	m->kind = kind;
	m->client = client;
	return m;
}

struct message *message_new_for(
	enum message_kind kind, const struct message *request, uint32_t n_extra)
{
	struct message *m = message_new(kind, request->client, n_extra);

	if (!m)
		return NULL;
	m->id = request->id;
	m->serial = request->serial;
	return m;
}

static void message_free_generate(struct message_generate *g)
{
	for (uint32_t i = 0; i < g->n_branches; i++)
		message_free(g->branches[i]);
	free(g->branches);
	free(g->stops);
	free(g->biases);
	free(g->breakers);
	grammar_free(g->grammar);
}

struct message *message_free(struct message *m)
{
	if (!m)
		return NULL;
	if (m->kind == MESSAGE_APPEND)
		free(m->append.chat);
	if (m->kind == MESSAGE_GENERATE)
		message_free_generate(&m->generate);
	if (m->kind == MESSAGE_STATUS && m->status)
		free(m->status->sessions);
	if (m->kind == MESSAGE_STATUS)
		free(m->status);
	if (m->kind == MESSAGE_MANIFEST)
		manifest_free(m->manifest.manifest);
	if (m->kind == MESSAGE_BENCH_MEMORY)
		free(m->rates);
	if (m->kind == MESSAGE_TUNE || m->kind == MESSAGE_TUNING)
		free(m->tune.result);
	if (m->kind == MESSAGE_BENCH_RUN)
		free(m->bench_run.result);
	tokenizer_ids_fini(&m->made_ids);
	free(m->made_text);
	free(m->error);
	if (m->owner)
		m->free_owner(m->owner);
	free(m);
	return NULL;
}

int message_make_branches(struct message *generate)
{
	struct message_generate *g = &generate->generate;

	if (g->n_completions <= 1)
		return 0;
	g->branches = calloc(g->n_completions - 1, sizeof(struct message *));
	if (!g->branches)
		return -ENOMEM;
	for (uint32_t i = 1; i < g->n_completions; i++) {
		struct message *m = message_new_for(MESSAGE_FINISHED, generate, 0);

		if (!m)
			return -ENOMEM; /* those that there are go with the message */
		m->arrived_ns = generate->arrived_ns;
		m->generate = *g;
		m->generate.branches = NULL;
		m->generate.n_branches = 0;
		m->generate.origin = generate;
		m->generate.sampling.seed += i;
		m->generate.finished.index = i;
		g->branches[g->n_branches++] = m;
	}
	return 0;
}

void message_swap_outcomes(struct message *a, struct message *b)
{
	struct message_finished finished = a->generate.finished;
	struct err *error = a->error;
	int code = a->code;

	a->generate.finished = b->generate.finished;
	a->error = b->error;
	a->code = b->code;
	b->generate.finished = finished;
	b->error = error;
	b->code = code;
}

void message_refuse(struct message *m, int code, const struct err *e)
{
	m->code = code;
	if (!m->error)
		m->error = malloc(sizeof(*m->error));
	if (!m->error)
		return;
	if (e && e->text[0])
		*m->error = *e;
	else
		err_set(m->error, -code, "%s", strerror(-code));
}

const char *message_get_error(const struct message *m)
{
	return m->error ? m->error->text : "out of memory";
}

void message_drain(struct queue *q)
{
	struct queue_node *node;

	while ((node = queue_take(q)))
		message_free(message_from_node(node));
}
