/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_FILL_H
#define WEIGHTD_FILL_H

/*
 * The bytes of a model file to where they are placed. Loader thread.
 *
 *	file -> uring -> ring slot (staging memory) -> vk_command_copy -> device memory
 *	file -> uring -> host memory
 *
 * Many reads are in flight, before the memory is there that they are for; what has come into the
 * ring is copied by the device together. Windows of the file are left alone.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct allocator;
struct err;
struct gguf;
struct placement;
struct source;
struct upload;
struct vk_device;

/* Tensors for the device that the source has staged already. */
enum fill_staged {
	FILL_STAGED_NOT,  /* read from the file all the same: workers may have the memfd */
	FILL_STAGED_RING, /* read from the memfd, not from the file */
	FILL_STAGED_DONE, /* weightd/heat brought them */
};

/* Called after each piece; false ends the fill with -ECANCELED. */
typedef bool (*fill_progress_fn)(uint64_t n_bytes, uint64_t n_total_bytes, void *userdata);

struct fill_params {
	struct vk_device *device; /* NULL where no allocation is on one */
	struct upload *ring;      /* fill_new_ring's of the device; NULL where that is */
	struct source *source;
	const struct gguf *gguf;
	const struct placement *placement;
	struct allocator *allocator; /* of placement */
	uint8_t *memfd; /* mapped by source_begin_staging; NULL where nothing is staged in one */
	enum fill_staged staged;
	bool use_pread; /* do not try io_uring */
	fill_progress_fn progress;
	void *userdata;
};

/* A condition: the device was lost. */
enum { FILL_DEVICE_LOST = 1 };

/*
 * What fills of the device go through, one after the other: to be kept, for making its pages takes
 * as long as copying a gigabyte. -ENOMEM, FILL_DEVICE_LOST.
 */
int must_check fill_new_ring(
	struct vk_device *device, struct err *ret_err, struct upload **ret_ring);

/*
 * Brings every tensor that is not there yet and writes zeros between them: an exported allocation
 * shows all of itself.
 * When it returns, whatever the outcome, nothing is in flight any more; on success the allocations
 * are released to VK_QUEUE_FAMILY_EXTERNAL. ret_refusal: uring_get_refusal. Errors with ret_err:
 * -ENODATA (the file is shorter than it said), -errno of a read, -ENOMEM, -ECANCELED, and what
 * allocator_check says.
 */
int must_check fill_run(const struct fill_params *params, struct err *ret_err, int *ret_refusal);

#endif
