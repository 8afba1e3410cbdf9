/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/buffer.h"

#include "tests/layer/chain.h"
#include "tests/layer/dispatch.h"
#include "tests/layer/dma-buf.h"

/* What info means to the driver; chain_free(ret_info->pNext) unless it is info's own. */
static void translate(const struct dispatch_device *d, const VkBufferCreateInfo *info,
	VkBufferCreateInfo *ret_info)
{
	const struct config *c = &d->instance->config;

	*ret_info = *info;
	/* All families are one underneath, and a list of one is not concurrent. */
	if (c->n_families) {
		ret_info->sharingMode = VK_SHARING_MODE_EXCLUSIVE;
		ret_info->queueFamilyIndexCount = 0;
	}
	if (!c->dma_buf)
		return;
	ret_info->pNext = chain_copy(info->pNext);
	VkExternalMemoryBufferCreateInfo *external = chain_find_out(
		(void *)ret_info->pNext, VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO);
	if (external)
		external->handleTypes = dma_buf_real_types(c, external->handleTypes);
}

static void end(const VkBufferCreateInfo *info, VkBufferCreateInfo *translated)
{
	if (translated->pNext != info->pNext)
		chain_free((void *)translated->pNext);
}

static VkResult VKAPI_PTR create_buffer(VkDevice device, const VkBufferCreateInfo *info,
	const VkAllocationCallbacks *allocator, VkBuffer *ret_buffer)
{
	struct dispatch_device *d = dispatch_device_of(device);
	VkBufferCreateInfo translated;

	if (info->size > d->instance->config.max_buffer_bytes)
		return VK_ERROR_OUT_OF_DEVICE_MEMORY;
	translate(d, info, &translated);
	VkResult r = d->calls.CreateBuffer(device, &translated, allocator, ret_buffer);
	end(info, &translated);
	return r;
}

static void show_types(const struct dispatch_device *d, VkMemoryRequirements *ret)
{
	ret->memoryTypeBits = heaps_shown_bits(&d->physical->heaps, ret->memoryTypeBits);
}

static void VKAPI_PTR get_requirements(VkDevice device, VkBuffer buffer, VkMemoryRequirements *ret)
{
	struct dispatch_device *d = dispatch_device_of(device);

	d->calls.GetBufferMemoryRequirements(device, buffer, ret);
	show_types(d, ret);
}

static void VKAPI_PTR get_requirements2(
	VkDevice device, const VkBufferMemoryRequirementsInfo2 *info, VkMemoryRequirements2 *ret)
{
	struct dispatch_device *d = dispatch_device_of(device);

	d->calls.GetBufferMemoryRequirements2(device, info, ret);
	show_types(d, &ret->memoryRequirements);
}

static void VKAPI_PTR get_device_requirements(
	VkDevice device, const VkDeviceBufferMemoryRequirements *info, VkMemoryRequirements2 *ret)
{
	struct dispatch_device *d = dispatch_device_of(device);
	VkDeviceBufferMemoryRequirements copy = *info;
	VkBufferCreateInfo translated;

	translate(d, info->pCreateInfo, &translated);
	copy.pCreateInfo = &translated;
	d->calls.GetDeviceBufferMemoryRequirements(device, &copy, ret);
	end(info->pCreateInfo, &translated);
	show_types(d, &ret->memoryRequirements);
}

static VkResult VKAPI_PTR get_pointer_properties(VkDevice device,
	VkExternalMemoryHandleTypeFlagBits type, const void *pointer,
	VkMemoryHostPointerPropertiesEXT *ret)
{
	struct dispatch_device *d = dispatch_device_of(device);

	/* It warns of no refusal, as on NVIDIA. */
	VkResult r = d->calls.GetMemoryHostPointerPropertiesEXT(device, type, pointer, ret);
	if (r == VK_SUCCESS)
		ret->memoryTypeBits =
			heaps_shown_host_bits(&d->physical->heaps, ret->memoryTypeBits);
	return r;
}

const struct dispatch_row buffer_rows[] = {
	DISPATCH_ROW(vkCreateBuffer, create_buffer),
	DISPATCH_ROW(vkGetBufferMemoryRequirements, get_requirements),
	DISPATCH_ROW(vkGetBufferMemoryRequirements2, get_requirements2),
	DISPATCH_ROW(vkGetBufferMemoryRequirements2KHR, get_requirements2),
	DISPATCH_ROW(vkGetDeviceBufferMemoryRequirements, get_device_requirements),
	DISPATCH_ROW(vkGetDeviceBufferMemoryRequirementsKHR, get_device_requirements),
	DISPATCH_ROW(vkGetMemoryHostPointerPropertiesEXT, get_pointer_properties),
	{0},
};
