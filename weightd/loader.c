/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/loader-internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <time.h>

#include "proto/util/clock.h"
#include "vk/memory.h"
#include "weightd/check.h"
#include "weightd/checker.h"
#include "weightd/checksum.h"
#include "weightd/export.h"
#include "weightd/fill.h"
#include "weightd/host-memory.h"
#include "weightd/load-sums.h"
#include "weightd/load.h"
#include "weightd/policy.h"
#include "weightd/source.h"
#include "weightd/upload.h"

enum {
	LOADER_PROGRESS_BYTES = 64 << 20,
	LOADER_PROGRESS_NS = 50 * 1000 * 1000,
};

void loader_tell(struct loader *l)
{
	uint64_t one = 1;

	/* It only fails when the counter is full, and then the loop is told already. */
	if (write(l->event_fd, &one, sizeof(one)) < 0)
		return;
}

static int loader_open_device(struct loader *l, struct err *ret_err)
{
	int rc = vk_device_new(l->params.device, ret_err, &l->device);

	if (rc == VK_DEVICE_LOST)
		return err_set(ret_err, EIO, "device %s: it was lost", l->params.device);
	if (rc < 0)
		return rc;
	const struct vk_device_info *info = vk_device_get_info(l->device);
	if (info->has_export_fd)
		return 0;
	err_set(ret_err, ENOTSUP, "device %s: it cannot export memory as descriptors", info->name);
	l->device = vk_device_free(l->device);
	return -ENOTSUP;
}

/* Under the mutex. */
static void loader_count_weights(struct loader *l)
{
	struct export *e;

	memset(l->weights_bytes, 0, sizeof(l->weights_bytes));
	TAILQ_FOREACH(e, &l->live, entry)
	for (uint32_t i = 0; i < e->n_allocs; i++)
		if (export_has_memory(&e->allocs[i]))
			l->weights_bytes[e->allocs[i].heap_index] += e->allocs[i].n_bytes;
}

/* Under the mutex, which is given up while the driver is asked: the loop thread waits for no
 * driver. */
static void loader_update_heaps(struct loader *l)
{
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];

	l->wants_heaps = false;
	if (l->device) {
		pthread_mutex_unlock(&l->mutex);
		vk_device_query_heaps(l->device, heaps);
		pthread_mutex_lock(&l->mutex);
		memcpy(l->heaps, heaps, sizeof(l->heaps));
	}
	loader_count_weights(l);
}

/* Under the mutex; NULL when no export has memory of the device. */
static struct export *loader_find_memory(struct loader *l)
{
	struct export *e;

	TAILQ_FOREACH(e, &l->live, entry)
	for (uint32_t i = 0; i < e->n_allocs; i++)
		if (e->allocs[i].memory)
			return e;
	return NULL;
}

static struct export *loader_take_freed(struct loader *l)
{
	pthread_mutex_lock(&l->mutex);
	struct export *e = TAILQ_FIRST(&l->freed);
	if (e)
		TAILQ_REMOVE(&l->freed, e, entry);
	pthread_mutex_unlock(&l->mutex);
	return e;
}

/* The device and the memory on it go; the exports' descriptors stay with them. The mutex is given
 * up for what takes long: only this thread frees exports. */
static void loader_lose_device(struct loader *l)
{
	struct export *e;

	/* First those that live: one that is released meanwhile is then among the freed. */
	for (;;) {
		pthread_mutex_lock(&l->mutex);
		e = loader_find_memory(l);
		pthread_mutex_unlock(&l->mutex);
		if (!e)
			break;
		export_drop_memory(e);
	}
	while ((e = loader_take_freed(l))) {
		uint64_t n_bytes = export_count_device_bytes(e);
		export_free(e);
		pthread_mutex_lock(&l->mutex);
		l->n_freed_bytes += n_bytes;
		pthread_mutex_unlock(&l->mutex);
	}
	l->ring = upload_free(l->ring);
	checker_drop_device(&l->checker);
	l->device = vk_device_free(l->device);
}

static int loader_make_ring(struct loader *l, struct err *ret_err)
{
	return l->ring ? 0 : fill_new_ring(l->device, ret_err, &l->ring);
}

