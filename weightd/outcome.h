/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_OUTCOME_H
#define WEIGHTD_OUTCOME_H

/*
 * What became of loads: answers to who asked, leases for who waits, events, log lines. Loop thread.
 */
struct service;

/* A loader has results. */
void outcome_dispatch(struct service *s);

#endif
