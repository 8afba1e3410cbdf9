/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_RPC_TUNE_H
#define WORKERD_RPC_TUNE_H

/* Tuned of proto/workerd.proto. For workerd/rpc.c alone. Loop thread. */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/workerd.pb-c.h"

struct tuner_result;

/* What a Tuned points to. */
struct rpc_tune {
	Wk__TuneRow *rows;
	Wk__TuneRow **list;
};

/*
 * result is to stay as long as *ret_tuned. -ENOMEM; rpc_tune_fini has to be called in any case.
 */
int must_check rpc_tune_fill(
	const struct tuner_result *result, struct rpc_tune *rpc, Wk__Tuned *ret_tuned);
void rpc_tune_fini(struct rpc_tune *rpc);

#endif
