/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RPC_REPLY_INTERNAL_H
#define WEIGHTD_RPC_REPLY_INTERNAL_H

/* Parts of answers, for the rpc-reply files alone. All is the arena's, or borrowed from what it
 * tells of; NULL without memory. Loop thread. */
#include <stdbool.h>
#include <stddef.h>

#include "proto/weightd.pb-c.h"

struct loader;
struct peer;
struct reply_arena;
struct service;

/* What a packet's own fields need beside the rows: id, n_fds, lengths. */
enum { RPC_REPLY_ENVELOPE_BYTES = 64 };

Wd__Device *rpc_reply_make_device(struct reply_arena *a, struct loader *loader);

/* Those that the peer's socket shows, [*ret_n]. */
Wd__Model **rpc_reply_make_models(struct reply_arena *a, const struct service *s,
	const struct peer *p, bool with_allocations, size_t *ret_n);

#endif
