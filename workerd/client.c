/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/client.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>

#include "proto/stream.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "workerd/message.h"
#include "workerd/rpc.h"

enum {
	/* With more than this unread a client's next request waits. */
	BUSY_OUTPUT_BYTES = 64 * 1024,
};

/* What users without a number look like: the kernel's default, which nobody else should have. */
static const uid_t overflow_uid = 65534;

enum client_state {
	CLIENT_NEW,     /* before Hello */
	CLIENT_OPEN,    /* after it */
	CLIENT_CLOSING, /* reads no more, writes what is left */
	CLIENT_DEAD,    /* closed is on its way */
};

struct client {
	uint64_t id;
	uint64_t scope;
	enum client_state state;
	const struct rpc_worker *worker;
	const struct client_events *events;
	struct bufferevent *stream;
	struct event *reaper; /* tells closed from the loop, where nobody uses the client */
	struct event *hello;  /* runs until Hello is there, however slowly its bytes come */
	uint64_t last_serial;
	uint64_t waiting_serial; /* of the request that is being served; 0: none */
};

static void client_die(struct client *c)
{
	if (c->state == CLIENT_DEAD)
		return;
	c->state = CLIENT_DEAD;
	bufferevent_disable(c->stream, EV_READ | EV_WRITE);
	event_active(c->reaper, EV_TIMEOUT, 0);
}

static size_t client_get_output(const struct client *c)
{
	return evbuffer_get_length(bufferevent_get_output(c->stream));
}

void client_finish(struct client *c)
{
	if (c->state == CLIENT_DEAD)
		return;
	c->state = CLIENT_CLOSING;
	bufferevent_disable(c->stream, EV_READ);
	if (!client_get_output(c))
		client_die(c);
}

static void client_write(struct client *c, const struct message *m)
{
	uint8_t *data;
	uint32_t n_bytes;

	if (rpc_encode(m, c->worker, &data, &n_bytes)) {
		client_die(c);
		return;
	}
	int r = bufferevent_write(c->stream, data, n_bytes);
	free(data);
	if (r) {
		client_die(c);
	} else if (client_get_output(c) > CLIENT_MAX_OUTPUT_BYTES) {
		log_warn("client %" PRIu64 ": it does not read its answers; dropped", c->id);
		client_die(c);
	}
}

/* Says why and closes. A request that could not even be read has id 0. */
static void client_refuse(struct client *c, uint64_t id, int code, const struct err *e)
{
	struct message *m = message_new(MESSAGE_UNKNOWN, c->id, 0);

	if (!m) {
		client_die(c);
		return;
	}
	m->id = id;
	message_refuse(m, code, e);
	log_info("client %" PRIu64 ": %s; dropped", c->id, message_get_error(m));
	client_write(c, m);
	message_free(m);
	client_finish(c);
}

static void client_handle_hello(struct client *c, struct message *m)
{
	struct err e = ERR_NULL;

	if (m->kind != MESSAGE_HELLO) {
		err_set(&e, EPROTO, "hello: expected it as the first request");
		client_refuse(c, m->id, -EPROTO, &e);
	} else if (m->protocol != STREAM_PROTOCOL) {
		err_set(&e, EPROTO,
			"hello: protocol: expected %d, found %" PRIu32
			" (workerd is version " WEIGHTD_VERSION ")",
			STREAM_PROTOCOL, m->protocol);
		client_refuse(c, m->id, -EPROTO, &e);
	} else {
		c->state = CLIENT_OPEN;
		event_del(c->hello);
		client_write(c, m);
	}
	message_free(m);
}

static void client_handle(struct client *c, struct message *m)
{
	if (c->state == CLIENT_NEW) {
		client_handle_hello(c, m);
		return;
	}
	if (m->kind == MESSAGE_HELLO && !m->code) {
		struct err e = ERR_NULL;

		message_refuse(m, err_set(&e, EPROTO, "hello: it was said already"), &e);
	}
	if (m->code) {
		client_write(c, m);
		message_free(m);
		return;
	}
	m->client = c->id;
	m->scope = c->scope;
	m->serial = ++c->last_serial;
	c->waiting_serial = m->serial;
	c->events->request(c->events->userdata, m);
}

/* Takes one whole request out of the input; false when there is none yet. */
static bool client_read_request(struct client *c)
{
	struct evbuffer *in = bufferevent_get_input(c->stream);
	uint8_t header[STREAM_HEADER_BYTES];
	uint32_t n_bytes;
	struct message *m;
	struct err e = ERR_NULL;

	if (evbuffer_copyout(in, header, sizeof(header)) < (ev_ssize_t)sizeof(header))
		return false;
	int r = stream_parse_header(header, &e, &n_bytes);
	if (r) {
		client_refuse(c, 0, r, &e);
		return false;
	}
	if (evbuffer_get_length(in) - sizeof(header) < n_bytes)
		return false;
	evbuffer_drain(in, sizeof(header));
	const uint8_t *data = evbuffer_pullup(in, n_bytes);
	r = data ? rpc_decode(data, n_bytes, &e, &m)
		 : err_set(&e, ENOMEM,
			   "request: the worker has no memory for one of %" PRIu32 " bytes",
			   n_bytes);
	if (r) {
		client_refuse(c, 0, r, &e);
		return false;
	}
	evbuffer_drain(in, n_bytes);
	client_handle(c, m);
	return true;
}

