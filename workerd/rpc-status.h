/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_RPC_STATUS_H
#define WORKERD_RPC_STATUS_H

/* Status of proto/workerd.proto, and the names in it. For workerd/rpc.c alone. Loop thread. */
#include "proto/manifest.h"
#include "proto/workerd.pb-c.h"
#include "workerd/rpc-memory.h"
#include "workerd/rpc-sessions.h"
#include "workerd/rpc.h"

struct message_status;

/* A Status and what it points into. */
struct rpc_status {
	Wk__Status status;
	struct rpc_memory memory;
	struct rpc_sessions sessions;
	Wk__PlacedWeights placed[RPC_N_PLACEMENTS];
	Wk__PlacedWeights *placed_list[RPC_N_PLACEMENTS];
	Wk__Streaming streaming;
	Wk__Experts experts;
};

/* s and w are to live as long as *ret, which is not to be moved. */
void rpc_status_fill(
	const struct message_status *s, const struct rpc_worker *w, struct rpc_status *ret);

/* Static. */
const char *rpc_status_placement_name(enum manifest_placement placement);

#endif
