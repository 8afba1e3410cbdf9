/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/notice.h"

#include <errno.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "proto/weights-client.h"
#include "workerd/message.h"
#include "workerd/queue.h"

void notice_tell_back(const struct notice_params *params, uint64_t generation,
	const struct weights_client_contents *contents)
{
	struct message *m = message_new(MESSAGE_NOTICE, 0, 0);

	if (!m) {
		log_warn("the engine is not told that weightd is back: out of memory");
		return;
	}
	m->notice = (struct message_notice){
		.kind = MESSAGE_NOTICE_BACK, .generation = generation, .contents = *contents};
	queue_push(params->engine, &m->node);
}

void notice_tell_unleased(const struct notice_params *params, uint64_t generation, const char *why)
{
	struct message *m = message_new(MESSAGE_NOTICE, 0, 0);
	struct err error = ERR_NULL;

	if (!m) {
		log_warn("the engine is not told that its lease has ended: out of memory");
		return;
	}
	m->notice =
		(struct message_notice){.kind = MESSAGE_NOTICE_UNLEASED, .generation = generation};
	message_refuse(m, err_set(&error, EIO, "%s", why), &error);
	queue_push(params->engine, &m->node);
}

void notice_on_event(const struct weights_client_event *event, void *userdata)
{
	const struct notice_params *params = userdata;
	bool is_ours = event->kind == WEIGHTS_CLIENT_PRESSURE;
	struct message *m;

	if (event->kind == WEIGHTS_CLIENT_LOST || event->kind == WEIGHTS_CLIENT_REPLACED ||
		event->kind == WEIGHTS_CLIENT_CORRUPT || event->kind == WEIGHTS_CLIENT_EXPELLED ||
		event->kind == WEIGHTS_CLIENT_IDENTIFIED || event->kind == WEIGHTS_CLIENT_PREFIXES)
		is_ours = !strcmp(event->model, params->model);
	if (!is_ours)
		return;
	m = message_new(MESSAGE_NOTICE, 0, 0);
	if (!m) {
		log_warn("a notice of weightd's is dropped: out of memory");
		return;
	}
	m->notice = (struct message_notice){
		.generation = event->generation, .contents = event->contents};
	switch (event->kind) {
	case WEIGHTS_CLIENT_PRESSURE: m->notice.kind = MESSAGE_NOTICE_PRESSURE; break;
	case WEIGHTS_CLIENT_REPLACED: m->notice.kind = MESSAGE_NOTICE_REPLACED; break;
	case WEIGHTS_CLIENT_IDENTIFIED: m->notice.kind = MESSAGE_NOTICE_IDENTIFIED; break;
	case WEIGHTS_CLIENT_PREFIXES: m->notice.kind = MESSAGE_NOTICE_PREFIXES; break;
	default: m->notice.kind = MESSAGE_NOTICE_LOST; break;
	}
	if (m->notice.kind == MESSAGE_NOTICE_LOST) {
		struct err why = ERR_NULL;

		err_set(&why, EIO, "%s", event->text[0] ? event->text : "the lease has ended");
		message_refuse(m, -EIO, &why);
	}
	queue_push(params->engine, &m->node);
}
