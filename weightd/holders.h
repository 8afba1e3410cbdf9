/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_HOLDERS_H
#define WEIGHTD_HOLDERS_H

/*
 * Processes whose connection ended while they had leases: what they imported is theirs until they
 * exit, which their pidfds tell. Loop thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct event_base;
struct holders;
struct peer;

/* Who holds, as SO_PEERCRED said; role of weightd.proto. */
struct holders_process {
	int32_t pid; /* 0: in a namespace that we cannot see */
	uint32_t uid;
	uint32_t gid;
	uint32_t role;
	uint64_t start_ticks; /* process_get_start_ticks; 0 with pid */
};

/* The process behind the id is gone. */
typedef void (*holders_exit_fn)(uint64_t id, void *userdata);

int must_check holders_new(
	struct event_base *base, holders_exit_fn fn, void *userdata, struct holders **ret_holders);

/* Forgets them all. Accepts NULL; returns NULL. */
struct holders *holders_free(struct holders *h);

/*
 * The id under which the peer's process is watched from here on: one of an earlier connection of
 * the same process by the same listening socket, or the peer's own. 0: the process is gone,
 * nothing can tell of it, or too many are watched that nothing tells apart.
 */
uint64_t holders_add(struct holders *h, struct peer *p);

/* The id under which the peer's process is watched already; 0: it is not. */
uint64_t holders_find(const struct holders *h, const struct peer *p);

/* The process behind the id, borrowed until it is gone; NULL. */
const struct holders_process *holders_find_process(const struct holders *h, uint64_t id);

/* Calls fn with each of them. */
typedef void (*holders_fn)(uint64_t id, const struct holders_process *who, void *userdata);
void holders_visit(const struct holders *h, holders_fn fn, void *userdata);

/* The same for a process that was known before: under this id, or the one that it has already. 0:
 * it is gone, or another by now. */
uint64_t holders_add_pid(
	struct holders *h, uint64_t id, int32_t pid, uint32_t uid, uint64_t start_ticks);

#endif
