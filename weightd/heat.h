/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_HEAT_H
#define WEIGHTD_HEAT_H

/*
 * Weights that are ready in a memfd to new device memory, without a processor's copy: windows of
 * the memfd are imported by host pointer and the device reads them at the bus's rate. What cannot
 * be brought so goes through the ring of weightd/fill. Loader thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/fill.h"

struct err;
struct placement;
struct source;
struct vk_device;
struct vk_memory;

enum {
	HEAT_DEVICE_LOST = 1,
	/* The driver refuses to import the memfd. Where vk_device_is_poisoned then, the device is
	 * good for nothing any more; else everything can still go through the ring. */
	HEAT_REFUSED = 2,
};

struct heat_params {
	struct vk_device *device;
	const struct source *source; /* between begin and end of staging */
	const struct placement *placement;
	struct vk_memory *const *memories; /* [placement->n_allocs], NULL for windows */
	uint8_t *memfd;                    /* mapped by source_begin_staging */
	uint64_t page_bytes;               /* of imports, at most 64 KiB */
	uint64_t max_window_bytes;         /* the most one import may have */
	fill_progress_fn progress;
	void *userdata;
};

/*
 * Copies every tensor that is placed on the device and is staged; the memories are not yet released
 * to others. When it returns nothing is in flight, whatever the outcome. HEAT_DEVICE_LOST,
 * HEAT_REFUSED, -ENOMEM, -ECANCELED, ... with ret_err.
 */
int must_check heat_run(const struct heat_params *params, struct err *ret_err);

#endif
