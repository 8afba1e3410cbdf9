/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_OUTCOME_H
#define WEIGHTD_OUTCOME_H

/*
 * What became of loads: answers to who asked, leases for who waits, events, log lines. Loop thread.
 */
struct loader_result;
struct registry_generation;
struct service;
struct service_generation;

/* What is told of a generation also when it is warm, from its memory on the first device. */
void outcome_summarize(struct service_generation *data);

/* A loader has results. */
void outcome_dispatch(struct service *s);

/* The load of the generation has failed as r says. g is not to be used afterwards. */
void outcome_fail(
	struct service *s, const struct registry_generation *g, const struct loader_result *r);

#endif
