/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/type.h"

#include <stdbool.h>

enum {
	DEVICE = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
	VISIBLE = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT,
	COHERENT = VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
	CACHED = VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
	PLAIN = DEVICE | VISIBLE | COHERENT | CACHED,
};

/* A type as one role sees it. */
struct candidate {
	uint32_t index;
	uint32_t penalty; /* the smallest is best; then the largest heap, then the lowest index */
	uint64_t heap_bytes;
};

uint32_t vk_type_plain_bits(const VkPhysicalDeviceMemoryProperties *types)
{
	uint32_t bits = 0;

	for (uint32_t i = 0; i < types->memoryTypeCount; i++)
		if (!(types->memoryTypes[i].propertyFlags & ~(VkMemoryPropertyFlags)PLAIN))
			bits |= UINT32_C(1) << i;
	return bits;
}

static bool is_better(const struct candidate *a, const struct candidate *b)
{
	if (a->penalty != b->penalty)
		return a->penalty < b->penalty;
	if (a->heap_bytes != b->heap_bytes)
		return a->heap_bytes > b->heap_bytes;
	return a->index < b->index;
}

static bool is_device_role(enum vk_memory_role role)
{
	return role == VK_MEMORY_WEIGHTS || role == VK_MEMORY_KV || role == VK_MEMORY_SCRATCH;
}

/* The best type with all of `need` and none of `refuse`; each of `avoid` it has counts against. */
static bool find_best(const VkPhysicalDeviceMemoryProperties *types, uint32_t allowed,
	VkMemoryPropertyFlags need, VkMemoryPropertyFlags refuse, VkMemoryPropertyFlags avoid,
	VkMemoryPropertyFlags want, struct candidate *ret_best)
{
	struct candidate best = {.penalty = UINT32_MAX};

	for (uint32_t i = 0; i < types->memoryTypeCount; i++) {
		VkMemoryPropertyFlags flags = types->memoryTypes[i].propertyFlags;
		struct candidate c = {
			.index = i,
			/* What is avoided weighs more than what is wanted. */
			.penalty = 2 * !!(flags & avoid) + !!(want & ~flags),
			.heap_bytes = types->memoryHeaps[types->memoryTypes[i].heapIndex].size,
		};

		if (!(allowed >> i & 1) || (flags & need) != need || (flags & refuse))
			continue;
		if (best.penalty == UINT32_MAX || is_better(&c, &best))
			best = c;
	}
	*ret_best = best;
	return best.penalty != UINT32_MAX;
}

/* Only types of the largest device-local heap: a small BAR heap never stands in for it. */
static uint32_t keep_largest_heap(const VkPhysicalDeviceMemoryProperties *types, uint32_t allowed)
{
	uint64_t largest = 0;
	uint32_t kept = 0;

	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < types->memoryTypeCount; i++) {
			uint64_t n = types->memoryHeaps[types->memoryTypes[i].heapIndex].size;

			if (!(allowed >> i & 1) || !(types->memoryTypes[i].propertyFlags & DEVICE))
				continue;
			if (pass == 0 && n > largest)
				largest = n;
			if (pass == 1 && n == largest)
				kept |= UINT32_C(1) << i;
		}
	}
	return kept;
}

void vk_type_rank(const VkPhysicalDeviceMemoryProperties *types, uint32_t allowed,
	enum vk_memory_role role, struct vk_type_list *ret_list)
{
	struct vk_type_list list = {.n = 0};
	struct candidate c;

	allowed &= vk_type_plain_bits(types);
	if (is_device_role(role)) {
		uint32_t home = keep_largest_heap(types, allowed);

		if (find_best(types, home, DEVICE, 0, VISIBLE, 0, &c))
			list.indices[list.n++] = c.index;
	} else {
		/* Reading uncached memory on the CPU is slow: io wants CACHED, staging writes only.
		 */
		bool is_io = role == VK_MEMORY_IO;

		if (find_best(
			    types, allowed, VISIBLE | COHERENT, 0, DEVICE, is_io ? CACHED : 0, &c))
			list.indices[list.n++] = c.index;
	}
	list.n_home = list.n;
	/* Sessions may spill into host memory; weights have placements of their own for that. */
	if (role == VK_MEMORY_KV || role == VK_MEMORY_SCRATCH)
		if (find_best(types, allowed, 0, DEVICE, VISIBLE, 0, &c))
			list.indices[list.n++] = c.index;
	*ret_list = list;
}

uint32_t vk_type_find_import(const VkPhysicalDeviceMemoryProperties *types, uint32_t allowed)
{
	struct vk_type_list list;
	struct candidate c;

	allowed &= vk_type_plain_bits(types);
	vk_type_rank(types, allowed, VK_MEMORY_IO, &list);
	if (list.n > 0)
		return list.indices[0];
	return find_best(types, allowed, 0, 0, 0, 0, &c) ? c.index : VK_MAX_MEMORY_TYPES;
}
