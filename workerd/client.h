/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_CLIENT_H
#define WORKERD_CLIENT_H

/*
 * One client's connection: bytes to messages and back. Requests go out one at a time, in order; the
 * next is read when the one before is answered (a Generate: when it was taken on). Nothing a client
 * does, or fails to do, holds more than CLIENT_MAX_OUTPUT_BYTES and one request of memory.
 *
 * Its requests carry a scope: the same for every connection of a user, so that what was computed
 * for one may be used for the next. The kernel says who the user is. Where it cannot, for one that
 * this user namespace has no number for, each connection is a user of its own. Never 0.
 *
 * Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct client;
struct event_base;
struct message;
struct rpc_worker;

enum {
	CLIENT_MAX_OUTPUT_BYTES = 4 << 20, /* more waiting to be read: the client is dropped */
	CLIENT_HELLO_S = 10,               /* to say Hello in */
	CLIENT_STALL_S = 10,               /* that it may leave output unread */
};

struct client_events {
	void *userdata;
	/* Takes a request; client_answer gives it back, now or later. */
	void (*request)(void *userdata, struct message *m);
	/* The connection is over. Free the client; it does nothing more by itself. */
	void (*closed)(void *userdata, struct client *c);
};

/* Takes fd (closed on failure too). worker and events are borrowed. */
int must_check client_new(struct event_base *base, int fd, uint64_t id,
	const struct rpc_worker *worker, const struct client_events *events,
	struct client **ret_client);

/* Closes. Accepts NULL; returns NULL. */
struct client *client_free(struct client *c);

uint64_t client_get_id(const struct client *c);

/* A message for the client: an answer, a Token or MESSAGE_STARTED. Takes it. */
void client_answer(struct client *c, struct message *m);

/* No more requests; closed comes when all that was answered is written. */
void client_finish(struct client *c);

/* The first message to a client beyond the limit; fd is closed. */
void client_turn_away(int fd, const char *text);

#endif