static bool loader_on_progress(uint64_t n_bytes, uint64_t n_total_bytes, void *userdata)
{
	struct loader *l = userdata;
	uint64_t now = clock_now_ns();

	if (atomic_load(&l->is_given_up))
		return false;
	if (n_bytes - l->progress_bytes < LOADER_PROGRESS_BYTES &&
		now - l->progress_ns < LOADER_PROGRESS_NS)
		return true;
	l->progress_bytes = n_bytes;
	l->progress_ns = now;
	pthread_mutex_lock(&l->mutex);
	l->has_progress = true;
	l->progress = (struct loader_result){.kind = LOADER_PROGRESS,
		.generation = l->running,
		.loaded_bytes = n_bytes,
		.total_bytes = n_total_bytes};
	pthread_mutex_unlock(&l->mutex);
	loader_tell(l);
	return true;
}

/* An export that could not be had is its result's, without memory: others may still look at its
 * descriptors. */
static int loader_import(struct loader *l, struct loader_result *r)
{
	const struct load_sums_params sums = {.device = r->is_foreign ? NULL : l->device,
		.key = l->params.key,
		.checksum = &l->checker.checksum,
		.source = r->export->source,
		.export = r->export};
	int rc = r->is_foreign ? 0 : export_import(r->export, l->device, &r->err);

	/* Whoever brought it, and whatever happened to it meanwhile. */
	if (rc == 0)
		rc = load_sums_compare(&sums, &r->err);
	if (rc)
		export_drop_memory(r->export);
	return rc > 0 ? LOAD_DEVICE_LOST : rc;
}

static void loader_run_job(struct loader *l, struct loader_job *job, uint64_t heap_used_bytes,
	const struct load_abilities *abilities)
{
	struct loader_result *r = &job->result;
	uint64_t start = clock_now_ns();
	int rc = 0;

	l->progress_bytes = 0;
	l->progress_ns = start;
	if (!l->device && !r->is_foreign)
		rc = loader_open_device(l, &r->err);
	if (rc == 0 && !r->is_foreign && !r->export)
		rc = loader_make_ring(l, &r->err);
	if (rc == 0 && r->export) {
		rc = loader_import(l, r);
	} else if (rc == 0) {
		const struct load_params params = {.device = r->is_foreign ? NULL : l->device,
			.goal = r->goal,
			.may_free_bytes = job->may_free_bytes,
			.may_import = &l->may_import,
			.ring = r->is_foreign ? NULL : l->ring,
			.generation = r->generation,
			.source = job->source,
			.policy = l->params.policy,
			.account = l->params.account,
			.abilities = *abilities,
			.alloc_bytes = l->params.alloc_bytes,
			.window_bytes = l->params.window_bytes,
			.room_bytes = r->room_bytes,
			.heap_used_bytes = heap_used_bytes,
			.use_pread = l->params.use_pread,
			.key = l->params.key,
			.checksum = &l->checker.checksum,
			.progress = loader_on_progress,
			.userdata = l};
		rc = load_run(&params, &r->err, &r->export, &r->refusal, &r->short_bytes);
	}
	r->kind = rc == 0 ? LOADER_READY : LOADER_FAILED;
	if (rc == 0 && r->goal == LOAD_COOL)
		r->kind = LOADER_COOL;
	if (rc == LOAD_SHORT) {
		r->kind = LOADER_SHORT;
		rc = 0;
	} else if (rc > 0) { /* FILL_DEVICE_LOST, LOAD_DEVICE_LOST */
		rc = err_set(&r->err, EIO, "the device was lost while it loaded");
		loader_lose_device(l);
		r->kind = LOADER_LOST;
	}
	if (r->export) {
		r->export->generation = r->generation;
		r->export->is_foreign = r->is_foreign;
	}
	job->source = source_unref(job->source);
	r->code = rc < 0 ? rc : 0;
	r->load_ns = clock_now_ns() - start;
}

