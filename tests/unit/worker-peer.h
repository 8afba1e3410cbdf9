/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_WORKER_PEER_H
#define TESTS_UNIT_WORKER_PEER_H

/*
 * A worker's side of a socketpair. A client's ids are 1 (Hello), 2, ... so that the answers of a
 * case are in the socket before the client asks.
 */
#include <string.h>
#include <sys/socket.h>

#include "proto/stream.h"
#include "proto/util/err.h"
#include "proto/worker-client.h"
#include "proto/workerd.pb-c.h"
#include "tests/case.h"

static int worker_peer; /* socket */

static uint8_t worker_peer_message[STREAM_MAX_BYTES];

static inline void worker_peer_reply(uint64_t id, Wk__Reply__BodyCase body, void *content)
{
	Wk__Reply r = WK__REPLY__INIT;

	r.id = id;
	r.body_case = body;
	r.error = content; /* the body is a union of pointers */
	assert_int_equal(stream_send(worker_peer, worker_peer_message,
				 (uint32_t)wk__reply__pack(&r, worker_peer_message)),
		0);
}

static inline void worker_peer_reply_error(uint64_t id, int code, const char *text)
{
	Wk__Error e = WK__ERROR__INIT;

	e.code = code;
	e.text = (char *)text;
	worker_peer_reply(id, WK__REPLY__BODY_ERROR, &e);
}

static inline void worker_peer_reply_done(uint64_t id)
{
	Wk__Done d = WK__DONE__INIT;

	worker_peer_reply(id, WK__REPLY__BODY_DONE, &d);
}

static inline void worker_peer_welcome(uint32_t protocol, const char *model)
{
	Wk__Welcome w = WK__WELCOME__INIT;

	w.protocol = protocol;
	w.build = (char *)"test";
	w.model = (char *)model;
	w.generation = 3;
	w.n_ctx = 512;
	w.has_chat_template = true;
	worker_peer_reply(1, WK__REPLY__BODY_WELCOME, &w);
}

static inline void worker_peer_open(int *ret_fd)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	worker_peer = pair[0];
	*ret_fd = pair[1];
}

/* What the client sent; free it with wk__request__free_unpacked. */
static inline Wk__Request *worker_peer_take(uint64_t id, Wk__Request__BodyCase body)
{
	struct err e = ERR_NULL;
	uint8_t *data;
	uint32_t n;

	assert_int_equal(stream_recv(worker_peer, &e, &data, &n), 0);
	Wk__Request *r = wk__request__unpack(NULL, n, data);
	free(data);
	assert_non_null(r);
	assert_int_equal(r->id, id);
	assert_int_equal(r->body_case, body);
	return r;
}

static inline void worker_peer_drop(uint64_t id, Wk__Request__BodyCase body)
{
	wk__request__free_unpacked(worker_peer_take(id, body), NULL);
}

static inline struct worker_client *worker_peer_open_client(void)
{
	struct worker_client *c = NULL;
	struct err e = ERR_NULL;
	int fd;

	worker_peer_open(&fd);
	worker_peer_welcome(STREAM_PROTOCOL, "atlas");
	if (worker_client_new_connected(fd, &e, &c) != 0)
		fail_msg("%s", e.text);
	Wk__Request *r = worker_peer_take(1, WK__REQUEST__BODY_HELLO);
	assert_int_equal(r->hello->protocol, STREAM_PROTOCOL);
	wk__request__free_unpacked(r, NULL);
	return c;
}

static inline void worker_peer_close_client(struct worker_client *c)
{
	assert_null(worker_client_free(c));
	close(worker_peer);
}

#endif
