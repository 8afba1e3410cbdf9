/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H

/*
 * One message and its file descriptors on a SOCK_SEQPACKET socket: weightd's. A packet keeps its
 * boundary and its descriptors. The bytes are one protobuf message (proto/weightd.proto).
 *
 *	packet:   [ 1 .. WIRE_MAX_BYTES bytes: protobuf ]      data
 *	          [ 0 .. FDLIST_MAX descriptors: SCM_RIGHTS ]  ancillary
 *
 * A packet that was cut (MSG_TRUNC), lost descriptors (MSG_CTRUNC, e.g. at the receiver's fd limit)
 * or carries any other ancillary data is an attack or a fault: everything that came is closed and
 * the peer is to be dropped. An empty packet is the end.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct fdlist;

enum {
	WIRE_PROTOCOL = 1,
	WIRE_MAX_BYTES = 65536,
};

/* Conditions of wire_recv. */
enum {
	WIRE_AGAIN = 1, /* non-blocking and nothing there */
	WIRE_END = 2,   /* the peer closed */
};

/* A connected socket to a path (O_CLOEXEC, blocking). -ENAMETOOLONG, -errno of connect. */
int must_check wire_connect(const char *path, struct err *ret_err, int *ret_fd);

/*
 * A listening socket (O_CLOEXEC, non-blocking), mode as given. A stale socket file of a dead owner
 * is replaced; a live one is -EADDRINUSE; something that is no socket is -EEXIST.
 */
int must_check wire_listen(const char *path, uint32_t mode, struct err *ret_err, int *ret_fd);

/*
 * Sends one packet whole. fds may be NULL; they stay the caller's. WIRE_AGAIN when a non-blocking
 * socket is full; -EMSGSIZE above the caps; -EPIPE and other -errno when the peer is gone.
 */
int must_check wire_send(int sock, const void *data, uint32_t n_bytes, const struct fdlist *fds);

/*
 * Receives one packet into data (WIRE_MAX_BYTES of room) and ret_fds (initialised, owned by the
 * caller, every fd O_CLOEXEC). WIRE_AGAIN, WIRE_END; -EBADMSG with ret_err: drop the peer, nothing
 * was left open.
 */
int must_check wire_recv(
	int sock, void *data, uint32_t *ret_n_bytes, struct fdlist *ret_fds, struct err *ret_err);

#endif
