/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RECORD_H
#define WEIGHTD_RECORD_H

/*
 * What weightd would leave if it died now, out of the registry: the state, and the descriptors
 * that belong to it. Loop thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/stash.h"
#include "weightd/state.h"

struct service;

/* Appends the generations that are ready or drain, and who leases them. -ENOMEM. */
int must_check record_add(const struct service *s, struct state *state);

/* Of all that record_add looks at: when it is the same, so is what record_add would make. */
uint64_t record_fingerprint(const struct service *s);

/* Calls fn with every descriptor of these generations; they are lent. */
typedef void (*record_fn)(const struct stash_name *name, int fd, void *userdata);
void record_visit(const struct service *s, record_fn fn, void *userdata);

/* A further holder of a generation, as who but for its list of them: one more row, or one more id
 * in the row of its process. */
int must_check record_add_holder(
	struct state *state, const struct state_holder *who, uint64_t generation);

/* Room for a further generation, zeroed, at the place where ids rise. NULL without memory. */
struct state_generation *record_add_generation(struct state *state, uint64_t id);

#endif
