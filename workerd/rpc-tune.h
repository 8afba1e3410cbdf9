/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_RPC_TUNE_H
#define WORKERD_RPC_TUNE_H

/* Tuned and Tuning of proto/workerd.proto. For workerd/rpc.c alone. Loop thread. */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/workerd.pb-c.h"

struct message;

/* What the body of such a reply is. */
struct rpc_tune {
	Wk__Tuned tuned;
	Wk__Tuning tuning;
	Wk__TuneRow *rows;
	Wk__TuneRow **list;
};

/*
 * The reply's body of a MESSAGE_TUNE or MESSAGE_TUNING, which is to stay as long as the reply.
 * -ENOMEM; rpc_tune_fini has to be called in any case.
 */
int must_check rpc_tune_fill(const struct message *m, struct rpc_tune *rpc, Wk__Reply *reply);
void rpc_tune_fini(struct rpc_tune *rpc);

#endif
