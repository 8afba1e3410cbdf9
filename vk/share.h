/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_SHARE_H
#define VK_SHARE_H

/*
 * Memory of one process in another: file descriptors out and in. Vulkan makes the importer repeat
 * what the exporter chose, so these values travel beside the fd.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/memory.h"

/* For vk_share_params.memory_type_index of a dma-buf: the best type that the driver offers for it.
 */
#define VK_SHARE_ANY_TYPE UINT32_MAX

struct vk_share_params {
	uint64_t n_bytes;      /* VkMemoryAllocateInfo.allocationSize */
	uint64_t buffer_bytes; /* of the VkBuffer bound at 0 */
	uint32_t memory_type_index;
	bool is_dedicated;
	enum vk_handle handle;
};

/*
 * A new fd (the caller's, O_CLOEXEC) of an exportable memory, of the kind it was made for, and what
 * the importer must repeat. -EPERM for a memory that is not exportable or another's.
 */
int must_check vk_share_export(
	struct vk_memory *m, struct err *ret_err, int *ret_fd, struct vk_share_params *ret_params);

/* The same as this kind; -EPERM too where vk_memory_can_export says no. */
int must_check vk_share_export_as(struct vk_memory *m, enum vk_handle handle, struct err *ret_err,
	int *ret_fd, struct vk_share_params *ret_params);

/*
 * The memory behind fd in this process, role as given. On success fd belongs to the driver; on
 * failure it is still the caller's. Every value is checked against the device before Vulkan sees
 * it (a peer chose them): -EINVAL; -ENOTSUP for a kind of handle that the device does not claim to
 * import; -ENOTRECOVERABLE (vk/device.h); -ENOMEM or -EIO with the driver's error in ret_err. After
 * a driver's refusal it is wise to make the device anew.
 *
 * Imports may run on several threads at once.
 *
 * A memfd passes for a dma-buf where the driver takes it (vk/probe.h), with VK_SHARE_ANY_TYPE and
 * both sizes those of the file, which must be sealed against shrinking or be of one we trust.
 */
int must_check vk_share_import(struct vk_device *d, int fd, const struct vk_share_params *params,
	enum vk_memory_role role, const char *name, struct err *ret_err,
	struct vk_memory **ret_memory);

#endif
