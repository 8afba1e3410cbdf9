/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RPC_PACKET_H
#define WEIGHTD_RPC_PACKET_H

/* A Reply of weightd.proto as a packet of a peer. For weightd/rpc-* alone. Loop thread. */
#include <stdint.h>

#include "proto/weightd.pb-c.h"

struct peer;

/* The packet, on the heap, with id and count of descriptors set; NULL when the peer is broken. */
uint8_t *rpc_packet_pack(
	struct peer *p, uint64_t request, Wd__Reply *reply, uint32_t n_fds, uint32_t *ret_n_bytes);

/* Packs and sends; the descriptors are lent as to peer_send. */
void rpc_packet_send(
	struct peer *p, uint64_t request, Wd__Reply *reply, const int *fds, uint32_t n_fds);

/* The same with descriptors that are closed once they are sent, or cannot be. */
void rpc_packet_send_owned(
	struct peer *p, uint64_t request, Wd__Reply *reply, const int *fds, uint32_t n_fds);

#endif
