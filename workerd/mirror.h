/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_MIRROR_H
#define WORKERD_MIRROR_H

/*
 * What the host writes for a step (tokens, positions, which rows want logits, the page table) is in
 * io memory, on the other side of a bus: a kernel that reads a count, a row and a page waits for
 * three answers from there. So a step begins by copying all of it into device memory, where its
 * kernels read. Engine thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/memory.h"

struct err;
struct mirror;
struct op_pool;
struct vk_command;
struct vk_device;

struct mirror_params {
	struct vk_device *device;
	struct op_pool *pool;
	/* From there to there, of one size each, multiples of 16 bytes at such addresses. */
	struct vk_slice step_from, step_to;
	struct vk_slice table_from, table_to;
};

/* -ENOMEM, VK_DEVICE_LOST, with ret_err. */
int must_check mirror_new(
	const struct mirror_params *params, struct err *ret_err, struct mirror **ret_mirror);

/* Its commands must be done. Accepts NULL; returns NULL. */
struct mirror *mirror_free(struct mirror *m);

/*
 * The commands that bring device memory up to date, to be submitted before whatever reads it: of
 * the table only when its version is not the one of the call before.
 */
struct vk_command *mirror_get_command(struct mirror *m, uint64_t table_version);

#endif
