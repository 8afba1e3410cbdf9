/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/populate.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

/* A thread costs some 50 us, which is what it does with this much. */
enum { MIN_PART_BYTES = 16 << 20, MAX_THREADS = 8, PAGE_BYTES = 4096 };

struct part {
	void *pages;
	uint64_t n_bytes;
	pthread_t thread;
};

static void *run(void *userdata)
{
	const struct part *p = userdata;

	/* Old kernels have no such advice, and a file may have been cut: the import will say so. */
	(void)madvise(p->pages, p->n_bytes, MADV_POPULATE_READ);
	return NULL;
}

static uint32_t choose_n_parts(uint64_t n_bytes)
{
	long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t n = n_bytes / MIN_PART_BYTES + 1;

	if (n > MAX_THREADS)
		n = MAX_THREADS;
	if (n_cores > 0 && n > (uint64_t)n_cores)
		n = (uint64_t)n_cores;
	return (uint32_t)n;
}

void populate_pages(void *pages, uint64_t n_bytes)
{
	uint32_t n_parts = choose_n_parts(n_bytes), n_threads = 0;
	uint64_t n_part_bytes = (n_bytes / n_parts + PAGE_BYTES) / PAGE_BYTES * PAGE_BYTES;
	struct part parts[MAX_THREADS];
	sigset_t all, old;

	/* Signals are the main thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	for (uint64_t at = 0; at < n_bytes; at += n_part_bytes) {
		struct part *p = &parts[n_threads];

		p->pages = (uint8_t *)pages + at;
		p->n_bytes = n_bytes - at < n_part_bytes ? n_bytes - at : n_part_bytes;
		if (at + n_part_bytes >= n_bytes || pthread_create(&p->thread, NULL, run, p))
			run(p);
		else
			n_threads++;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	for (uint32_t i = 0; i < n_threads; i++)
		pthread_join(parts[i].thread, NULL);
}
