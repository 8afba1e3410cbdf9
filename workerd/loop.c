/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/loop.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#include <event2/event.h>

#include "proto/util/err.h"
#include "proto/util/notify.h"
#include "workerd/engine.h"
#include "workerd/link.h"
#include "workerd/message.h"
#include "workerd/queue.h"
#include "workerd/rpc.h"
#include "workerd/server.h"
#include "workerd/text.h"

enum loop_state {
	LOOP_RUNNING,
	LOOP_TEXT_STOPS,
	LOOP_ENGINE_STOPS,
	LOOP_CLIENTS_LEAVE,
};

/* For clients to take their last answers in. */
static const struct timeval leave_time = {.tv_sec = 1};

struct loop {
	struct loop_params params;
	enum loop_state state;
	struct event_base *base;
	struct server *server;
	struct event *queue;
	struct link *link;
	struct event *leave;
	struct event *signals[2];
	int code; /* of the engine's failure */
	struct err error;
};

/* A step towards the end; each follows the last message of the one before. */
static void loop_go_on_stopping(struct loop *l)
{
	switch (l->state) {
	case LOOP_RUNNING:
		notify_stopping();
		server_stop(l->server);
		l->state = LOOP_TEXT_STOPS;
		text_stop(l->params.text);
		break;
	case LOOP_TEXT_STOPS:
		l->state = LOOP_ENGINE_STOPS;
		engine_stop(l->params.engine);
		link_stop(l->link);
		break;
	case LOOP_ENGINE_STOPS:
		l->state = LOOP_CLIENTS_LEAVE;
		event_add(l->leave, &leave_time);
		server_finish(l->server);
		break;
	case LOOP_CLIENTS_LEAVE: break;
	}
}

static void loop_on_signal(evutil_socket_t signum, short what, void *userdata)
{
	struct loop *l = userdata;

	(void)signum;
	(void)what;
	if (l->state == LOOP_RUNNING)
		loop_go_on_stopping(l);
}

static void loop_on_changed(struct rpc_worker *w, const struct message_changed *c)
{
	w->is_parked = c->is_parked;
	if (c->is_parked)
		return;
	w->generation = c->generation;
	w->has_identity = c->has_identity;
	memcpy(w->identity, c->identity, sizeof(w->identity));
	w->n_ctx = c->n_ctx;
	w->n_dispatches = c->n_dispatches;
	w->weights_bytes = c->weights_bytes;
	w->attach_ns = c->attach_ns;
	for (uint32_t p = 0; p < RPC_N_PLACEMENTS; p++)
		w->placed_bytes[p] = c->placed_bytes[p];
}

static void loop_on_message(struct loop *l, struct message *m)
{
	if (m->kind == MESSAGE_CHANGED) {
		loop_on_changed(l->params.worker, &m->changed);
		message_free(m);
	} else if (m->kind == MESSAGE_MANIFEST) {
		l->params.worker->has_chat_template = m->manifest.has_chat_template;
		message_free(m);
	} else if (m->kind == MESSAGE_STOP) {
		message_free(m);
		loop_go_on_stopping(l);
	} else if (m->kind == MESSAGE_FAILED) {
		l->code = m->code;
		err_set(&l->error, -m->code, "%s", message_get_error(m));
		message_free(m);
		if (l->state == LOOP_RUNNING)
			loop_go_on_stopping(l);
	} else {
		server_deliver(l->server, m);
	}
}

static void loop_on_queue(evutil_socket_t fd, short what, void *userdata)
{
	struct loop *l = userdata;
	struct queue_node *node;

	(void)fd;
	(void)what;
	while ((node = queue_take(l->params.in)))
		loop_on_message(l, message_from_node(node));
}

static void loop_on_leave(evutil_socket_t fd, short what, void *userdata)
{
	(void)fd;
	(void)what;
	event_base_loopbreak(((struct loop *)userdata)->base);
}

static void loop_on_empty(void *userdata)
{
	event_base_loopbreak(((struct loop *)userdata)->base);
}

static int loop_add_events(struct loop *l)
{
	static const int signums[] = {SIGTERM, SIGINT};
	short read = EV_READ | EV_PERSIST;

	l->queue = event_new(l->base, queue_get_fd(l->params.in), read, loop_on_queue, l);
	l->leave = evtimer_new(l->base, loop_on_leave, l);
	if (!l->queue || !l->leave || event_add(l->queue, NULL))
		return -ENOMEM;
	for (unsigned i = 0; i < ARRAY_SIZE(signums); i++) {
		l->signals[i] = evsignal_new(l->base, signums[i], loop_on_signal, l);
		if (!l->signals[i] || event_add(l->signals[i], NULL))
			return -ENOMEM;
	}
	return 0;
}

int loop_new(const struct loop_params *params, struct err *ret_err, struct loop **ret_loop)
{
	struct loop *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	l->params = *params;
	l->base = event_base_new();
	if (!l->base) {
		loop_free(l);
		return -ENOMEM;
	}
	const struct server_params server = {
		.base = l->base,
		.path = params->path,
		.worker = params->worker,
		.text = params->text_queue,
		.engine = params->engine_queue,
		.empty = loop_on_empty,
		.userdata = l,
	};
	r = server_new(&server, ret_err, &l->server);
	if (!r)
		r = loop_add_events(l);
	if (!r) {
		struct link_params link = *params->link;

		link.base = l->base;
		r = link_new(&link, params->weightd, ret_err, &l->link);
	}
	if (r) {
		loop_free(l);
		return r;
	}
	*ret_loop = l;
	return 0;
}

struct loop *loop_free(struct loop *l)
{
	if (!l)
		return NULL;
	server_free(l->server);
	for (unsigned i = 0; i < ARRAY_SIZE(l->signals); i++)
		if (l->signals[i])
			event_free(l->signals[i]);
	if (l->queue)
		event_free(l->queue);
	link_free(l->link);
	if (l->leave)
		event_free(l->leave);
	if (l->base)
		event_base_free(l->base);
	free(l);
	return NULL;
}

int loop_run(struct loop *l, struct err *ret_err)
{
	if (event_base_dispatch(l->base) < 0)
		return err_set(ret_err, EIO, "the event loop failed");
	if (l->code)
		*ret_err = l->error;
	return l->code;
}
