/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/crew.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

struct crew {
	uint32_t n_jobs;
	crew_fn fn;
	void *userdata;
	atomic_uint next;
	atomic_bool has_failed;
};

uint32_t crew_count_cores(uint32_t n_max)
{
	cpu_set_t set;
	long n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
							      : sysconf(_SC_NPROCESSORS_ONLN);

	if (n < 1)
		return 1;
	return n < n_max ? (uint32_t)n : n_max;
}

static void *run(void *userdata)
{
	struct crew *c = userdata;

	while (!atomic_load(&c->has_failed)) {
		uint32_t i = atomic_fetch_add(&c->next, 1);

		if (i >= c->n_jobs)
			break;
		/* Once taken it is done: what fails first in order is then always found. */
		if (c->fn(i, c->userdata))
			atomic_store(&c->has_failed, true);
	}
	return NULL;
}

void crew_run(uint32_t n_jobs, uint32_t n_threads, crew_fn fn, void *userdata)
{
	struct crew c = {.n_jobs = n_jobs, .fn = fn, .userdata = userdata};
	pthread_t threads[CREW_MAX_THREADS];
	uint32_t n_started = 0;
	sigset_t all, old;

	if (n_threads > CREW_MAX_THREADS)
		n_threads = CREW_MAX_THREADS;
	if (n_threads > n_jobs)
		n_threads = n_jobs;
	/* Signals are the main thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	while (n_started + 1 < n_threads && !pthread_create(&threads[n_started], NULL, run, &c))
		n_started++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	run(&c);
	for (uint32_t i = 0; i < n_started; i++)
		pthread_join(threads[i], NULL);
}
