/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_OUTCOME_H
#define WEIGHTD_OUTCOME_H

/*
 * What became of loads: answers to who asked, leases for who waits, events, log lines. Loop thread.
 */
#include <stdint.h>

struct err;
struct registry_generation;
struct service;
struct service_generation;

/* What is told of a generation also when it is warm, from its memory on the first device. */
void outcome_summarize(struct service_generation *data);

/* Who has an older one may go over to this one, which is ready. */
void outcome_tell_replaced(struct service *s, const struct registry_generation *g);

/* A loader has results. */
void outcome_dispatch(struct service *s);

/* A load for the device of that slot has failed before its loader had it. code: -errno. */
void outcome_fail(
	struct service *s, uint32_t slot, uint64_t generation, int code, const struct err *err);

#endif
