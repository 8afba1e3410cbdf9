/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_SERVER_H
#define WORKERD_SERVER_H

/*
 * The client socket and the table of connections: requests go from a client to the thread that
 * serves them, answers come back to the client that is named in them. Loop thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct event_base;
struct message;
struct queue;
struct rpc_worker;
struct server;

enum { SERVER_MAX_CLIENTS = 64 };

struct server_params {
	struct event_base *base;
	const char *path; /* of the socket; removed when the server stops */
	const struct rpc_worker *worker;
	struct queue *text;
	struct queue *engine;
	/* After server_finish: the last client is gone. */
	void (*empty)(void *userdata);
	void *userdata;
};

/* Listens; all borrowed. -EADDRINUSE and other -errno with the path in ret_err. */
int must_check server_new(
	const struct server_params *params, struct err *ret_err, struct server **ret_server);

/* Closes every connection. Accepts NULL; returns NULL. */
struct server *server_free(struct server *s);

/* Takes what came out of a thread: for its client, if that is still there. */
void server_deliver(struct server *s, struct message *m);

/* No more clients and no more requests; the socket is removed. */
void server_stop(struct server *s);

/* Closes each connection when all its answers are written; then empty is called. */
void server_finish(struct server *s);

#endif
