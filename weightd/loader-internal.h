/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_LOADER_INTERNAL_H
#define WEIGHTD_LOADER_INTERNAL_H

/* For the loader files alone. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/util/err.h"
#include "vk/probe.h"
#include "weightd/checker.h"
#include "weightd/export.h"
#include "weightd/load.h"
#include "weightd/loader.h"

/* A job becomes its own result, so that telling of it cannot fail. */
struct loader_job {
	/* A reference; NULL: to be checked, or what is adopted is in the result. */
	struct source *source;
	struct loader_window *windows; /* of a copy, owned; NULL: a load or a check */
	uint32_t n_windows;
	struct export *export; /* of a check; borrowed from the list of what lives */
	uint64_t may_free_bytes;
	struct loader_result result;
	TAILQ_ENTRY(loader_job) entry;
};

TAILQ_HEAD(loader_jobs, loader_job);
TAILQ_HEAD(loader_exports, export);

struct loader {
	struct loader_params params;
	pthread_t thread;
	bool is_started; /* the thread, not the device */
	int event_fd;
	struct vk_device_info info;
	bool has_probe; /* the loop thread's, with the probe */
	struct vk_probe probe;
	atomic_bool is_given_up; /* the running job, or everything */

	/* The loader thread's. */
	struct vk_device *device;
	bool may_import;     /* a memfd, to heat; false once the driver has refused */
	struct upload *ring; /* of the device; NULL: not made yet */
	struct checker checker;
	uint64_t progress_bytes;
	uint64_t progress_ns;

	pthread_mutex_t mutex; /* guards what follows */
	pthread_cond_t cond;
	bool is_stopping;
	bool is_open; /* the thread has tried to open its device: open_code, open_err */
	int open_code;
	struct err open_err;
	bool wants_heaps;
	bool is_job_next; /* whoever asks for heaps all the time stops no load */
	uint32_t n_jobs;
	uint64_t running; /* generation, 0: none */
	struct loader_jobs jobs;
	struct loader_jobs done;
	struct loader_jobs dropped; /* sources alone */
	struct load_abilities abilities;
	struct loader_exports live;  /* exports that have memory on the device */
	struct loader_exports freed; /* to be freed by the thread */
	uint64_t n_freed_bytes;      /* by it, and not yet taken */
	bool has_progress;
	struct loader_result progress;
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	uint64_t weights_bytes[VK_DEVICE_MAX_HEAPS];
};

/* There is a result, or bytes are free. */
void loader_tell(struct loader *l);

/* NULL: out of memory. */
struct loader_job *loader_make_check(const struct export *e, uint64_t tag);

/* Returns NULL. */
struct loader_job *loader_free_job(struct loader_job *job);

#endif
