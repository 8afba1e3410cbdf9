/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/dma-buf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/layer/chain.h"
#include "tests/layer/dispatch.h"
#include "tests/layer/request.h"

#define DMA_BUF VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT
#define OPAQUE VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT

VkExternalMemoryHandleTypeFlags dma_buf_real_types(
	const struct config *c, VkExternalMemoryHandleTypeFlags types)
{
	if (!c->dma_buf || !(types & DMA_BUF))
		return types;
	return (types & ~(VkExternalMemoryHandleTypeFlags)DMA_BUF) | OPAQUE;
}

/* The chain's import in another form: opaque, or by pointer. */
static void turn_import(void *chain, int fd, void *pointer)
{
	VkBaseOutStructure *s = chain_find_out(chain, VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR);
	VkBaseOutStructure *next;

	if (!s)
		s = chain_find_out(chain, VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT);
	next = s->pNext;
	if (pointer)
		*(VkImportMemoryHostPointerInfoEXT *)s = (VkImportMemoryHostPointerInfoEXT){
			.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
			.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
			.pHostPointer = pointer};
	else
		*(VkImportMemoryFdInfoKHR *)s = (VkImportMemoryFdInfoKHR){
			.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
			.handleType = OPAQUE,
			.fd = fd};
	s->pNext = next;
}

static VkResult import_pages(struct dispatch_device *d, const struct request *r,
	const VkMemoryAllocateInfo *info, void *chain, const VkAllocationCallbacks *allocator,
	VkDeviceMemory *ret_memory, void **ret_map)
{
	struct stat st;

	if (fstat(r->fd, &st) < 0 || (uint64_t)st.st_size < info->allocationSize)
		return VK_ERROR_INVALID_EXTERNAL_HANDLE;
	void *map = mmap(NULL, info->allocationSize, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
	if (map == MAP_FAILED)
		return VK_ERROR_INVALID_EXTERNAL_HANDLE;
	turn_import(chain, -1, map);
	VkResult result = d->calls.AllocateMemory(d->handle, info, allocator, ret_memory);
	if (result != VK_SUCCESS) {
		munmap(map, info->allocationSize);
		return result;
	}
	close(r->fd);
	*ret_map = map;
	return VK_SUCCESS;
}

VkResult dma_buf_import(struct dispatch_device *d, const struct request *r,
	const VkMemoryAllocateInfo *info, void *chain, const VkAllocationCallbacks *allocator,
	VkDeviceMemory *ret_memory, void **ret_map)
{
	uint32_t ways = d->instance->config.dma_buf;

	/* The software driver reads a header from it; a pipe would hold it for ever. */
	if (!(ways & CONFIG_DMA_BUF_IMPORT) || r->mapping.kind != MAPPING_MEMFD)
		return VK_ERROR_INVALID_EXTERNAL_HANDLE;
	/* A duplicate, as the software driver closes even what it refuses. */
	int duplicate = fcntl(r->fd, F_DUPFD_CLOEXEC, 0);
	if (duplicate < 0)
		return VK_ERROR_TOO_MANY_OBJECTS;
	turn_import(chain, duplicate, NULL);
	VkResult result = d->calls.AllocateMemory(d->handle, info, allocator, ret_memory);
	if (result == VK_SUCCESS) {
		close(r->fd);
		return result;
	}
	/* Only the driver knows its own; what it refuses is a plain memfd. */
	if (!(ways & CONFIG_DMA_BUF_MEMFD))
		return result;
	return import_pages(d, r, info, chain, allocator, ret_memory, ret_map);
}

static void VKAPI_PTR get_external_properties(VkPhysicalDevice physical,
	const VkPhysicalDeviceExternalBufferInfo *info, VkExternalBufferProperties *ret)
{
	struct dispatch_instance *i = dispatch_instance_of(physical);
	const struct config *c = &i->config;
	VkExternalMemoryProperties *p = &ret->externalMemoryProperties;
	VkPhysicalDeviceExternalBufferInfo copy = *info;
	bool is_fd = info->handleType == OPAQUE || info->handleType == DMA_BUF;
	const char *extension = is_fd ? VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME
				      : VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;

	copy.handleType = dma_buf_real_types(c, info->handleType);
	i->calls.GetPhysicalDeviceExternalBufferProperties(physical, &copy, ret);
	/* Without the extension there is no such handle. */
	if (config_hides(c, extension)) {
		*p = (VkExternalMemoryProperties){0};
		return;
	}
	if (!c->dma_buf || !is_fd)
		return;
	p->compatibleHandleTypes =
		c->dma_buf & CONFIG_DMA_BUF_APART ? info->handleType : OPAQUE | DMA_BUF;
	if (info->handleType == OPAQUE)
		return;
	p->exportFromImportedHandleTypes = 0;
	p->externalMemoryFeatures =
		(c->dma_buf & CONFIG_DMA_BUF_EXPORT ? VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT
						    : 0) |
		(c->dma_buf & CONFIG_DMA_BUF_IMPORT ? VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT
						    : 0);
}

static VkResult VKAPI_PTR get_fd(VkDevice device, const VkMemoryGetFdInfoKHR *info, int *ret_fd)
{
	struct dispatch_device *d = dispatch_device_of(device);
	VkMemoryGetFdInfoKHR copy = *info;

	copy.handleType = dma_buf_real_types(&d->instance->config, info->handleType);
	VkResult r = d->calls.GetMemoryFdKHR(device, &copy, ret_fd);
	if (r == VK_SUCCESS)
		log_export(&d->instance->log, memory_list_find_id(&d->memories, info->memory),
			info->handleType, *ret_fd);
	return r;
}

static VkResult VKAPI_PTR get_fd_properties(VkDevice device,
	VkExternalMemoryHandleTypeFlagBits type, int fd, VkMemoryFdPropertiesKHR *ret)
{
	struct dispatch_device *d = dispatch_device_of(device);
	struct mapping m;

	if (!d->instance->config.dma_buf || type != DMA_BUF)
		return d->calls.GetMemoryFdPropertiesKHR(device, type, fd, ret);
	if (mapping_of_fd(fd, &m) < 0 || m.kind != MAPPING_MEMFD)
		return VK_ERROR_INVALID_EXTERNAL_HANDLE;
	/* Who exported it, and from which type, its descriptor does not say. */
	ret->memoryTypeBits = heaps_shown_bits(&d->physical->heaps, 1);
	return VK_SUCCESS;
}

const struct dispatch_row dma_buf_rows[] = {
	DISPATCH_ROW(vkGetPhysicalDeviceExternalBufferProperties, get_external_properties),
	DISPATCH_ROW(vkGetPhysicalDeviceExternalBufferPropertiesKHR, get_external_properties),
	DISPATCH_ROW(vkGetMemoryFdKHR, get_fd),
	DISPATCH_ROW(vkGetMemoryFdPropertiesKHR, get_fd_properties),
	{0},
};
