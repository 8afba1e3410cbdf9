/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_COMMAND_H
#define VK_COMMAND_H

/*
 * A recorded list of dispatches and copies, submitted as often as one likes (one submission in
 * flight at a time). Recording functions return nothing: a failure is kept and returned by
 * vk_command_end.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/memory.h"
#include "vk/queue.h"

struct err;
struct vk_device;
struct vk_command;
struct vk_pipeline;

/*
 * n_stamps: timestamp slots to write, 0 for none. -ENOTSUP where the queue has no timestamps,
 * -ENOMEM, VK_DEVICE_LOST.
 */
int must_check vk_command_new(struct vk_device *d, uint32_t n_stamps, struct err *ret_err,
	struct vk_command **ret_command);

/*
 * A command for one queue; vk_command_new is one for VK_QUEUE_COMPUTE. Those for the transfer queue
 * hold copies, fills, barriers and ownership: a dispatch is an error, and timestamps are -ENOTSUP
 * (a queue that only copies cannot reset them).
 */
int must_check vk_command_new_on(struct vk_device *d, enum vk_queue queue, uint32_t n_stamps,
	struct err *ret_err, struct vk_command **ret_command);
struct vk_command *vk_command_free(struct vk_command *c);

/* Starts recording anew. A command that still runs is an error, kept for vk_command_end. */
void vk_command_begin(struct vk_command *c);

/* Grid in workgroups. push is copied. A dispatch does not wait for the one before: see barrier. */
void vk_command_dispatch(struct vk_command *c, const struct vk_pipeline *p, const void *push,
	uint32_t n_push_bytes, uint32_t n_x, uint32_t n_y, uint32_t n_z);

/* What follows sees what dispatches and copies before it wrote. */
void vk_command_barrier(struct vk_command *c);

/* The host sees what came before once the submission is done; needed before reading io memory. */
void vk_command_host_barrier(struct vk_command *c);

/* Same sizes. Slices of one memory must not overlap. */
void vk_command_copy(struct vk_command *c, const struct vk_slice *dst, const struct vk_slice *src);

/* Rows of equal size in a memory: row i begins at offset + i * stride. All in bytes. */
struct vk_command_rows {
	struct vk_memory *memory;
	uint64_t offset;
	uint64_t stride; /* at least the row's size; not looked at for a single row */
};

/*
 * Copies n_rows rows of n_row_bytes each, both > 0, all inside both memories. Within one memory the
 * two ranges, from the first row's first byte to the last row's last, must not overlap.
 */
void vk_command_copy_2d(struct vk_command *c, const struct vk_command_rows *dst,
	const struct vk_command_rows *src, uint64_t n_rows, uint64_t n_row_bytes);

/* Offsets and sizes in multiples of 4. */
void vk_command_fill(struct vk_command *c, const struct vk_slice *dst, uint32_t value);

/*
 * Ownership of exported memory (VK_QUEUE_FAMILY_EXTERNAL): weightd releases after the fill, a
 * worker acquires before its first read.
 */
void vk_command_release(struct vk_command *c, struct vk_memory *m);
void vk_command_acquire(struct vk_command *c, struct vk_memory *m);

/* Writes timestamp slot `stamp` when everything before it is done. */
void vk_command_stamp(struct vk_command *c, uint32_t stamp);

int must_check vk_command_end(struct vk_command *c, struct err *ret_err);

/*
 * After the submission is done: slot values in nanoseconds, [n_stamps]. -EAGAIN when a slot was not
 * written, or nothing was submitted since begin; VK_DEVICE_LOST.
 */
int must_check vk_command_get_stamps(struct vk_command *c, uint64_t *ret_ns);

/* Dispatches recorded since begin. */
uint32_t vk_command_get_n_dispatches(const struct vk_command *c);

#endif
