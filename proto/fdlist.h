/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_FDLIST_H
#define PROTO_FDLIST_H

/*
 * A list that owns its file descriptors: whoever holds the list closes what nobody took.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

enum { FDLIST_MAX = 64 }; /* the wire's cap a packet */

struct fdlist {
	uint32_t n;
	int fds[FDLIST_MAX]; /* -1 where taken */
};

#define FDLIST_NULL ((struct fdlist){.n = 0})

/* Closes every fd still in the list. Accepts an empty one. */
void fdlist_fini(struct fdlist *l);

/* Takes fd (closed on failure too). -E2BIG when full. */
int must_check fdlist_add(struct fdlist *l, int fd);

/* Gives away the fd at index, -1 when there is none or it was taken. */
int fdlist_take(struct fdlist *l, uint32_t index);

#endif
