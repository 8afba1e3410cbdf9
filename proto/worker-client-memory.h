/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WORKER_CLIENT_MEMORY_H
#define PROTO_WORKER_CLIENT_MEMORY_H

/* What a worker's Status says of memory; for proto/worker-client.c. */
#include "proto/util/cleanup.h"
#include "proto/worker-client.h"
#include "proto/workerd.pb-c.h"

struct err;

/* Fills the status's roles and memory, not the rest. -EPROTO, then it is as it was. */
int must_check worker_client_memory_read(
	const Wk__Status *m, struct err *ret_err, struct worker_client_status *ret_status);

#endif
