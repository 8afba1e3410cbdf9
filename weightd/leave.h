/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_LEAVE_H
#define WEIGHTD_LEAVE_H

/*
 * Leases that end before their connections: given back, or taken when a generation has drained long
 * enough. Whose lease is taken may still have the memory imported: it is held until its process
 * says that it has let go, or ends. The loop thread's.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct peer;
struct service;

/* The peer has dropped its imports of the generation, also of a lease that it had of an earlier
 * weightd. Errors of registry_release. */
int must_check leave_release(
	struct service *s, struct peer *p, uint64_t generation, struct err *ret_err);

/* Leases of the model's generations that drain now end in timeout_ns from now, at the next
 * leave_check; SERVICE_NO_TIMEOUT: by themselves, as those of before unless they were told. */
void leave_set_timeout(struct service *s, const char *model, uint64_t timeout_ns);

/* When that is, CLOCK_MONOTONIC; 0: never, or in centuries. */
uint64_t leave_get_end(uint64_t timeout_ns);

/* Ends the leases whose time has come, and those that are had again after it. To be called every
 * second or so. */
void leave_check(struct service *s);

#endif
