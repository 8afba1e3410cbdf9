/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_STREAM_H
#define PROTO_STREAM_H

/*
 * Length-prefixed messages on a SOCK_STREAM socket: workerd's client socket.
 *
 *	byte  0 .. 3              4 .. 4 + n
 *	     [ n: u32 little ] [ n bytes: protobuf, proto/workerd.proto ]      1 <= n <=
 * STREAM_MAX_BYTES
 *
 * The length is checked before anything is allocated.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

enum {
	STREAM_PROTOCOL = 1,
	STREAM_MAX_BYTES = 1 << 20,
	STREAM_HEADER_BYTES = 4,
};

/* A condition of stream_parse_header and stream_recv. */
enum { STREAM_END = 1 };

/* The length in a header; -EBADMSG with ret_err for 0 or more than the cap. */
int must_check stream_parse_header(
	const uint8_t header[STREAM_HEADER_BYTES], struct err *ret_err, uint32_t *ret_n_bytes);

void stream_make_header(uint32_t n_bytes, uint8_t ret_header[STREAM_HEADER_BYTES]);

/* Connect to and listen on a path, as wire_connect and wire_listen but SOCK_STREAM. */
int must_check stream_connect(const char *path, struct err *ret_err, int *ret_fd);
int must_check stream_listen(const char *path, uint32_t mode, struct err *ret_err, int *ret_fd);

/* Blocking: one whole message. The daemons use their own buffers instead. */
int must_check stream_send(int sock, const void *data, uint32_t n_bytes);

/* Blocking: *ret_data is allocated (free it). STREAM_END on a close between messages. */
int must_check stream_recv(
	int sock, struct err *ret_err, uint8_t **ret_data, uint32_t *ret_n_bytes);

#endif
