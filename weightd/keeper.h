/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_KEEPER_H
#define WEIGHTD_KEEPER_H

/*
 * A small process without Vulkan that holds a duplicate of every exported descriptor, so that
 * weightd can die and come back. It is this program, executed as `weightd --keeper PATH SECONDS`
 * with the listening socket as descriptor 3; keeper_* but keeper_main is weightd's side.
 *
 *	packet:   struct keeper_packet              data, PATH is SOCK_SEQPACKET, mode 0600
 *	          [ one descriptor: SCM_RIGHTS ]    with PUT, and with a HAVE
 *
 *	PUT name+fd    kept in place of what had the name
 *	DROP name      closed
 *	TAKE           answered by a HAVE for each, name+fd, and DONE; everything stays
 *	END            everything is closed, the socket removed, the process ends
 *
 * Connections of another uid are closed without a word. Without any it ends by itself after
 * SECONDS.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

enum {
	KEEPER_NAME_BYTES = 64,
	KEEPER_MAX = 32768, /* descriptors */
	KEEPER_MAX_SECONDS = 1 << 20,
	KEEPER_PROTOCOL = 0x4b01, /* in every packet; another ends the connection */
};

enum keeper_op { KEEPER_PUT = 1, KEEPER_DROP, KEEPER_TAKE, KEEPER_END, KEEPER_HAVE, KEEPER_DONE };

struct keeper_packet {
	uint32_t protocol;
	uint32_t op;
	char name[KEEPER_NAME_BYTES]; /* NUL-terminated */
};

/* The process's own main: argv of the program. Returns its exit status. */
int keeper_main(int argc, char **argv);

/* Starts one at path and connects to it: the connection is the caller's. Loop thread. */
int must_check keeper_start(
	const char *path, unsigned n_seconds, struct err *ret_err, int *ret_sock);

/* Connects to one that is there: -ENOENT, -ECONNREFUSED when there is none; -EPERM: another uid's.
 */
int must_check keeper_connect(const char *path, struct err *ret_err, int *ret_sock);

/* fd is borrowed. -errno: the keeper is to be given up. */
int must_check keeper_put(int sock, const char *name, int fd);
int must_check keeper_drop(int sock, const char *name);

/* The descriptors are given to fn. */
typedef void (*keeper_fn)(const char *name, int fd, void *userdata);
int must_check keeper_take(int sock, keeper_fn fn, void *userdata, struct err *ret_err);

/*
 * Tells one that does not answer to end when it goes on, without waiting: it would keep its path
 * from others, and every look at that path would keep it alive.
 */
void keeper_dismiss(const char *path);

/* Ends it and waits until the process is gone, two seconds at most. The connection stays open. */
void keeper_end(int sock);

#endif
