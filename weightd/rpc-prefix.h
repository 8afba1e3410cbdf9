/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RPC_PREFIX_H
#define WEIGHTD_RPC_PREFIX_H

/*
 * The requests about shared prefixes that have more to say than an id. Each answers and returns 0,
 * or -errno with the refusal. For weightd/rpc alone. Loop thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/weightd.pb-c.h"

struct err;
struct fdlist;
struct peer;
struct service;

int must_check rpc_prefix_publish(struct service *s, struct peer *p, uint64_t request,
	const Wd__Publish *m, struct fdlist *fds, struct err *ret_err);
int must_check rpc_prefix_list(struct service *s, struct peer *p, uint64_t request,
	const Wd__ListPrefixes *m, struct err *ret_err);
int must_check rpc_prefix_take(
	struct service *s, struct peer *p, uint64_t request, uint64_t id, struct err *ret_err);

#endif
