/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_FILL_H
#define WEIGHTD_FILL_H

/*
 * The bytes of a model file to where they are placed. Loader thread.
 *
 *	file -> uring -> ring slot (staging memory) -> vk_command_copy -> device memory
 *	file -> uring -> host memory
 *
 * Several reads are in flight; each piece of the ring is copied by the device as soon as it is
 * there. Windows of the file are left alone.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct gguf;
struct placement;
struct source;
struct vk_device;
struct vk_memory;

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
	struct source *source;
	const struct gguf *gguf;
	const struct placement *placement;
	struct vk_memory *const *memories; /* [placement->n_allocs], NULL for windows */
	uint8_t *memfd; /* mapped by source_begin_staging; NULL where nothing is staged in one */
	enum fill_staged staged;
	bool use_pread; /* do not try io_uring */
	fill_progress_fn progress;
	void *userdata;
};

/* A condition of fill_run: the device was lost. */
enum { FILL_DEVICE_LOST = 1 };

/*
 * Brings every tensor that is not there yet and writes zeros between them: an exported allocation
 * shows all of itself.
 * When it returns, whatever the outcome, nothing is in flight any more; on success the allocations
 * are released to VK_QUEUE_FAMILY_EXTERNAL. ret_refusal: uring_get_refusal. Errors with ret_err:
 * -ENODATA (the file is shorter than it said), -errno of a read, -ENOMEM, -ECANCELED.
 */
int must_check fill_run(const struct fill_params *params, struct err *ret_err, int *ret_refusal);

#endif
