/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RECORD_H
#define WEIGHTD_RECORD_H

/*
 * What weightd would leave if it died now, out of the registry: the state, and the descriptors
 * that belong to it. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/stash.h"
#include "weightd/state.h"

struct registry_generation;
struct service;

/* Appends the generations that are ready, warm or drain, and who has something of them or of the
 * devices. -ENOMEM. */
int must_check record_add(const struct service *s, struct state *state);

/* The second half of it. -ENOMEM. */
int must_check record_add_processes(const struct service *s, struct state *state);

/* Is it one of those? */
bool record_is_kept(const struct registry_generation *g);

/* Of all that record_add looks at: when it is the same, so is what record_add would make. */
uint64_t record_fingerprint(const struct service *s);

/* Calls fn with every descriptor of these generations; they are lent. */
typedef void (*record_fn)(const struct stash_name *name, int fd, void *userdata);
void record_visit(const struct service *s, record_fn fn, void *userdata);

/* A further holder of a generation, as who but for its lists: one more row, or one more id in the
 * row of its process. */
int must_check record_add_holder(
	struct state *state, const struct state_holder *who, uint64_t generation);

/* The same for memory that it was granted. */
int must_check record_add_grant(
	struct state *state, const struct state_holder *who, const struct state_grant *grant);

/* Room for a further generation, zeroed, at the place where ids rise. NULL without memory. */
struct state_generation *record_add_generation(struct state *state, uint64_t id);

#endif
