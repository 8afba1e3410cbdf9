/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_QUOTA_H
#define WEIGHTD_QUOTA_H

/*
 * What the peers of one listening socket hold together, and whether they may hold more. The weights
 * of a generation count once, however many of them have a lease on it: it is one copy. What a
 * connection had when it ended stays charged until its process is gone, as it is held until then;
 * where that process has a lease on the same generation again, that lease is all that is charged.
 * A prefix is charged to its publisher's socket, whoever else has it.
 * Nothing is kept here: the figures are those of the registry and the peers. Loop thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct holders;
struct peer;
struct peer_list;
struct prefixes;
struct registry;

struct quota_usage {
	uint32_t n_leases;      /* and holds */
	uint64_t weights_bytes; /* and prefixes */
	uint64_t reserved_bytes;
};

/* Bytes of a generation's weights: by its data in the registry. */
typedef uint64_t (*quota_bytes_fn)(const void *data);

/* socket: peer_get_socket. holders may be NULL: then each hold counts. prefixes may be NULL. */
struct quota_usage quota_count(struct registry *r, const struct peer_list *peers,
	const struct holders *holders, const struct prefixes *prefixes, uint32_t socket,
	quota_bytes_fn bytes_fn);

/* May the peer have a lease on the generation? Yes when it has, or its process holds it. -EDQUOT.
 */
int must_check quota_check_lease(struct registry *r, const struct peer_list *peers,
	const struct holders *holders, const struct prefixes *prefixes, const struct peer *p,
	uint64_t generation, quota_bytes_fn bytes_fn, struct err *ret_err);

/* May the peer's reservation be n_bytes, in place of p->reserved_bytes? Less always may. -EDQUOT.
 */
int must_check quota_check_reserve(struct registry *r, const struct peer_list *peers,
	const struct holders *holders, const struct prefixes *prefixes, const struct peer *p,
	uint64_t n_bytes, quota_bytes_fn bytes_fn, struct err *ret_err);

#endif
