/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WORKER_PREFIX_H
#define PROTO_WORKER_PREFIX_H

/* Shared prefixes, as a client of a worker asks for them (proto/worker-client.h). */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct worker_client;

/* See PublishPrefix in workerd.proto; special tokens in the text are recognised. */
struct worker_prefix_params {
	const char *text;
	uint32_t n_bytes;
	bool has_bos;     /* the model's first token stands before it, where the model wants one */
	const char *name; /* for people; NULL: none */
	bool is_shared;   /* with other sockets of weightd */
};

struct worker_prefix {
	uint64_t id;
	uint32_t n_tokens; /* in whole pages */
	uint64_t n_bytes;
	uint32_t n_computed;
	bool existed;
};

/* Blocks while it is computed. The worker's refusal as its -errno and sentence. */
int must_check worker_prefix_publish(struct worker_client *c,
	const struct worker_prefix_params *params, struct err *ret_err,
	struct worker_prefix *ret_prefix);

#endif
