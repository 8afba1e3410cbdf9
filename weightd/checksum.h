/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_CHECKSUM_H
#define WEIGHTD_CHECKSUM_H

/*
 * Sums (weightd/sum.h) of memory on a device, by the device: the one kernel that weightd runs
 * beside copies. Loader thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct checksum;
struct err;
struct sum_key;
struct sum_range;
struct vk_device;
struct vk_memory;

enum {
	/* A submission: 4 GiB, a millisecond where memory gives 4 TB/s; others' work goes in
	 * between two. */
	CHECKSUM_MAX_PIECES = 4096,
};

/* A condition: the device was lost. */
enum { CHECKSUM_DEVICE_LOST = 1 };

/* key is borrowed. -ENOMEM, -ENOTSUP, -errno of vk_pipeline_new, CHECKSUM_DEVICE_LOST. */
int must_check checksum_new(struct vk_device *d, const struct sum_key *key, struct err *ret_err,
	struct checksum **ret_checksum);

/* Before its device. Accepts NULL; returns NULL. */
struct checksum *checksum_free(struct checksum *c);

/*
 * n pieces of one exported memory, 1 to CHECKSUM_MAX_PIECES; offsets are multiples of 16 (-EINVAL
 * for others: weightd makes no such allocation). The memory is acquired from
 * VK_QUEUE_FAMILY_EXTERNAL and released again. Waits until it is done. Errors of vk_submit;
 * CHECKSUM_DEVICE_LOST.
 */
int must_check checksum_run(struct checksum *c, struct vk_memory *memory,
	const struct sum_range *pieces, uint32_t n, struct err *ret_err,
	uint64_t *ret_sums /* [n] */);

#endif