/* Windows may overlap by a page; that is not worth telling apart. */
static int loader_check_room(
	const struct loader *l, const struct loader_job *job, struct err *ret_err)
{
	uint64_t used = source_account_sum(l->params.account), n_bytes = 0;
	uint64_t room = host_memory_get_free();
	uint64_t budget = l->params.policy->host_budget;
	uint64_t left = budget > used ? budget - used : 0;

	if (budget && left < room)
		room = left;
	for (uint32_t i = 0; i < job->n_windows; i++)
		if (__builtin_add_overflow(n_bytes,
			    source_count_uncopied(
				    job->source, job->windows[i].offset, job->windows[i].n_bytes),
			    &n_bytes))
			return err_set(ret_err, EOVERFLOW, "copy of the file: its bytes overflow");
	if (n_bytes > room)
		return err_set(ret_err, ENOMEM,
			"copy of the file: wanted %llu bytes of host memory, found %llu",
			(unsigned long long)n_bytes, (unsigned long long)room);
	return 0;
}

static void loader_run_copy(struct loader *l, struct loader_job *job)
{
	struct loader_result *r = &job->result;
	uint64_t start = clock_now_ns();
	int rc = loader_check_room(l, job, &r->err);

	for (uint32_t i = 0; i < job->n_windows && rc == 0; i++) {
		rc = source_copy(job->source, job->windows[i].offset, job->windows[i].n_bytes,
			l->params.use_pread, &l->is_given_up, &r->err);
		r->loaded_bytes += job->windows[i].n_bytes;
	}
	if (rc == 0)
		rc = source_check(job->source, &r->err);
	job->source = source_unref(job->source);
	r->kind = LOADER_COPIED;
	r->code = rc;
	r->load_ns = clock_now_ns() - start;
}

/* ---- checks ---- */

struct loader_job *loader_make_check(const struct export *e, uint64_t tag)
{
	struct loader_job *job = calloc(1, sizeof(*job));

	if (job)
		job->result.report = calloc(1, sizeof(*job->result.report));
	if (!job || !job->result.report) {
		free(job);
		return NULL;
	}
	job->result.kind = LOADER_CHECKED;
	job->result.tag = tag;
	job->result.checked = e;
	job->result.generation = e->generation;
	job->result.is_foreign = e->is_foreign;
	return job;
}

struct loader_job *loader_free_job(struct loader_job *job)
{
	source_unref(job->source);
	free(job->windows);
	free(job->result.report);
	free(job->result.sums);
	free(job);
	return NULL;
}

/* rc: of checker_run or checker_scrub. */
static void loader_end_check(struct loader *l, struct loader_job *job, int rc)
{
	struct loader_result *r = &job->result;

	r->code = rc < 0 ? rc : 0;
	if (rc != CHECK_DEVICE_LOST)
		return;
	r->code = err_set(&r->err, EIO, "%s", "the device was lost while it was checked");
	r->is_device_lost = true;
	loader_lose_device(l);
}

/* A whole pass has found sums that a load does not take: those of tensors in the model file. */
static void loader_run_check(struct loader *l, struct loader_job *job)
{
	struct loader_result *r = &job->result;
	int rc = checker_run(&l->checker, l->device, job->export, &r->err, r->report);

	if (rc == 0 && r->report->n_tensors == 0)
		rc = load_sums_pack(job->export, &r->err, &r->sums, &r->n_sums_bytes);
	loader_end_check(l, job, rc);
}

/* A step of the scrub, if one is due. As loader_step. */
static bool loader_scrub(struct loader *l)
{
	struct export *first = TAILQ_FIRST(&l->live);
	struct export *e = l->is_stopping ? NULL : checker_find_due(&l->checker, first);
	struct loader_job *job = e ? loader_make_check(e, 0) : NULL;

	if (!job) {
		if (e) /* without memory to tell of it, nothing is looked for */
			l->checker.scrub.next_ns = clock_now_ns() + LOADER_PROGRESS_NS;
		return false;
	}
	uint64_t n_total_bytes = scrub_count_bytes(first);
	atomic_store(&l->is_given_up, false);
	pthread_mutex_unlock(&l->mutex);
	/* It may be released meanwhile, but this thread alone frees it. */
	int rc = checker_scrub(
		&l->checker, l->device, e, n_total_bytes, &job->result.err, job->result.report);
	loader_end_check(l, job, rc);
	pthread_mutex_lock(&l->mutex);
	if (rc == 0) {
		loader_free_job(job);
		return true;
	}
	TAILQ_INSERT_TAIL(&l->done, job, entry);
	loader_tell(l);
	return true;
}

