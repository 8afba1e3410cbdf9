/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/pread-pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

TAILQ_HEAD(pread_pool_reads, pread_pool_read);

struct pread_pool {
	pthread_mutex_t mutex; /* guards what follows */
	pthread_cond_t has_work;
	pthread_cond_t has_result;
	bool is_stopping;
	struct pread_pool_reads waiting;
	struct pread_pool_reads done;
	uint32_t n_threads;
	pthread_t threads[];
};

static int pread_pool_read(const struct pread_pool_read *r)
{
	uint64_t at = 0;

	/* One that cannot be made is heard of as EFAULT by the read. */
	if (r->pages)
		madvise(r->pages, r->n_pages_bytes, MADV_POPULATE_WRITE);

	while (at < r->n_bytes) {
		ssize_t n = pread(r->fd, r->data + at, r->n_bytes - at, (off_t)(r->offset + at));
		if (n == 0)
			return -ENODATA;
		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return -errno;
		at += n > 0 ? (uint64_t)n : 0;
	}
	if (r->pages)
		madvise(r->pages, r->n_pages_bytes, MADV_DONTNEED);
	return 0;
}

static void *pread_pool_main(void *userdata)
{
	struct pread_pool *p = userdata;

	pthread_mutex_lock(&p->mutex);
	while (!p->is_stopping) {
		struct pread_pool_read *r = TAILQ_FIRST(&p->waiting);
		if (!r) {
			pthread_cond_wait(&p->has_work, &p->mutex);
			continue;
		}
		TAILQ_REMOVE(&p->waiting, r, entry);
		pthread_mutex_unlock(&p->mutex);
		r->code = pread_pool_read(r);
		pthread_mutex_lock(&p->mutex);
		TAILQ_INSERT_TAIL(&p->done, r, entry);
		pthread_cond_signal(&p->has_result);
	}
	pthread_mutex_unlock(&p->mutex);
	return NULL;
}

int pread_pool_new(uint32_t n_threads, struct pread_pool **ret_pool)
{
	struct pread_pool *p = calloc(1, sizeof(*p) + n_threads * sizeof(p->threads[0]));
	sigset_t all, old;
	int rc = 0;

	if (!p)
		return -ENOMEM;
	pthread_mutex_init(&p->mutex, NULL);
	pthread_cond_init(&p->has_work, NULL);
	pthread_cond_init(&p->has_result, NULL);
	TAILQ_INIT(&p->waiting);
	TAILQ_INIT(&p->done);
	/* Signals are the loop thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (; p->n_threads < n_threads && rc == 0; p->n_threads += rc == 0)
		rc = -pthread_create(&p->threads[p->n_threads], NULL, pread_pool_main, p);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (p->n_threads == 0) { /* one does, if slowly */
		pread_pool_free(p);
		return rc;
	}
	*ret_pool = p;
	return 0;
}

struct pread_pool *pread_pool_free(struct pread_pool *p)
{
	if (!p)
		return NULL;
	pthread_mutex_lock(&p->mutex);
	p->is_stopping = true;
	pthread_cond_broadcast(&p->has_work);
	pthread_mutex_unlock(&p->mutex);
	for (uint32_t i = 0; i < p->n_threads; i++)
		pthread_join(p->threads[i], NULL);
	pthread_cond_destroy(&p->has_work);
	pthread_cond_destroy(&p->has_result);
	pthread_mutex_destroy(&p->mutex);
	free(p);
	return NULL;
}

void pread_pool_start(struct pread_pool *p, struct pread_pool_read *read)
{
	pthread_mutex_lock(&p->mutex);
	TAILQ_INSERT_TAIL(&p->waiting, read, entry);
	pthread_cond_signal(&p->has_work);
	pthread_mutex_unlock(&p->mutex);
}

struct pread_pool_read *pread_pool_take(struct pread_pool *p, bool may_wait)
{
	struct pread_pool_read *r;

	pthread_mutex_lock(&p->mutex);
	while (!(r = TAILQ_FIRST(&p->done)) && may_wait)
		pthread_cond_wait(&p->has_result, &p->mutex);
	if (r)
		TAILQ_REMOVE(&p->done, r, entry);
	pthread_mutex_unlock(&p->mutex);
	return r;
}
