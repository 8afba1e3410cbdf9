/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WEIGHTS_LINK_H
#define PROTO_WEIGHTS_LINK_H

/*
 * The connection under proto/weights-client.h: one request out, its replies in, events handed on.
 * It judges envelopes (ids, descriptor counts, which body); bodies are their readers' affair.
 * For the weights-client files alone; one thread at a time.
 */
#include <stdint.h>

#include "proto/fdlist.h"
#include "proto/util/cleanup.h"
#include "proto/weightd.pb-c.h"
#include "proto/weights-client.h"
#include "proto/wire.h"

struct err;

enum {
	WEIGHTS_LINK_TIMEOUT_MS = 30000, /* what weightd answers at once */
	WEIGHTS_LINK_FOREVER = -1,       /* Acquire and Load wait for the disk */
};

/* A condition of weights_link_poll: nothing is there. */
enum { WEIGHTS_LINK_IDLE = 1 };

struct weights_link {
	int fd; /* owned */
	uint64_t last_id;
	weights_client_event_fn event_fn; /* may be NULL */
	void *userdata;
	uint8_t buffer[WIRE_MAX_BYTES]; /* one packet, out or in */
};

void weights_link_fini(struct weights_link *l);

/* Gives the request its id and its n_fds and sends it. fds may be NULL and stay the caller's. */
int must_check weights_link_send(struct weights_link *l, Wd__Request *request,
	const struct fdlist *fds, struct err *ret_err);

/*
 * Waits for the next reply to the request sent last; a refusal is returned as its code. The caller
 * owns *ret_reply (weights_link_free_reply) and *ret_fds. ret_fds NULL: a reply with descriptors
 * breaks the protocol.
 */
int must_check weights_link_recv(struct weights_link *l, Wd__Reply__BodyCase body, int timeout_ms,
	struct err *ret_err, Wd__Reply **ret_reply, struct fdlist *ret_fds);

/* Send, and one reply without descriptors. */
int must_check weights_link_call(struct weights_link *l, Wd__Request *request,
	Wd__Reply__BodyCase body, int timeout_ms, struct err *ret_err, Wd__Reply **ret_reply);

/* Takes one event if a packet is there; WEIGHTS_LINK_IDLE if not. Never blocks. */
int must_check weights_link_poll(struct weights_link *l, struct err *ret_err);

/* The two digests of a message, each 32 bytes or none. -EPROTO. */
int must_check weights_link_read_contents(const ProtobufCBinaryData *identity,
	const ProtobufCBinaryData *file_identity, struct err *ret_err,
	struct weights_client_contents *ret_contents);

/* The client's, for what it does not do itself. */
struct weights_link *weights_client_get_link(struct weights_client *c);

/* For _cleanup_. */
void weights_link_free_reply(Wd__Reply **reply);

#endif
