/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/server.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#include <event2/event.h>

#include "proto/stream.h"
#include "proto/unix-path.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "workerd/client.h"
#include "workerd/message.h"
#include "workerd/queue.h"
#include "workerd/rpc.h"

enum {
	/* The socket is its owner's: whoever may connect may use the model. */
	SOCKET_MODE = 0600,
};

/* When accept fails for want of descriptors or memory, it is tried again after this. */
static const struct timeval accept_pause = {.tv_usec = 100 * 1000};

struct slot {
	struct client *client;   /* NULL: free */
	struct message *goodbye; /* MESSAGE_DISCONNECT, made beforehand so that it cannot fail */
};

struct server {
	struct server_params params;
	struct client_events events;
	int fd; /* listening; -1: stopped */
	struct unix_path_file file;
	struct event *listen;
	struct event *resume; /* ends an accept_pause */
	uint64_t last_client; /* id given last */
	bool is_finishing;
	uint32_t n_clients;
	struct slot slots[SERVER_MAX_CLIENTS];
};

static struct client *server_find(struct server *s, uint64_t id)
{
	for (uint32_t i = 0; i < SERVER_MAX_CLIENTS; i++)
		if (s->slots[i].client && client_get_id(s->slots[i].client) == id)
			return s->slots[i].client;
	return NULL;
}

void server_deliver(struct server *s, struct message *m)
{
	struct client *c = m->kind == MESSAGE_DISCONNECT ? NULL : server_find(s, m->client);

	if (c)
		client_answer(c, m);
	else
		message_free(m);
}

/* To the thread that serves it. */
static void server_on_request(void *userdata, struct message *m)
{
	struct server *s = userdata;
	bool is_text = m->kind == MESSAGE_TOKENIZE || m->kind == MESSAGE_DETOKENIZE ||
		       (m->kind == MESSAGE_APPEND && m->append.input != MESSAGE_INPUT_TOKENS) ||
		       (m->kind == MESSAGE_GENERATE && m->generate.constraint) ||
		       (m->kind == MESSAGE_PUBLISH && m->publish.text);

	if (s->fd < 0) {
		struct err e = ERR_NULL;

		message_refuse(m, err_set(&e, ESHUTDOWN, "workerd is stopping"), &e);
		server_deliver(s, m);
		return;
	}
	queue_push(is_text ? s->params.text : s->params.engine, &m->node);
}

static void server_check_empty(struct server *s)
{
	if (s->is_finishing && !s->n_clients)
		s->params.empty(s->params.userdata);
}

static void server_on_closed(void *userdata, struct client *c)
{
	struct server *s = userdata;
	struct slot *slot = s->slots;

	while (slot->client != c)
		slot++;
	slot->goodbye->client = client_get_id(c);
	/* Once the threads are to end, their last message is on its way. */
	if (s->fd < 0)
		message_free(slot->goodbye);
	else
		queue_push(s->params.engine, &slot->goodbye->node);
	*slot = (struct slot){0};
	s->n_clients--;
	client_free(c);
	server_check_empty(s);
}

/* Takes fd. */
static void server_add(struct server *s, int fd)
{
	struct slot *slot = s->slots;
	char text[64];

	if (s->n_clients == SERVER_MAX_CLIENTS) {
		snprintf(text, sizeof(text), "all %d client connections are taken",
			SERVER_MAX_CLIENTS);
		log_warn("a client was turned away: %s", text);
		client_turn_away(fd, text);
		return;
	}
	while (slot->client)
		slot++;
	slot->goodbye = message_new(MESSAGE_DISCONNECT, 0, 0);
	if (!slot->goodbye) {
		close(fd);
		return;
	}
	if (client_new(s->params.base, fd, s->last_client + 1, s->params.worker, &s->events,
		    &slot->client)) {
		slot->goodbye = message_free(slot->goodbye);
		return;
	}
	s->last_client++;
	s->n_clients++;
}

static void server_on_accept(evutil_socket_t listening, short what, void *userdata)
{
	struct server *s = userdata;
	int fd;

	(void)what;
	while ((fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
		server_add(s, fd);
	if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
		return;
	/* The event is level-triggered: without a pause this would spin. */
	log_warn("cannot accept a client: %s", strerror(errno));
	event_del(s->listen);
	event_add(s->resume, &accept_pause);
}

static void server_on_resume(evutil_socket_t fd, short what, void *userdata)
{
	struct server *s = userdata;

	(void)fd;
	(void)what;
	event_add(s->listen, NULL);
}

int server_new(const struct server_params *params, struct err *ret_err, struct server **ret_server)
{
	struct server *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->fd = -1;
	s->params = *params;
	s->events = (struct client_events){
		.userdata = s,
		.request = server_on_request,
		.closed = server_on_closed,
	};
	r = stream_listen(params->path, SOCKET_MODE, ret_err, &s->fd);
	if (!r)
		r = unix_path_remember(params->path, ret_err, &s->file);
	if (r) {
		server_free(s);
		return r;
	}
	s->listen = event_new(params->base, s->fd, EV_READ | EV_PERSIST, server_on_accept, s);
	s->resume = event_new(params->base, -1, 0, server_on_resume, s);
	if (!s->listen || !s->resume || event_add(s->listen, NULL)) {
		server_free(s);
		return -ENOMEM;
	}
	*ret_server = s;
	return 0;
}

struct server *server_free(struct server *s)
{
	if (!s)
		return NULL;
	server_stop(s);
	for (uint32_t i = 0; i < SERVER_MAX_CLIENTS; i++) {
		client_free(s->slots[i].client);
		message_free(s->slots[i].goodbye);
	}
	free(s);
	return NULL;
}

void server_stop(struct server *s)
{
	if (s->listen)
		event_free(s->listen);
	if (s->resume)
		event_free(s->resume);
	s->listen = s->resume = NULL;
	if (s->fd >= 0) {
		unix_path_unlink(s->params.path, &s->file);
		close(s->fd);
	}
	s->fd = -1;
}

void server_finish(struct server *s)
{
	s->is_finishing = true;
	for (uint32_t i = 0; i < SERVER_MAX_CLIENTS; i++)
		if (s->slots[i].client)
			client_finish(s->slots[i].client);
	server_check_empty(s);
}
