/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RPC_H
#define WEIGHTD_RPC_H

/*
 * Requests: unpacked, judged, handed to the service. This file and weightd/rpc-reply are the only
 * ones that know the generated messages. Loop thread.
 */
#include <stdint.h>

struct fdlist;
struct peer;
struct service;

/*
 * One packet of a peer and the descriptors that came with it, of which it keeps duplicates.
 * Refusals are answered; a packet that breaks the protocol breaks the peer.
 */
void rpc_handle(struct service *s, struct peer *p, const uint8_t *data, uint32_t n_bytes,
	struct fdlist *fds);

#endif
