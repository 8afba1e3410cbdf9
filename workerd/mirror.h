/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_MIRROR_H
#define WORKERD_MIRROR_H

/*
 * What the host writes for a step (tokens, positions, which rows want logits, the page table) is in
 * io memory, on the other side of a bus: a kernel that reads a count, a row and a page waits for
 * three answers from there. So a step begins by copying what it has of it into device memory, where
 * its kernels read. The host writes in one lane while the device reads another. Engine thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/memory.h"
#include "workerd/plan-layout.h"

struct err;
struct mirror;
struct op_pool;
struct vk_command;
struct vk_device;

struct mirror_params {
	struct vk_device *device;
	struct op_pool *pool;
	/* Lane 0, with the others behind it, and where a lane goes; offsets in it. */
	struct vk_slice lane_from, lane_to;
	uint64_t rows;
	uint64_t spans;
	uint32_t n_span_rows; /* steps of fewer rows have no use for spans */
	/* From there to there, of one size, as all sizes a multiple of 16 bytes at such addresses.
	 */
	struct vk_slice table_from, table_to;
};

/* -ENOMEM, VK_DEVICE_LOST, with ret_err. */
int must_check mirror_new(
	const struct mirror_params *params, struct err *ret_err, struct mirror **ret_mirror);

/* Its commands must be done. Accepts NULL; returns NULL. */
struct mirror *mirror_free(struct mirror *m);

/*
 * The commands that bring device memory up to date for a step of up to 2^bucket rows in a lane
 * (LANE_MAX_BUCKETS of workerd/lane.h), to be submitted before whatever reads it: of the table only
 * when its version is not the one of the call before. Recorded at their first use; errors as
 * mirror_new, and then the next call is as if this one had not been.
 */
int must_check mirror_get_command(struct mirror *m, uint32_t lane, uint32_t bucket,
	uint64_t table_version, struct err *ret_err, struct vk_command **ret_command);

#endif