static void client_read(struct client *c)
{
	while ((c->state == CLIENT_NEW || c->state == CLIENT_OPEN) && !c->waiting_serial &&
		client_get_output(c) < BUSY_OUTPUT_BYTES && client_read_request(c))
		;
}

static void client_on_read(struct bufferevent *stream, void *userdata)
{
	(void)stream;
	client_read(userdata);
}

/* All is written. */
static void client_on_write(struct bufferevent *stream, void *userdata)
{
	struct client *c = userdata;

	(void)stream;
	if (c->state == CLIENT_CLOSING)
		client_die(c);
	else
		client_read(c);
}

static void client_on_event(struct bufferevent *stream, short what, void *userdata)
{
	struct client *c = userdata;

	(void)stream;
	if (what & BEV_EVENT_TIMEOUT && c->state != CLIENT_DEAD)
		log_warn("client %" PRIu64 ": its answers are not read in %d s; dropped", c->id,
			CLIENT_STALL_S);
	client_die(c);
}

static void client_on_no_hello(evutil_socket_t fd, short what, void *userdata)
{
	struct client *c = userdata;

	(void)fd;
	(void)what;
	if (c->state != CLIENT_NEW)
		return;
	log_warn("client %" PRIu64 ": no hello in %d s; dropped", c->id, CLIENT_HELLO_S);
	client_die(c);
}

static void client_on_reap(evutil_socket_t fd, short what, void *userdata)
{
	struct client *c = userdata;

	(void)fd;
	(void)what;
	c->events->closed(c->events->userdata, c);
}

static uint64_t client_ask_scope(int fd, uint64_t id)
{
	struct ucred peer;
	socklen_t n_bytes = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n_bytes) || peer.uid == overflow_uid)
		return 1ull << 63 | id;
	return 1ull << 32 | peer.uid;
}

int client_new(struct event_base *base, int fd, uint64_t id, const struct rpc_worker *worker,
	const struct client_events *events, struct client **ret_client)
{
	const struct timeval hello = {.tv_sec = CLIENT_HELLO_S};
	const struct timeval stall = {.tv_sec = CLIENT_STALL_S};
	struct client *c = calloc(1, sizeof(*c));

	if (!c) {
		close(fd);
		return -ENOMEM;
	}
	c->id = id;
	c->scope = client_ask_scope(fd, id);
	c->worker = worker;
	c->events = events;
	c->stream = bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);
	if (!c->stream)
		close(fd);
	c->reaper = event_new(base, -1, 0, client_on_reap, c);
	c->hello = evtimer_new(base, client_on_no_hello, c);
	if (!c->stream || !c->reaper || !c->hello || event_add(c->hello, &hello)) {
		client_free(c);
		return -ENOMEM;
	}
	bufferevent_setcb(c->stream, client_on_read, client_on_write, client_on_event, c);
	bufferevent_setwatermark(c->stream, EV_READ, 0, STREAM_HEADER_BYTES + STREAM_MAX_BYTES);
	bufferevent_set_timeouts(c->stream, NULL, &stall);
	if (bufferevent_enable(c->stream, EV_READ | EV_WRITE)) {
		client_free(c);
		return -ENOMEM;
	}
	*ret_client = c;
	return 0;
}

struct client *client_free(struct client *c)
{
	if (!c)
		return NULL;
	if (c->reaper)
		event_free(c->reaper);
	if (c->hello)
		event_free(c->hello);
	if (c->stream)
		bufferevent_free(c->stream);
	free(c);
	return NULL;
}

uint64_t client_get_id(const struct client *c)
{
	return c->id;
}

void client_answer(struct client *c, struct message *m)
{
	bool is_answer = m->serial == c->waiting_serial && m->kind != MESSAGE_TOKEN &&
			 m->kind != MESSAGE_TUNING;

	/* One that is being refused gets nothing more. */
	if (c->state == CLIENT_OPEN && m->kind != MESSAGE_STARTED)
		client_write(c, m);
	if (is_answer)
		c->waiting_serial = 0;
	message_free(m);
	/* From the loop, not from here: a request that is answered at once would recurse. */
	if (is_answer && c->state == CLIENT_OPEN)
		bufferevent_trigger(
			c->stream, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

void client_turn_away(int fd, const char *text)
{
	struct message *m = message_new(MESSAGE_UNKNOWN, 0, 0);
	struct err e = ERR_NULL;
	uint8_t *data;
	uint32_t n_bytes;

	if (m) {
		message_refuse(m, err_set(&e, EBUSY, "%s", text), &e);
		if (!rpc_encode(m, NULL, &data, &n_bytes)) {
			/* A fresh socket takes a line; if not, the close alone has to do. */
			if (send(fd, data, n_bytes, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
				log_debug("a client was turned away without a word");
			free(data);
		}
		message_free(m);
	}
	close(fd);
}
