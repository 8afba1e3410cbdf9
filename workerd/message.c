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

struct message *message_free(struct message *m)
{
	if (!m)
		return NULL;
	if (m->kind == MESSAGE_APPEND)
		free(m->append.chat);
	if (m->kind == MESSAGE_GENERATE) {
		free(m->generate.stops);
		free(m->generate.biases);
		free(m->generate.breakers);
		grammar_free(m->generate.grammar);
	}
	if (m->kind == MESSAGE_STATUS)
		free(m->status);
	if (m->kind == MESSAGE_MANIFEST)
		manifest_free(m->manifest.manifest);
	if (m->kind == MESSAGE_BENCH_MEMORY)
		free(m->rates);
	tokenizer_ids_fini(&m->made_ids);
	free(m->made_text);
	free(m->error);
	if (m->owner)
		m->free_owner(m->owner);
	free(m);
	return NULL;
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
