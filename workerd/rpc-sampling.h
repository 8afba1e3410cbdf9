/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_RPC_SAMPLING_H
#define WORKERD_RPC_SAMPLING_H

/*
 * How a Generate's tokens are chosen and what they say of it: the part of workerd.proto that is
 * sampling. Counts and lengths are judged here, values by the sampler. Loop thread.
 */
#include "proto/util/cleanup.h"
#include "proto/workerd.pb-c.h"

struct err;
struct message_generate;
struct message_token;

/* Sampling, n, stop_tokens and logprobs; borrows from g. -EINVAL with the figures, -ENOMEM. */
int must_check rpc_sampling_decode(
	const Wk__Generate *g, struct message_generate *ret_generate, struct err *ret_err);

/* index, logprob and top; rows and list have room for LOGPROB_MAX_TOP, and the token points there.
 */
void rpc_sampling_fill_token(
	const struct message_token *t, Wk__Logprob *rows, Wk__Logprob **list, Wk__Token *ret_token);

#endif
