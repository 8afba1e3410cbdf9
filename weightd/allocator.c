/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/allocator.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "weightd/export.h"
#include "weightd/placement.h"

struct allocator {
	struct allocator_params params;
	pthread_t thread;
	bool is_started;       /* the thread, and not joined */
	pthread_mutex_t mutex; /* guards what follows */
	pthread_cond_t cond;
	bool is_stopping;
	uint32_t n_done; /* allocations, from the first; windows count */
	struct err err;  /* of summary.code */
	struct allocator_summary summary;
};

static int allocator_make(struct allocator *a, uint32_t i, struct err *ret_err)
{
	const struct placement *p = a->params.placement;
	bool is_host = p->homes[i].home == PLACEMENT_HOST_MEMORY;
	char name[64];

	snprintf(name, sizeof(name), "weights of generation %llu, allocation %u",
		(unsigned long long)a->params.generation, i);
	const struct vk_memory_params params = {.role = VK_MEMORY_WEIGHTS,
		.n_bytes = p->allocs[i].n_bytes,
		.is_exportable = true,
		.is_host = is_host,
		.handle = is_host ? a->params.host_handle : VK_HANDLE_OPAQUE_FD,
		.name = name};
	int rc = vk_memory_new(
		a->params.device, &params, ret_err, &a->params.export->allocs[i].memory);
	return rc == VK_DEVICE_LOST ? ALLOCATOR_DEVICE_LOST : rc;
}

static void *allocator_main(void *userdata)
{
	struct allocator *a = userdata;
	const struct placement *p = a->params.placement;
	uint64_t start = clock_now_ns();
	bool is_over = false;

	for (uint32_t i = 0; i < p->n_allocs && !is_over; i++) {
		struct err err = ERR_NULL;
		int rc = 0;

		if (p->homes[i].home <= PLACEMENT_HOST_MEMORY)
			rc = allocator_make(a, i, &err);
		pthread_mutex_lock(&a->mutex);
		a->summary.code = rc;
		a->err = err;
		a->n_done += rc == 0;
		if (rc == 0 && p->homes[i].home == PLACEMENT_DEVICE_MEMORY)
			a->summary.device_bytes += p->allocs[i].n_bytes;
		if (rc == 0 && p->homes[i].home == PLACEMENT_HOST_MEMORY)
			a->summary.host_bytes += p->allocs[i].n_bytes;
		a->summary.is_host = rc && p->homes[i].home == PLACEMENT_HOST_MEMORY;
		a->summary.busy_ns = clock_now_ns() - start;
		is_over = rc || a->is_stopping;
		pthread_cond_broadcast(&a->cond);
		pthread_mutex_unlock(&a->mutex);
	}
	return NULL;
}

int allocator_new(const struct allocator_params *params, struct err *ret_err,
	struct allocator **ret_allocator)
{
	struct allocator *a = calloc(1, sizeof(*a));

	if (!a)
		return err_set(ret_err, ENOMEM, "weights: out of memory");
	a->params = *params;
	pthread_mutex_init(&a->mutex, NULL);
	pthread_cond_init(&a->cond, NULL);
	/* The thread inherits the loader thread's mask: no signals. Without one it is done here. */
	a->is_started = pthread_create(&a->thread, NULL, allocator_main, a) == 0;
	if (!a->is_started)
		allocator_main(a);
	*ret_allocator = a;
	return 0;
}

static void allocator_join(struct allocator *a)
{
	if (!a->is_started)
		return;
	pthread_mutex_lock(&a->mutex);
	a->is_stopping = true;
	pthread_mutex_unlock(&a->mutex);
	pthread_join(a->thread, NULL);
	a->is_started = false;
}

struct allocator *allocator_free(struct allocator *a)
{
	if (!a)
		return NULL;
	allocator_join(a);
	pthread_cond_destroy(&a->cond);
	pthread_mutex_destroy(&a->mutex);
	free(a);
	return NULL;
}

int allocator_wait(
	struct allocator *a, uint32_t alloc, struct err *ret_err, struct vk_memory **ret_memory)
{
	pthread_mutex_lock(&a->mutex);
	while (a->n_done <= alloc && !a->summary.code)
		pthread_cond_wait(&a->cond, &a->mutex);
	bool is_there = a->n_done > alloc;
	pthread_mutex_unlock(&a->mutex);
	if (!is_there)
		return allocator_check(a, ret_err);
	*ret_memory = a->params.export->allocs[alloc].memory;
	return 0;
}

bool allocator_has(struct allocator *a, uint32_t alloc)
{
	pthread_mutex_lock(&a->mutex);
	bool is_there = a->n_done > alloc;
	pthread_mutex_unlock(&a->mutex);
	return is_there;
}

int allocator_check(struct allocator *a, struct err *ret_err)
{
	pthread_mutex_lock(&a->mutex);
	int code = a->summary.code;
	if (code && ret_err)
		*ret_err = a->err;
	pthread_mutex_unlock(&a->mutex);
	return code;
}

void allocator_stop(struct allocator *a, struct err *ret_err, struct allocator_summary *ret_summary)
{
	allocator_join(a);
	if (a->summary.code && ret_err)
		*ret_err = a->err;
	*ret_summary = a->summary;
}
