/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_LEASE_INDEX_H
#define WEIGHTD_LEASE_INDEX_H

/*
 * The registry's live leases in order of their peers, for a look at all peers at once: to search
 * them anew for each of a thousand peers takes milliseconds. Loop thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct registry;
struct registry_lease;

struct lease_index {
	uint32_t n;
	const struct registry_lease **leases; /* owned; what it points to is the registry's */
};

/* Good until the registry changes. The second is of the holds, in order of their holders. */
int must_check lease_index_init(const struct registry *r, struct lease_index *ret_index);
int must_check lease_index_init_holds(const struct registry *r, struct lease_index *ret_index);

void lease_index_fini(struct lease_index *index);

/* The leases of a peer, side by side; returns how many. */
uint32_t lease_index_find(const struct lease_index *index, uint64_t peer,
	const struct registry_lease *const **ret_leases);

#endif
