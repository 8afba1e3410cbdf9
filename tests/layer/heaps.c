/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/heaps.h"

#include <stdlib.h>

#include "tests/layer/chain.h"
#include "tests/layer/config.h"
#include "tests/layer/dispatch.h"

void heaps_init(
	struct heaps *h, const struct config *config, const VkPhysicalDeviceMemoryProperties *real)
{
	*h = (struct heaps){
		.config = config,
		.memory = config->has_heaps ? config->memory : *real,
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};
}

void heaps_fini(struct heaps *h)
{
	pthread_mutex_destroy(&h->lock);
}

bool heaps_take(struct heaps *h, uint32_t heap, uint64_t n_bytes)
{
	bool fits;

	pthread_mutex_lock(&h->lock);
	fits = !h->config->has_heaps ||
	       (h->used_bytes[heap] <= h->memory.memoryHeaps[heap].size &&
		       n_bytes <= h->memory.memoryHeaps[heap].size - h->used_bytes[heap]);
	if (fits)
		h->used_bytes[heap] += n_bytes;
	pthread_mutex_unlock(&h->lock);
	return fits;
}

void heaps_give(struct heaps *h, uint32_t heap, uint64_t n_bytes)
{
	pthread_mutex_lock(&h->lock);
	h->used_bytes[heap] -= n_bytes;
	pthread_mutex_unlock(&h->lock);
}

uint32_t heaps_real_type(const struct heaps *h, uint32_t type)
{
	return h->config->has_heaps ? 0 : type;
}

static uint32_t all_bits(const struct heaps *h)
{
	return (uint32_t)((UINT64_C(1) << h->memory.memoryTypeCount) - 1);
}

uint32_t heaps_shown_bits(const struct heaps *h, uint32_t real_bits)
{
	if (!h->config->has_heaps)
		return real_bits;
	return real_bits & 1 ? all_bits(h) : 0;
}

uint32_t heaps_shown_host_bits(const struct heaps *h, uint32_t real_bits)
{
	uint32_t bits = 0;

	if (!h->config->has_heaps || !(real_bits & 1))
		return heaps_shown_bits(h, real_bits);
	for (uint32_t i = 0; i < h->memory.memoryTypeCount; i++)
		if (!(h->memory.memoryTypes[i].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT))
			bits |= UINT32_C(1) << i;
	return bits ? bits : all_bits(h);
}

static uint64_t budget_now(const struct heaps *h, uint32_t heap)
{
	const struct config_budget *b = &h->config->budgets[heap];
	uint64_t n_bytes = b->n_bytes == UINT64_MAX ? h->memory.memoryHeaps[heap].size : b->n_bytes;
	uint64_t gone;

	if (__builtin_mul_overflow(b->step_bytes, h->n_queries, &gone) || gone > n_bytes)
		return 0;
	return n_bytes - gone;
}

static void fill_budget(struct heaps *h, VkPhysicalDeviceMemoryBudgetPropertiesEXT *ret)
{
	pthread_mutex_lock(&h->lock);
	for (uint32_t i = 0; i < VK_MAX_MEMORY_HEAPS; i++) {
		bool is_there = i < h->memory.memoryHeapCount;

		ret->heapBudget[i] = is_there ? budget_now(h, i) : 0;
		ret->heapUsage[i] = is_there ? h->used_bytes[i] : 0;
	}
	h->n_queries++;
	pthread_mutex_unlock(&h->lock);
}

static void VKAPI_PTR get_memory_properties(
	VkPhysicalDevice physical, VkPhysicalDeviceMemoryProperties *ret)
{
	*ret = dispatch_physical_of(physical)->heaps.memory;
}

static void VKAPI_PTR get_memory_properties2(
	VkPhysicalDevice physical, VkPhysicalDeviceMemoryProperties2 *ret)
{
	struct dispatch_instance *i = dispatch_instance_of(physical);
	struct heaps *h = &dispatch_physical_of(physical)->heaps;
	VkPhysicalDeviceMemoryBudgetPropertiesEXT *budget = chain_find_out(
		ret->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT);

	i->calls.GetPhysicalDeviceMemoryProperties2(physical, ret);
	ret->memoryProperties = h->memory;
	if (budget && i->config.has_budget)
		fill_budget(h, budget);
}

const struct dispatch_row heaps_rows[] = {
	DISPATCH_ROW(vkGetPhysicalDeviceMemoryProperties, get_memory_properties),
	DISPATCH_ROW(vkGetPhysicalDeviceMemoryProperties2, get_memory_properties2),
	DISPATCH_ROW(vkGetPhysicalDeviceMemoryProperties2KHR, get_memory_properties2),
	{0},
};
