/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_ALLOCATOR_H
#define WEIGHTD_ALLOCATOR_H

/*
 * Makes the memory of one placement on a thread of its own, one allocation after the other, while
 * what is there already is filled: a driver takes about 11 ms a GiB of exportable memory, half of
 * what filling takes. All calls are the loader thread's. The allocator's own thread uses what is
 * borrowed until allocator_stop or allocator_free returns.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/handle.h"

struct allocator;
struct err;
struct export;
struct placement;
struct vk_device;
struct vk_memory;

/* A condition: the device was lost. */
enum { ALLOCATOR_DEVICE_LOST = 1 };

/* All of it is borrowed until allocator_stop or allocator_free returns. */
struct allocator_params {
	/* NULL where all allocations are windows. */
	struct vk_device *device;
	const struct placement *placement;
	/* Gets the memories: its own, but not to be read before allocator_wait. */
	struct export *export;
	/* As what host memory leaves; the device's does as opaque descriptors. */
	enum vk_handle host_handle;
	uint64_t generation; /* for names */
};

/* Starts with the first allocation. -ENOMEM. */
int must_check allocator_new(const struct allocator_params *params, struct err *ret_err,
	struct allocator **ret_allocator);

/* Ends with the allocation that is being made. Accepts NULL; returns NULL. */
struct allocator *allocator_free(struct allocator *a);

/*
 * Waits for an allocation that is no window. -errno or ALLOCATOR_DEVICE_LOST: this one or one
 * before it failed, and none follows.
 */
int must_check allocator_wait(
	struct allocator *a, uint32_t alloc, struct err *ret_err, struct vk_memory **ret_memory);

/* Is it there now? */
bool allocator_has(struct allocator *a, uint32_t alloc);

/* Has one failed until now? Its error, as of allocator_wait; else 0. */
int must_check allocator_check(struct allocator *a, struct err *ret_err);

/* What the thread came to, once it has no more to do or made to end. */
struct allocator_summary {
	int code;              /* as of allocator_check */
	uint64_t device_bytes; /* that the device had room for */
	uint64_t host_bytes;   /* the same of host memory that it exports */
	bool is_host;          /* code is of such memory */
	uint64_t busy_ns;
};

/* Ends as allocator_free does. ret_err is of a code that is not 0. */
void allocator_stop(
	struct allocator *a, struct err *ret_err, struct allocator_summary *ret_summary);

#endif
