/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_SHARE_H
#define VK_SHARE_H

/*
 * Memory of one process in another: opaque file descriptors out and in. Vulkan makes the importer
 * repeat what the exporter chose, so these values travel beside the fd.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/memory.h"

struct vk_share_params {
	uint64_t n_bytes;      /* VkMemoryAllocateInfo.allocationSize */
	uint64_t buffer_bytes; /* of the VkBuffer bound at 0 */
	uint32_t memory_type_index;
	bool is_dedicated;
};

/* A new fd (the caller's, O_CLOEXEC) of an exportable memory, and what the importer must repeat. */
int must_check vk_share_export(
	struct vk_memory *m, struct err *ret_err, int *ret_fd, struct vk_share_params *ret_params);

/*
 * The memory behind fd in this process, role as given. On success fd belongs to the driver; on
 * failure it is still the caller's. Every value is checked against the device before Vulkan sees
 * it (a peer chose them): -EINVAL; -ENOMEM or -EIO with the driver's error in ret_err.
 */
int must_check vk_share_import(struct vk_device *d, int fd, const struct vk_share_params *params,
	enum vk_memory_role role, const char *name, struct err *ret_err,
	struct vk_memory **ret_memory);

#endif