/* Until there is something to do, under the mutex. */
static void loader_sleep(struct loader *l)
{
	uint64_t due_ns = checker_get_due_ns(&l->checker, TAILQ_FIRST(&l->live));
	const struct timespec t = {
		.tv_sec = (time_t)(due_ns / 1000000000), .tv_nsec = (long)(due_ns % 1000000000)};

	if (due_ns == UINT64_MAX)
		pthread_cond_wait(&l->cond, &l->mutex);
	else
		pthread_cond_timedwait(&l->cond, &l->mutex, &t);
}

/* One thing to do, under the mutex, which is given up meanwhile. False: nothing to do. */
static bool loader_step(struct loader *l)
{
	struct export *e = TAILQ_FIRST(&l->freed);
	struct loader_job *job = TAILQ_FIRST(&l->jobs);
	struct loader_job *dropped = TAILQ_FIRST(&l->dropped);

	if (e) {
		uint64_t n_bytes = export_count_device_bytes(e);
		TAILQ_REMOVE(&l->freed, e, entry);
		pthread_mutex_unlock(&l->mutex);
		export_free(e);
		pthread_mutex_lock(&l->mutex);
		l->n_freed_bytes += n_bytes;
		l->wants_heaps = true;
		loader_tell(l);
	} else if (dropped) {
		TAILQ_REMOVE(&l->dropped, dropped, entry);
		pthread_mutex_unlock(&l->mutex);
		source_drop_staged(dropped->source);
		source_unref(dropped->source);
		free(dropped);
		pthread_mutex_lock(&l->mutex);
	} else if (l->wants_heaps && !(job && l->is_job_next)) {
		loader_update_heaps(l);
		l->is_job_next = true;
	} else if (job && !l->is_stopping) {
		static const struct load_abilities foreign = {.imports_memfd = true};
		/* Of now, when what was released is freed: the load is to fit beside it. */
		loader_count_weights(l);
		uint64_t used = l->device ? l->weights_bytes[load_find_heap(l->device)] : 0;
		const struct load_abilities abilities =
			job->result.is_foreign ? foreign : l->abilities;
		TAILQ_REMOVE(&l->jobs, job, entry);
		l->n_jobs--;
		l->is_job_next = false;
		l->running = job->result.generation;
		atomic_store(&l->is_given_up, false);
		pthread_mutex_unlock(&l->mutex);
		if (job->windows)
			loader_run_copy(l, job);
		else if (job->export)
			loader_run_check(l, job);
		else
			loader_run_job(l, job, used, &abilities);
		pthread_mutex_lock(&l->mutex);
		l->running = 0;
		if (job->result.export && job->result.kind == LOADER_READY)
			TAILQ_INSERT_TAIL(&l->live, job->result.export, entry);
		TAILQ_INSERT_TAIL(&l->done, job, entry);
		l->wants_heaps = true;
		loader_tell(l);
	} else {
		return loader_scrub(l);
	}
	return true;
}

/* What a load needs, before anybody waits for it: 25 and 75 ms on an H200. One that finds it
 * missing tries again and says why. */
static void loader_prepare(struct loader *l)
{
	struct err unsaid = ERR_NULL;
	int rc = loader_make_ring(l, &unsaid);

	if (rc == 0 && !l->checker.checksum)
		rc = checksum_new(l->device, l->params.key, &unsaid, &l->checker.checksum);
	(void)rc;
}

