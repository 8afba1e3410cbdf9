/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WORKER_LINK_H
#define PROTO_WORKER_LINK_H

/*
 * The connection under proto/worker-client.h: one request out, its replies in. Answers to Cancel
 * come whenever they come and are dropped here. For the worker-client files alone; one thread at a
 * time.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/workerd.pb-c.h"

struct err;

enum {
	WORKER_LINK_TIMEOUT_MS = 60000, /* a megabyte of prompt to tokenize on a busy machine */
	WORKER_LINK_FOREVER = -1,       /* Generate: the prompt may be long, the device slow */
	WORKER_LINK_MAX_CANCELS = 32,
};

struct worker_link {
	int fd; /* owned */
	uint64_t last_id;
	uint64_t cancels[WORKER_LINK_MAX_CANCELS]; /* ids whose answers are still to come */
	uint32_t n_cancels;
};

void worker_link_fini(struct worker_link *l);

/* Gives the request its id and sends it. When the worker refused the connection: as recv. */
int must_check worker_link_send(struct worker_link *l, Wk__Request *request, struct err *ret_err);

/* Sends a Cancel; nobody waits for its answer. -EBUSY: too many unanswered. */
int must_check worker_link_send_cancel(
	struct worker_link *l, uint64_t session, struct err *ret_err);

/*
 * The next reply to request id; a refusal, of the request or (id 0) of the connection, is returned
 * as its code. The caller owns *ret_reply
 * (worker_link_free_reply) and judges its body.
 */
int must_check worker_link_recv(struct worker_link *l, uint64_t id, int timeout_ms,
	struct err *ret_err, Wk__Reply **ret_reply);

/* Send, and one reply with this body. */
int must_check worker_link_call(struct worker_link *l, Wk__Request *request,
	Wk__Reply__BodyCase body, struct err *ret_err, Wk__Reply **ret_reply);

/* For _cleanup_. */
void worker_link_free_reply(Wk__Reply **reply);

#endif
