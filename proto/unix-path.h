/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UNIX_PATH_H
#define PROTO_UNIX_PATH_H

/*
 * Sockets in the file system, for wire and stream: type is SOCK_SEQPACKET or SOCK_STREAM.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

/* A connected socket, O_CLOEXEC, blocking, the caller's. -ENAMETOOLONG, -errno of connect. */
int must_check unix_path_connect(const char *path, int type, struct err *ret_err, int *ret_fd);

/*
 * A listening socket, O_CLOEXEC, non-blocking, the caller's; the file's mode is as given whatever
 * the umask. A socket file nobody listens on is replaced; a live one is -EADDRINUSE; what is no
 * socket is -EEXIST.
 */
int must_check unix_path_listen(
	const char *path, int type, uint32_t mode, struct err *ret_err, int *ret_fd);

#endif
