/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_DEVICE_INTERNAL_H
#define VK_DEVICE_INTERNAL_H

/* Inside vk/ only. */
#include <pthread.h>
#include <stdatomic.h>
#include <vulkan/vulkan_core.h>

#include "vk/device.h"
#include "vk/memory.h"
#include "vk/queue-internal.h"

/* All memory there is, while several threads make it. */
struct vk_memory_books {
	pthread_mutex_t lock;
	struct vk_memory_counter roles[VK_MEMORY_N_ROLES];
	struct vk_memory_counter heaps[VK_MEMORY_N_ROLES][VK_DEVICE_MAX_HEAPS];
	struct vk_memory *first; /* what was made here, the last first; imports are not in it */
};

struct vk_device {
	VkInstance instance;
	VkDebugUtilsMessengerEXT messenger;
	VkPhysicalDevice physical;
	VkDevice device;
	struct vk_queue_state queues[VK_QUEUE_N];
	atomic_bool is_lost;     /* once set, every call says VK_DEVICE_LOST */
	atomic_bool is_poisoned; /* once set, no memory is made or imported */

	VkPipelineCache cache;
	uint64_t cache_bytes; /* of the cache as it is on disk */

	VkPhysicalDeviceMemoryProperties types;
	/* What descriptors of a kind can do, and whether they want a dedicated allocation. */
	VkExternalMemoryFeatureFlags handle_features[VK_HANDLE_N];
	bool can_export_both;   /* one memory as a dma-buf and as an opaque descriptor */
	uint32_t max_groups[3]; /* maxComputeWorkGroupCount */
	uint32_t max_group_size[3];
	uint32_t max_subgroups; /* of a workgroup with a required subgroup size */
	bool can_require_size;  /* a compute pipeline may require info.subgroup_size */
	bool can_require_full;  /* and full subgroups */
	bool wants_statistics;  /* of pipelines, see vk/statistics.h */
	uint64_t stamp_mask;    /* valid bits of a timestamp */

	PFN_vkGetMemoryFdKHR get_memory_fd;
	PFN_vkGetMemoryFdPropertiesKHR get_fd_properties;
	PFN_vkGetMemoryHostPointerPropertiesEXT get_pointer_properties; /* may be NULL */
	PFN_vkSetDebugUtilsObjectNameEXT set_name; /* NULL without validation */

	struct vk_device_info info;
	struct vk_memory_books books;
};

/* Remembers a loss; returns the result. */
VkResult vk_device_note(struct vk_device *d, VkResult result);

/* Are the two lines of work of different families? Then all buffers are for both. */
bool vk_device_is_concurrent(const struct vk_device *d);

/* Names an object in the validation layer's messages; nothing without it. */
void vk_device_name(struct vk_device *d, VkObjectType type, uint64_t handle, const char *name);

#endif
