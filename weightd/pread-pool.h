/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_PREAD_POOL_H
#define WEIGHTD_PREAD_POOL_H

/*
 * Reads by pread on several threads, for weightd/uring where the kernel has no ring: one thread
 * copies from page cache at a tenth of what a bus takes. One caller at a time.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/util/cleanup.h"

struct pread_pool;

/* A read, the caller's until started and again once waited for. */
struct pread_pool_read {
	int fd;
	uint8_t *data;
	uint64_t n_bytes;
	uint64_t offset;
	/* The pages around data when it is in a shared mapping that has none there yet: made before
	 * the read and unmapped after it. NULL: data is memory. */
	void *pages;
	uint64_t n_pages_bytes;
	int code; /* result: 0, -errno, -ENODATA at the file's end */
	TAILQ_ENTRY(pread_pool_read) entry;
};

/* -errno of pthread_create, -ENOMEM. */
int must_check pread_pool_new(uint32_t n_threads, struct pread_pool **ret_pool);

/* Waits for what is under way; what was not begun is dropped. Accepts NULL; returns NULL. */
struct pread_pool *pread_pool_free(struct pread_pool *p);

void pread_pool_start(struct pread_pool *p, struct pread_pool_read *read);

/*
 * One that is done; one at least must have been started. Waits for it, or without may_wait is NULL
 * when there is none.
 */
struct pread_pool_read *pread_pool_take(struct pread_pool *p, bool may_wait);

#endif
