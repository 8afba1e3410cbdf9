/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/fetch-ring.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "proto/util/err.h"
#include "vk/memory.h"
#include "workerd/weights.h"

/* One thread copies 5 to 8 GB/s, four about 18; more only take cores from others. */
enum { MAX_THREADS = 4 };

/* A place is filled in parts of whole pages, one a thread. */
enum { PAGE_BYTES = 4096 };

struct job {
	const struct weights_alloc *alloc;
	uint64_t offset;
	uint64_t n_bytes;
	uint8_t *to;
};

struct helper {
	struct fetch_ring *ring;
	uint32_t part; /* of every job; part 0 is the caller's */
	pthread_t thread;
};

struct fetch_ring {
	struct vk_memory *memory; /* [FETCH_RING_N_PLACES][FETCH_RING_PIECE_BYTES] */
	uint8_t *map;
	uint32_t n_helpers;
	struct helper helpers[MAX_THREADS - 1];
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t is_posted;
	pthread_cond_t is_done;
	struct job job;
	uint64_t serial; /* of job */
	uint32_t n_busy; /* helpers that have not finished it */
	bool is_ending;
	int code; /* the first failure's */
	struct err err;
};

static int fill_part(
	const struct fetch_ring *r, const struct job *job, uint32_t part, struct err *ret_err)
{
	uint64_t n_parts = r->n_helpers + 1;
	uint64_t n_part_bytes = (job->n_bytes / n_parts + PAGE_BYTES) / PAGE_BYTES * PAGE_BYTES;
	uint64_t at = part * n_part_bytes;

	if (at >= job->n_bytes)
		return 0;
	uint64_t n_bytes = job->n_bytes - at < n_part_bytes ? job->n_bytes - at : n_part_bytes;
	return weights_read(job->alloc, job->offset + at, n_bytes, job->to + at, ret_err);
}

static void *help(void *userdata)
{
	struct helper *h = userdata;
	struct fetch_ring *r = h->ring;
	uint64_t serial = 0;

	pthread_mutex_lock(&r->lock);
	for (;;) {
		while (!r->is_ending && r->serial == serial)
			pthread_cond_wait(&r->is_posted, &r->lock);
		if (r->is_ending)
			break;
		struct job job = r->job;
		struct err e = ERR_NULL;
		serial = r->serial;
		pthread_mutex_unlock(&r->lock);
		int code = fill_part(r, &job, h->part, &e);
		pthread_mutex_lock(&r->lock);
		if (code && !r->code) {
			r->code = code;
			r->err = e;
		}
		if (--r->n_busy == 0)
			pthread_cond_signal(&r->is_done);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

/* Signals are the main thread's. */
static int start_helpers(struct fetch_ring *r, struct err *ret_err)
{
	long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
	uint32_t n_helpers =
		n_cores < MAX_THREADS ? (uint32_t)(n_cores > 0 ? n_cores : 1) - 1 : MAX_THREADS - 1;
	sigset_t all, old;
	int code = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	/* Under the lock: the helpers read how many they are. */
	pthread_mutex_lock(&r->lock);
	while (!code && r->n_helpers < n_helpers) {
		struct helper *h = &r->helpers[r->n_helpers];

		*h = (struct helper){.ring = r, .part = r->n_helpers + 1};
		code = pthread_create(&h->thread, NULL, help, h);
		if (!code)
			r->n_helpers++;
	}
	pthread_mutex_unlock(&r->lock);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return code ? err_set(ret_err, code, "staging ring: no thread: %s", strerror(code)) : 0;
}

static int fill_ring(struct fetch_ring *r, struct vk_device *d, struct err *ret_err)
{
	const struct vk_memory_params params = {
		.role = VK_MEMORY_STAGING,
		.n_bytes = (uint64_t)FETCH_RING_N_PLACES * FETCH_RING_PIECE_BYTES,
		.name = "staging ring",
	};
	void *map;
	int code = vk_memory_new(d, &params, ret_err, &r->memory);

	if (!code)
		code = vk_memory_map(r->memory, ret_err, &map);
	if (code)
		return code;
	r->map = map;
	return start_helpers(r, ret_err);
}

int fetch_ring_new(struct vk_device *d, struct err *ret_err, struct fetch_ring **ret_ring)
{
	struct fetch_ring *r = calloc(1, sizeof(*r));

	if (!r)
		return err_set(ret_err, ENOMEM, "staging ring: no memory");
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->is_posted, NULL);
	pthread_cond_init(&r->is_done, NULL);
	int code = fill_ring(r, d, ret_err);
	if (code) {
		fetch_ring_free(r);
		return code;
	}
	*ret_ring = r;
	return 0;
}

struct fetch_ring *fetch_ring_free(struct fetch_ring *r)
{
	if (!r)
		return NULL;
	pthread_mutex_lock(&r->lock);
	r->is_ending = true;
	pthread_cond_broadcast(&r->is_posted);
	pthread_mutex_unlock(&r->lock);
	for (uint32_t i = 0; i < r->n_helpers; i++)
		pthread_join(r->helpers[i].thread, NULL);
	pthread_mutex_destroy(&r->lock);
	pthread_cond_destroy(&r->is_posted);
	pthread_cond_destroy(&r->is_done);
	vk_memory_free(r->memory);
	free(r);
	return NULL;
}

void fetch_ring_get_slice(
	const struct fetch_ring *r, uint32_t place, uint64_t n_bytes, struct vk_slice *ret_slice)
{
	*ret_slice = (struct vk_slice){.memory = r->memory,
		.offset = (uint64_t)place * FETCH_RING_PIECE_BYTES,
		.n_bytes = n_bytes};
}

int fetch_ring_fill(struct fetch_ring *r, uint32_t place, const struct weights_alloc *a,
	uint64_t offset, uint64_t n_bytes, struct err *ret_err)
{
	struct job job = {.alloc = a,
		.offset = offset,
		.n_bytes = n_bytes,
		.to = r->map + (uint64_t)place * FETCH_RING_PIECE_BYTES};

	pthread_mutex_lock(&r->lock);
	r->job = job;
	r->code = 0;
	r->n_busy = r->n_helpers;
	r->serial++;
	pthread_cond_broadcast(&r->is_posted);
	pthread_mutex_unlock(&r->lock);
	int code = fill_part(r, &job, 0, ret_err);
	pthread_mutex_lock(&r->lock);
	while (r->n_busy > 0)
		pthread_cond_wait(&r->is_done, &r->lock);
	if (!code && r->code) {
		code = r->code;
		if (ret_err)
			*ret_err = r->err;
	}
	pthread_mutex_unlock(&r->lock);
	return code;
}
