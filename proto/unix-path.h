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

/* Which file a path was. */
struct unix_path_file {
	uint64_t dev;
	uint64_t inode;
};

/*
 * A listening socket, O_CLOEXEC, non-blocking, the caller's; the file's mode is as given whatever
 * the umask. A socket file nobody listens on is replaced; a live one is -EADDRINUSE; what is no
 * socket is -EEXIST; a directory that another process keeps locked for two seconds is -EBUSY.
 */
int must_check unix_path_listen(
	const char *path, int type, uint32_t mode, struct err *ret_err, int *ret_fd);

/* The file that is at the path, right after unix_path_listen made it. */
int must_check unix_path_remember(
	const char *path, struct err *ret_err, struct unix_path_file *ret_file);

/*
 * Removes the file at the path if it still is that one: an administrator may have removed it, and
 * another daemon made its own there. Call it before the socket is closed: until then no other file
 * can have its inode number. May wait two seconds, as unix_path_listen.
 */
void unix_path_unlink(const char *path, const struct unix_path_file *file);

#endif
