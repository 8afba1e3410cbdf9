/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_RPC_BENCH_H
#define WORKERD_RPC_BENCH_H

/*
 * Bench and BenchRun of proto/workerd.proto. For workerd/rpc.c alone. Loop thread.
 */
#include "proto/workerd.pb-c.h"
#include "workerd/bencher.h"

struct message;

void rpc_bench_decode(const Wk__Bench *b, struct message *m);

/* What a BenchRan points to. */
struct rpc_bench {
	Wk__BenchPhase prompt;
	Wk__BenchPhase generate;
	Wk__BenchCeilings ceilings;
	Wk__BenchKernel kernels[PROFILE_MAX_KERNELS];
	Wk__BenchKernel *list[PROFILE_MAX_KERNELS];
};

/* rpc and result are to stay as long as *ret_ran. */
void rpc_bench_fill(
	const struct bencher_result *result, struct rpc_bench *rpc, Wk__BenchRan *ret_ran);

#endif
