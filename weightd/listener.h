/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_LISTENER_H
#define WEIGHTD_LISTENER_H

/*
 * One listening socket: its file, who may connect by it, and how many. Whoever may not is told so
 * in one line and let go, before anything of it is read. Loop thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/pace.h"

struct access;
struct err;
struct event_base;
struct listener;
struct peer;
struct peer_list;

/*
 * A peer that may stay: owned by the callee on 0; -errno: it cannot be served, with the reason in
 * ret_err, and stays the listener's.
 */
typedef int (*listener_peer_fn)(struct peer *p, void *userdata, struct err *ret_err);

/* All borrowed while the listener lives. */
struct listener_params {
	struct event_base *base;
	const struct access *access;
	uint32_t socket;               /* its number, for peer_make_id: 0 for --socket */
	const struct peer_list *peers; /* of all sockets */
	uint32_t max_listened;         /* see access_crowd */
	struct pace_callbacks pace;
	listener_peer_fn peer_fn;
	void *userdata;
};

/* Makes the socket and its file. Errors of wire_listen. */
int must_check listener_new(
	const struct listener_params *params, struct err *ret_err, struct listener **ret_listener);

/* From here on connections are accepted; until then they wait. */
int must_check listener_start(struct listener *l);

/* An id that no peer of the socket has or will have. */
uint64_t listener_take_id(struct listener *l);

/* After its peers. Removes the socket's file if it still is there. Accepts NULL; returns NULL. */
struct listener *listener_free(struct listener *l);

#endif
