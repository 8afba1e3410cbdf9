/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_RPC_SESSIONS_H
#define WORKERD_RPC_SESSIONS_H

/*
 * The part of Status that is about sessions and the KV cache. For workerd/rpc alone. Loop thread.
 */
#include "proto/workerd.pb-c.h"

struct message_status;

enum { RPC_SESSIONS_MAX = 256 };

/* What the status points into. */
struct rpc_sessions {
	Wk__SessionStatus rows[RPC_SESSIONS_MAX];
	Wk__SessionStatus *list[RPC_SESSIONS_MAX];
};

void rpc_sessions_fill(
	const struct message_status *s, struct rpc_sessions *ret_sessions, Wk__Status *ret_status);

#endif
