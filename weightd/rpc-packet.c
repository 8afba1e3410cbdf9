/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/rpc-packet.h"

#include <stdlib.h>
#include <unistd.h>

#include "proto/util/cleanup.h"
#include "proto/wire.h"
#include "weightd/peer.h"

uint8_t *rpc_packet_pack(
	struct peer *p, uint64_t request, Wd__Reply *reply, uint32_t n_fds, uint32_t *ret_n_bytes)
{
	reply->id = request;
	reply->n_fds = n_fds;
	size_t n_bytes = wd__reply__get_packed_size(reply);
	if (n_bytes > WIRE_MAX_BYTES) {
		peer_break(p, "a reply of %zu bytes is more than a packet", n_bytes);
		return NULL;
	}
	uint8_t *data = malloc(n_bytes);
	if (!data) {
		peer_break(p, "%s", "out of memory");
		return NULL;
	}
	wd__reply__pack(reply, data);
	*ret_n_bytes = (uint32_t)n_bytes;
	return data;
}

void rpc_packet_send(
	struct peer *p, uint64_t request, Wd__Reply *reply, const int *fds, uint32_t n_fds)
{
	uint32_t n_bytes;
	_cleanup_(cleanup_free)
	uint8_t *data = rpc_packet_pack(p, request, reply, n_fds, &n_bytes);

	if (data)
		peer_send(p, data, n_bytes, fds, n_fds);
}

void rpc_packet_send_owned(
	struct peer *p, uint64_t request, Wd__Reply *reply, const int *fds, uint32_t n_fds)
{
	uint32_t n_bytes;
	_cleanup_(cleanup_free)
	uint8_t *data = rpc_packet_pack(p, request, reply, n_fds, &n_bytes);

	if (data) {
		peer_send_owned(p, data, n_bytes, fds, n_fds);
		return;
	}
	for (uint32_t i = 0; i < n_fds; i++)
		close(fds[i]);
}