static void *loader_main(void *userdata)
{
	struct loader *l = userdata;
	struct err err = ERR_NULL;
	int rc = loader_open_device(l, &err);

	pthread_mutex_lock(&l->mutex);
	l->is_open = true;
	l->open_code = rc;
	l->open_err = err;
	if (rc == 0) {
		l->info = *vk_device_get_info(l->device);
		/* What most can; the probe knows better. */
		bool imports = l->info.import_align > 0;
		l->abilities.imports_memfd = imports;
		l->abilities.imports_file[true][true] = imports;
		l->abilities.imports_file[false][false] = imports && l->info.is_software;
		loader_update_heaps(l);
		checker_start_scrub(&l->checker, l->params.scrub_ns, l->params.scrub_percent,
			l->info.is_software);
	}
	pthread_cond_broadcast(&l->cond);
	if (rc == 0) {
		pthread_mutex_unlock(&l->mutex);
		loader_prepare(l);
		pthread_mutex_lock(&l->mutex);
	}
	while (rc == 0) {
		if (loader_step(l))
			continue;
		if (l->is_stopping)
			break;
		loader_sleep(l);
	}
	pthread_mutex_unlock(&l->mutex);
	/* The loop thread waits in loader_free: nobody else looks at the lists any more. */
	while (rc == 0 && !TAILQ_EMPTY(&l->live)) {
		struct export *e = TAILQ_FIRST(&l->live);
		TAILQ_REMOVE(&l->live, e, entry);
		export_free(e);
	}
	l->ring = upload_free(l->ring);
	checker_drop_device(&l->checker);
	l->device = vk_device_free(l->device);
	return NULL;
}

/* Signals are the loop thread's, and the driver's threads inherit what the loader thread has. */
static int loader_start(struct loader *l)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int rc = -pthread_create(&l->thread, NULL, loader_main, l);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	l->is_started = rc == 0;
	return rc;
}

static void loader_cleanup(struct loader **l)
{
	loader_free(*l);
}

int loader_new(const struct loader_params *params, struct err *ret_err, struct loader **ret_loader)
{
	_cleanup_(loader_cleanup)
	struct loader *l = calloc(1, sizeof(*l));

	if (!l)
		return err_set(ret_err, ENOMEM, "loader: out of memory");
	l->params = *params;
	checker_init(&l->checker, params->key, &l->is_given_up);
	TAILQ_INIT(&l->jobs);
	TAILQ_INIT(&l->done);
	TAILQ_INIT(&l->dropped);
	l->may_import = true;
	TAILQ_INIT(&l->live);
	TAILQ_INIT(&l->freed);
	pthread_mutex_init(&l->mutex, NULL);
	pthread_condattr_t attr; /* scrub.next_ns is of that clock */
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&l->cond, &attr);
	pthread_condattr_destroy(&attr);
	l->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->event_fd < 0)
		return err_set(ret_err, errno, "loader: eventfd: %s", strerror(errno));
	int rc = loader_start(l);
	if (rc < 0)
		return err_set(ret_err, -rc, "loader: thread: %s", strerror(-rc));
	pthread_mutex_lock(&l->mutex);
	while (!l->is_open)
		pthread_cond_wait(&l->cond, &l->mutex);
	pthread_mutex_unlock(&l->mutex);
	if (l->open_code < 0) {
		if (ret_err)
			*ret_err = l->open_err;
		return l->open_code;
	}
	*ret_loader = TAKE_PTR(l);
	return 0;
}

/* The exports of those that were not begun are nobody's; the others are the thread's. */
static void loader_free_jobs(struct loader_jobs *jobs, bool is_waiting)
{
	struct loader_job *job;

	while ((job = TAILQ_FIRST(jobs))) {
		TAILQ_REMOVE(jobs, job, entry);
		if (is_waiting || job->result.kind != LOADER_READY)
			export_free(job->result.export);
		loader_free_job(job);
	}
}

struct loader *loader_free(struct loader *l)
{
	if (!l)
		return NULL;
	if (l->is_started) {
		pthread_mutex_lock(&l->mutex);
		l->is_stopping = true;
		atomic_store(&l->is_given_up, true);
		pthread_cond_broadcast(&l->cond);
		pthread_mutex_unlock(&l->mutex);
		pthread_join(l->thread, NULL);
	}
	loader_free_jobs(&l->jobs, true);
	loader_free_jobs(&l->done, false);
	loader_free_jobs(&l->dropped, false);
	cleanup_close(&l->event_fd);
	pthread_cond_destroy(&l->cond);
	pthread_mutex_destroy(&l->mutex);
	free(l);
	return NULL;
}

