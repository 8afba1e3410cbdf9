/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/layer/chain.h"
#include "tests/layer/dispatch.h"
#include "tests/layer/dma-buf.h"
#include "tests/layer/request.h"

/* The driver's own allocation, asked for in its own words. */
static VkResult call_driver(struct dispatch_device *d, const struct request *r,
	const VkAllocationCallbacks *allocator, struct memory *m)
{
	const struct config *c = &d->instance->config;
	VkMemoryAllocateInfo info = *r->info;

	info.memoryTypeIndex = heaps_real_type(&d->physical->heaps, info.memoryTypeIndex);
	if (!c->dma_buf)
		return d->calls.AllocateMemory(d->handle, &info, allocator, &m->handle);
	void *chain = chain_copy(r->info->pNext);
	VkExportMemoryAllocateInfo *export =
		chain_find_out(chain, VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO);
	VkResult result;

	info.pNext = chain;
	if (export)
		export->handleTypes = dma_buf_real_types(c, export->handleTypes);
	if (r->import_type == VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT)
		result = dma_buf_import(d, r, &info, chain, allocator, &m->handle, &m->map);
	else
		result = d->calls.AllocateMemory(d->handle, &info, allocator, &m->handle);
	chain_free(chain);
	return result;
}

/* Fills m; on failure *ret_reason says who refused. */
static VkResult allocate(struct dispatch_device *d, const struct request *r,
	const VkAllocationCallbacks *allocator, struct memory *m, const char **ret_reason)
{
	struct heaps *h = &d->physical->heaps;

	*ret_reason = refusal_judge(&d->instance->refusal, r);
	if (*ret_reason)
		return VK_ERROR_OUT_OF_DEVICE_MEMORY;
	/* Imported memory is somebody else's: on the drivers measured it is not in heapUsage. */
	m->is_charged = !r->import_type;
	if (m->is_charged && !heaps_take(h, m->heap, m->n_bytes)) {
		*ret_reason = "heap";
		return VK_ERROR_OUT_OF_DEVICE_MEMORY;
	}
	VkResult result = call_driver(d, r, allocator, m);
	if (result != VK_SUCCESS) {
		if (m->is_charged)
			heaps_give(h, m->heap, m->n_bytes);
		*ret_reason = "driver";
	}
	return result;
}

static VkResult VKAPI_PTR allocate_memory(VkDevice device, const VkMemoryAllocateInfo *info,
	const VkAllocationCallbacks *allocator, VkDeviceMemory *ret_memory)
{
	struct dispatch_device *d = dispatch_device_of(device);
	const VkPhysicalDeviceMemoryProperties *shown = &d->physical->heaps.memory;
	struct memory *m = calloc(1, sizeof(*m));
	struct request r;
	const char *reason;
	uint64_t id = 0;

	if (!m)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	if (info->memoryTypeIndex >= shown->memoryTypeCount) {
		fprintf(stderr, "weightd layer: vkAllocateMemory: type %u of %u\n",
			info->memoryTypeIndex, shown->memoryTypeCount);
		abort();
	}
	m->n_bytes = info->allocationSize;
	m->type_index = info->memoryTypeIndex;
	m->heap = shown->memoryTypes[info->memoryTypeIndex].heapIndex;
	/* Before the call: its descriptor is the driver's afterwards. */
	request_read(info, &r);
	uint32_t heap = m->heap;
	VkResult result = allocate(d, &r, allocator, m, &reason);
	if (result == VK_SUCCESS) {
		*ret_memory = m->handle;
		id = memory_list_add(&d->memories, m);
	} else {
		free(m);
	}
	log_allocate(&d->instance->log, &r, id, heap, result, reason);
	return result;
}

/* The driver's part of m is gone. */
static void forget(struct dispatch_device *d, struct memory *m)
{
	if (m->map)
		munmap(m->map, m->n_bytes);
	if (m->is_charged)
		heaps_give(&d->physical->heaps, m->heap, m->n_bytes);
	free(m);
}

void memory_forget(struct dispatch_device *d)
{
	while (d->memories.head)
		forget(d, memory_list_take(&d->memories, d->memories.head->handle));
	memory_list_fini(&d->memories);
}

static void VKAPI_PTR free_memory(
	VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *allocator)
{
	struct dispatch_device *d = dispatch_device_of(device);
	/* First out of the list: another thread may get the same handle at once. */
	struct memory *m = memory_list_take(&d->memories, memory);

	d->calls.FreeMemory(device, memory, allocator);
	if (!m)
		return;
	log_free(&d->instance->log, m);
	forget(d, m);
}

static VkResult VKAPI_PTR map_memory(VkDevice device, VkDeviceMemory memory, VkDeviceSize offset,
	VkDeviceSize n_bytes, VkMemoryMapFlags flags, void **ret_pointer)
{
	struct dispatch_device *d = dispatch_device_of(device);
	const VkPhysicalDeviceMemoryProperties *shown = &d->physical->heaps.memory;
	uint32_t type = memory_list_find_type(&d->memories, memory);

	/* The driver would map it, and nobody would notice before a real GPU does. */
	if (type >= shown->memoryTypeCount ||
		!(shown->memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT)) {
		fprintf(stderr,
			"weightd layer: vkMapMemory of memory that no host pointer reaches"
			" (type %u)\n",
			type);
		abort();
	}
	VkResult result = d->calls.MapMemory(device, memory, offset, n_bytes, flags, ret_pointer);
	if (result == VK_SUCCESS)
		log_map(&d->instance->log, type, shown->memoryTypes[type].heapIndex);
	return result;
}

const struct dispatch_row memory_rows[] = {
	DISPATCH_ROW(vkAllocateMemory, allocate_memory),
	DISPATCH_ROW(vkFreeMemory, free_memory),
	DISPATCH_ROW(vkMapMemory, map_memory),
	{0},
};
