/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_CREW_H
#define WORKERD_CREW_H

/* A few threads for the time of one call: work that is long and seldom. */
#include <stdint.h>

enum { CREW_MAX_THREADS = 16 };

/* Does job i; what it returns other than 0 ends the crew's work. Any of the threads. */
typedef int (*crew_fn)(uint32_t i, void *userdata);

/* Cores that this process may use, at most n_max. Any thread. */
uint32_t crew_count_cores(uint32_t n_max);

/*
 * Does jobs 0 to n_jobs - 1 on n_threads threads, the caller's among them (fewer where threads are
 * refused; 1: in order, without a thread). Jobs are begun in order, and none is begun once one has
 * failed: all before the first that failed have been done when it returns. Any one thread.
 */
void crew_run(uint32_t n_jobs, uint32_t n_threads, crew_fn fn, void *userdata);

#endif