const struct vk_device_info *loader_get_info(const struct loader *l)
{
	return &l->info;
}

void loader_get_heaps(struct loader *l, struct vk_device_heap ret_heaps[VK_DEVICE_MAX_HEAPS],
	uint64_t ret_weights_bytes[VK_DEVICE_MAX_HEAPS])
{
	pthread_mutex_lock(&l->mutex);
	memcpy(ret_heaps, l->heaps, sizeof(l->heaps));
	memcpy(ret_weights_bytes, l->weights_bytes, sizeof(l->weights_bytes));
	l->wants_heaps = true;
	pthread_cond_broadcast(&l->cond);
	pthread_mutex_unlock(&l->mutex);
}

int loader_get_fd(const struct loader *l)
{
	return l->event_fd;
}

void loader_set_probe(struct loader *l, const struct vk_probe *probe)
{
	const struct vk_probe_result *k = probe->kinds;

	l->has_probe = true;
	l->probe = *probe;
	pthread_mutex_lock(&l->mutex);
	l->abilities = (struct load_abilities){
		.imports_memfd = k[VK_PROBE_MEMFD].is_ok,
		.imports_file = {{k[VK_PROBE_DISK_READ_ONLY].is_ok, k[VK_PROBE_DISK].is_ok},
			{k[VK_PROBE_TMPFS_READ_ONLY].is_ok, k[VK_PROBE_TMPFS].is_ok}},
		.exports_host_fd = k[VK_PROBE_FD_HOST].is_ok,
		.exports_host_dma_buf = k[VK_PROBE_DMA_BUF_HOST].is_ok,
	};
	pthread_mutex_unlock(&l->mutex);
}

const struct vk_probe *loader_get_probe(const struct loader *l)
{
	return l->has_probe ? &l->probe : NULL;
}

/* Under the mutex: nobody is to check what is about to be freed. */
static void loader_drop_checks(struct loader *l, const struct export *e)
{
	struct loader_job *job = TAILQ_FIRST(&l->jobs);

	while (job) {
		struct loader_job *next = TAILQ_NEXT(job, entry);
		if (job->export == e) {
			TAILQ_REMOVE(&l->jobs, job, entry);
			l->n_jobs--;
			job->result.code = err_set(
				&job->result.err, ECANCELED, "it went before it was checked");
			TAILQ_INSERT_TAIL(&l->done, job, entry);
			loader_tell(l);
		}
		job = next;
	}
}

void loader_release(struct loader *l, struct export *e)
{
	pthread_mutex_lock(&l->mutex);
	loader_drop_checks(l, e);
	TAILQ_REMOVE(&l->live, e, entry);
	TAILQ_INSERT_TAIL(&l->freed, e, entry);
	pthread_cond_broadcast(&l->cond);
	pthread_mutex_unlock(&l->mutex);
}

uint64_t loader_take_freed_bytes(struct loader *l)
{
	pthread_mutex_lock(&l->mutex);
	uint64_t n_bytes = l->n_freed_bytes;
	l->n_freed_bytes = 0;
	pthread_mutex_unlock(&l->mutex);
	return n_bytes;
}

bool loader_take_result(struct loader *l, struct loader_result *ret_result)
{
	uint64_t count;

	/* Emptied before looking, so that what comes later is told again. */
	if (read(l->event_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
		return false;
	pthread_mutex_lock(&l->mutex);
	struct loader_job *job = TAILQ_FIRST(&l->done);
	bool is_there = true;
	if (l->has_progress) {
		l->has_progress = false;
		*ret_result = l->progress;
		job = NULL;
	} else if (job) {
		TAILQ_REMOVE(&l->done, job, entry);
		*ret_result = job->result;
	} else {
		is_there = false;
	}
	pthread_mutex_unlock(&l->mutex);
	if (job) {
		source_unref(job->source);
		free(job->windows);
	}
	free(job);
	return is_there;
}
