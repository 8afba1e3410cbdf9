/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WORKER_CLIENT_SAMPLING_H
#define PROTO_WORKER_CLIENT_SAMPLING_H

/*
 * The part of proto/worker-client.h that is sampling, to and from the schema's structs. Used by
 * worker-client.c alone.
 */
#include "proto/util/cleanup.h"
#include "proto/workerd.pb-c.h"

struct err;
struct worker_client_generate;
struct worker_client_token;

/* What a Generate points into while it is sent. Zero is empty. */
struct worker_client_sampling_parts {
	Wk__Sampling sampling;
	Wk__LogitBias *rows;    /* [n_biases] */
	Wk__LogitBias **biases; /* [n_biases] */
	ProtobufCBinaryData *breakers;
};

void worker_client_sampling_fini(struct worker_client_sampling_parts *parts);

/* Borrows from g and points into parts. Values are the worker's to judge. -ENOMEM. */
int must_check worker_client_sampling_fill(const struct worker_client_generate *g,
	struct worker_client_sampling_parts *parts, struct err *ret_err,
	Wk__Generate *ret_generate);

/* Borrows from m, of one of n_completions. -EPROTO. */
int must_check worker_client_sampling_read_token(const Wk__Token *m, uint32_t n_completions,
	struct err *ret_err, struct worker_client_token *ret_token);

#endif
