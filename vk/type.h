/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_TYPE_H
#define VK_TYPE_H

/* Which memory types a role takes, in order. A pure function of the tables. Inside vk/ only. */
#include <stdint.h>
#include <vulkan/vulkan_core.h>

#include "vk/memory.h"

/* Type indices to try in order: the first n_home are where the role belongs, the rest a spill. */
struct vk_type_list {
	uint32_t n_home; /* 0 or 1 */
	uint32_t n;
	uint32_t indices[VK_MAX_MEMORY_TYPES];
};

/* allowed: the buffer's memoryTypeBits. The list is empty when nothing fits. */
void vk_type_rank(const VkPhysicalDeviceMemoryProperties *types, uint32_t allowed,
	enum vk_memory_role role, struct vk_type_list *ret_list);

/*
 * The type for an import whose driver offers several: what the host can see coherently, cached
 * before uncached, else any. VK_MAX_MEMORY_TYPES when none of them needs no feature.
 */
uint32_t vk_type_find_import(const VkPhysicalDeviceMemoryProperties *types, uint32_t allowed);

/*
 * Those of the device's types that need no feature to be used: protected, lazily allocated and
 * device-coherent types do.
 */
uint32_t vk_type_plain_bits(const VkPhysicalDeviceMemoryProperties *types);

#endif
