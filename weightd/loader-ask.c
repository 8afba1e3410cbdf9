/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "weightd/loader-internal.h"
#include "weightd/source.h"

/* Takes the job, or frees it. */
static int loader_add_job(struct loader *l, struct loader_job *job, struct err *ret_err)
{
	pthread_mutex_lock(&l->mutex);
	bool is_full = l->n_jobs >= LOADER_MAX_JOBS;
	if (!is_full) {
		l->n_jobs++;
		TAILQ_INSERT_TAIL(&l->jobs, job, entry);
		pthread_cond_broadcast(&l->cond);
	}
	pthread_mutex_unlock(&l->mutex);
	if (!is_full)
		return 0;
	loader_free_job(job);
	return err_set(ret_err, EBUSY, "load: %d jobs are waiting, the most", LOADER_MAX_JOBS);
}

uint32_t loader_count_jobs(struct loader *l)
{
	pthread_mutex_lock(&l->mutex);
	uint32_t n = l->n_jobs;
	pthread_mutex_unlock(&l->mutex);
	return n;
}

int loader_check(struct loader *l, struct export *e, uint64_t tag, struct err *ret_err)
{
	struct loader_job *job = loader_make_check(e, tag);

	if (!job)
		return err_set(ret_err, ENOMEM, "check: out of memory");
	job->export = e;
	return loader_add_job(l, job, ret_err);
}

int loader_load(struct loader *l, uint64_t generation, struct source *source, bool is_foreign,
	struct err *ret_err)
{
	const struct loader_request request = {.generation = generation,
		.source = source,
		.is_foreign = is_foreign,
		.room_bytes = UINT64_MAX};

	return loader_ask(l, &request, ret_err);
}

int loader_ask(struct loader *l, const struct loader_request *request, struct err *ret_err)
{
	struct loader_job *job = calloc(1, sizeof(*job));

	if (!job)
		return err_set(ret_err, ENOMEM, "load: out of memory");
	job->may_free_bytes = request->may_free_bytes;
	job->result.goal = request->goal;
	job->result.generation = request->generation;
	job->result.is_foreign = request->is_foreign;
	job->result.room_bytes = request->room_bytes;
	job->source = source_ref(request->source);
	return loader_add_job(l, job, ret_err);
}

void loader_drop_source(struct loader *l, struct source *source)
{
	struct loader_job *job = calloc(1, sizeof(*job));

	if (!job) { /* slowly, but not for ever */
		source_drop_staged(source);
		source_unref(source);
		return;
	}
	job->source = source;
	pthread_mutex_lock(&l->mutex);
	TAILQ_INSERT_TAIL(&l->dropped, job, entry);
	pthread_cond_broadcast(&l->cond);
	pthread_mutex_unlock(&l->mutex);
}

int loader_adopt(struct loader *l, uint64_t generation, struct export *e, bool is_foreign,
	struct err *ret_err)
{
	struct loader_job *job = calloc(1, sizeof(*job));

	if (!job)
		return err_set(ret_err, ENOMEM, "load: out of memory");
	job->result.generation = generation;
	job->result.is_foreign = is_foreign;
	job->result.export = e;
	return loader_add_job(l, job, ret_err);
}

int loader_copy(struct loader *l, uint64_t generation, struct source *source,
	const struct loader_window *windows, uint32_t n_windows, struct err *ret_err)
{
	struct loader_job *job = calloc(1, sizeof(*job));

	if (!job)
		return err_set(ret_err, ENOMEM, "load: out of memory");
	job->windows = calloc(n_windows, sizeof(*windows));
	if (!job->windows) {
		free(job);
		return err_set(ret_err, ENOMEM, "load: out of memory");
	}
	memcpy(job->windows, windows, n_windows * sizeof(*windows));
	job->n_windows = n_windows;
	job->result.generation = generation;
	job->source = source_ref(source);
	return loader_add_job(l, job, ret_err);
}

void loader_cancel(struct loader *l, uint64_t generation)
{
	struct loader_job *job, *next;

	pthread_mutex_lock(&l->mutex);
	if (l->running == generation)
		atomic_store(&l->is_given_up, true);
	for (job = TAILQ_FIRST(&l->jobs); job; job = next) {
		next = TAILQ_NEXT(job, entry);
		if (job->result.generation != generation || job->export)
			continue;
		TAILQ_REMOVE(&l->jobs, job, entry);
		l->n_jobs--;
		job->result.kind = job->windows ? LOADER_COPIED : LOADER_FAILED;
		job->result.code = err_set(&job->result.err, ECANCELED, "the load was given up");
		TAILQ_INSERT_TAIL(&l->done, job, entry);
		loader_tell(l);
	}
	pthread_mutex_unlock(&l->mutex);
}
