/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_RPC_H
#define WORKERD_RPC_H

/*
 * proto/workerd.proto to messages and back; the schema's generated structs are seen nowhere else.
 * Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct message;

enum { RPC_N_PLACEMENTS = 5 };

/* What the worker says of itself in Welcome and Status. Strings are borrowed. */
struct rpc_worker {
	const char *model;
	const char *device;
	bool is_software;
	bool has_chat_template;
	bool is_weightd_connected;
	bool is_parked;
	uint32_t max_sessions;
	uint32_t n_ctx;
	uint32_t n_dispatches; /* of one decode step */
	uint64_t generation;
	bool has_identity;
	uint8_t identity[32]; /* of the generation */
	uint64_t weights_bytes;
	uint64_t placed_bytes[RPC_N_PLACEMENTS]; /* by enum manifest_placement */
	uint64_t start_ns;                       /* clock_now_ns of the process's start */
	uint64_t attach_ns;
	uint64_t ready_ns;
};

/*
 * The message of one packed Request. data may go afterwards. -EBADMSG with ret_err for bytes that
 * are none, or would take far more memory than they are worth (drop the peer); -ENOMEM with
 * ret_err. A request that is one, but not to be served, comes as a refused message.
 */
int must_check rpc_decode(
	const uint8_t *data, uint32_t n_bytes, struct err *ret_err, struct message **ret_message);

/*
 * The packed Reply of an answered message, behind its length; *ret_data is allocated (free it). An
 * answer beyond the protocol's cap becomes a refusal. -ENOMEM.
 */
int must_check rpc_encode(const struct message *m, const struct rpc_worker *worker,
	uint8_t **ret_data, uint32_t *ret_n_bytes);

#endif
