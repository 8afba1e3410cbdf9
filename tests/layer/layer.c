/* SPDX-License-Identifier: Apache-2.0 */
/*
 * VK_LAYER_WEIGHTD_simulate: a Vulkan layer that makes the software driver behave like the GPUs
 * that placement code is written for. Without its variables it changes nothing.
 *
 * Use:
 *   VK_ADD_LAYER_PATH=BUILD/tests/layer
 *   VK_INSTANCE_LAYERS=VK_LAYER_WEIGHTD_simulate_validated
 * which is VK_LAYER_KHRONOS_validation above this layer: validation sees the simulated device, and
 * WEIGHTD_VALIDATION makes its errors heard. It has a name of its own because the loader (1.3.239)
 * orders the layers of VK_INSTANCE_LAYERS by the directories where it finds them, not as they are
 * named, and puts those that a program enables itself below them. VK_LAYER_WEIGHTD_simulate alone
 * in the variable therefore has validation below, where it sees what the layer makes of the calls.
 * That is valid too, but for buffers in memfds imported as dma-bufs.
 *
 * The variables are read by every vkCreateInstance. One that makes no sense fails it, with a line
 * on stderr. Sizes are in bytes or end in K, M or G. Counts are of one instance.
 *
 * WEIGHTD_LAYER_LOG=FILE
 *   Appends a line of JSON for each vkAllocateMemory, vkFreeMemory, vkMapMemory (of a type that has
 *   a host pointer) and vkGetMemoryFdKHR:
 *     {"call":"allocate","pid":P,"id":I,"size":S,"type":T,"heap":H,"next":[STRUCTURE...],
 *      "flags":F,"dedicated":B,"export":[HANDLE...],"import":{...},"result":"VK_...","code":C,
 *      "reason":WHO}
 *     {"call":"free","pid":P,"id":I,"size":S,"type":T,"heap":H}
 *     {"call":"map","pid":P,"type":T,"heap":H}
 *     {"call":"export","pid":P,"id":I,"handle":HANDLE,"inode":N}
 *   id numbers the allocations of a process, 0 for one that failed; type and heap are the
 *   simulated ones. export, import and reason are there only where they apply. import has handle
 *   (opaque-fd, dma-buf, host-allocation, host-mapped-foreign), kind, path and inode; and fd, or
 *   pointer, offset (of it in the file), access (rw, ro) and areas (how many mappings the range
 *   spans; the other fields are of the first). reason says who failed it: unmapped, poison,
 *   fail-alloc, max-alloc, refuse, heap, driver.
 * WEIGHTD_LAYER_REFUSE=KIND[-ro|-rw]{,...}
 *   vkAllocateMemory refuses host pointers into such mappings with VK_ERROR_OUT_OF_DEVICE_MEMORY:
 *   anon, private (writable MAP_PRIVATE of a file), memfd, tmpfs, file (any other, and a deleted
 *   one), all. And dma-buf (no -ro, -rw): descriptors that come in as such. NVIDIA 580 is
 * file,tmpfs-ro,memfd-ro; amdgpu is file,tmpfs,memfd. WEIGHTD_LAYER_REFUSE_FROM=N Of the imports
 * that match, the first N - 1 are let through. WEIGHTD_LAYER_POISON=1 After the first refusal every
 * allocation of the instance fails. WEIGHTD_LAYER_FAIL_ALLOC=N or N+ The Nth vkAllocateMemory
 * fails; with + every one from it on. WEIGHTD_LAYER_HEAPS=TYPE{,TYPE}:SIZE{;...} The memory heaps,
 * each with its types: device, host (visible and coherent), cached, joined by
 *   +, or none. "device:8G;device+host:256M;host,host+cached:16G" is a GPU with a small BAR. A
 *   full heap fails with VK_ERROR_OUT_OF_DEVICE_MEMORY; vkMapMemory of a type without host ends
 *   the process. The account is of one instance, and imports are not in it. Images keep the
 *   driver's idea of their types.
 * WEIGHTD_LAYER_BUDGET=SIZE[-STEP]{;...}
 *   Offers VK_EXT_memory_budget: the budget of each heap in turn, less STEP with every query that
 *   asked for it. full is the heap's size, as for heaps that are not named. Without it heaps that
 *   are simulated have no budget, even where the driver's own (Mesa 25) have one.
 * WEIGHTD_LAYER_HIDE=NAME{,...}
 *   Extensions, and features that weightd asks for, that the device is not to have.
 * WEIGHTD_LAYER_MAX_ALLOC=SIZE, WEIGHTD_LAYER_MAX_BUFFER=SIZE
 *   maxMemoryAllocationSize and maxBufferSize; what is larger fails.
 * WEIGHTD_LAYER_DMA_BUF=export,import,memfd,apart
 *   Offers VK_EXT_external_memory_dma_buf, with opaque descriptors underneath. With memfd, plain
 *   memfds are imported too. With apart, no memory is exported both as a dma-buf and as an opaque
 *   descriptor.
 * WEIGHTD_LAYER_QUEUES=FLAGS:COUNT{;...}
 *   The queue families, with flags of graphics, compute and transfer joined by +:
 *   "graphics+compute+transfer:1;transfer:2". All run on the driver's one queue, in an order that
 *   their semaphores allow. Not simulated: sparse binding, swapchains, semaphores shared with
 *   others, events with families in their barriers.
 */
#include "tests/layer/layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "tests/layer/abilities.h"
#include "tests/layer/buffer.h"
#include "tests/layer/chain.h"
#include "tests/layer/dispatch.h"
#include "tests/layer/dma-buf.h"
#include "tests/layer/memory.h"
#include "tests/layer/queues.h"
#include "tests/layer/submit.h"

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_instance_proc(
	VkInstance instance, const char *name);
static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_device_proc(VkDevice device, const char *name);

/* The loader's link to the next layer; moved on, as the next expects its own there. */
static VkLayerInstanceLink *next_instance_link(const VkInstanceCreateInfo *info)
{
	const void *next = info->pNext;
	VkLayerInstanceCreateInfo *s;

	while ((s = (void *)chain_find(next, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO)) &&
		s->function != VK_LAYER_LINK_INFO)
		next = s->pNext;
	if (!s)
		return NULL;
	VkLayerInstanceLink *link = s->u.pLayerInfo;
	s->u.pLayerInfo = link->pNext;
	return link;
}

static VkLayerDeviceLink *next_device_link(const VkDeviceCreateInfo *info)
{
	const void *next = info->pNext;
	VkLayerDeviceCreateInfo *s;

	while ((s = (void *)chain_find(next, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO)) &&
		s->function != VK_LAYER_LINK_INFO)
		next = s->pNext;
	if (!s)
		return NULL;
	VkLayerDeviceLink *link = s->u.pLayerInfo;
	s->u.pLayerInfo = link->pNext;
	return link;
}

static VkResult prepare_instance(struct dispatch_instance *i)
{
	struct err e = ERR_NULL;

	if (config_read(&e, &i->config) < 0) {
		fprintf(stderr, "weightd layer: %s\n", e.text);
		return VK_ERROR_INITIALIZATION_FAILED;
	}
	if (log_open(i->config.log_path, &i->log) < 0) {
		fprintf(stderr, "weightd layer: %s: %m\n", i->config.log_path);
		return VK_ERROR_INITIALIZATION_FAILED;
	}
	return VK_SUCCESS;
}

static VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
	const VkAllocationCallbacks *allocator, VkInstance *ret_instance)
{
	VkLayerInstanceLink *link = next_instance_link(info);
	struct dispatch_instance *i = calloc(1, sizeof(*i));

	if (!link || !i) {
		free(i);
		return link ? VK_ERROR_OUT_OF_HOST_MEMORY : VK_ERROR_INITIALIZATION_FAILED;
	}
	i->get_proc = link->pfnNextGetInstanceProcAddr;
	i->log.fd = -1;
	VkResult r = prepare_instance(i);
	PFN_vkCreateInstance create =
		(PFN_vkCreateInstance)i->get_proc(VK_NULL_HANDLE, "vkCreateInstance");
	/* The loader hands an object of its own down in *ret_instance. */
	if (r == VK_SUCCESS)
		r = create ? create(info, allocator, ret_instance) : VK_ERROR_INITIALIZATION_FAILED;
	if (r != VK_SUCCESS) {
		log_close(&i->log);
		free(i);
		return r;
	}
	i->handle = *ret_instance;
	refusal_init(&i->refusal, &i->config);
	dispatch_add_instance(i);
	return VK_SUCCESS;
}

static void VKAPI_CALL destroy_instance(VkInstance instance, const VkAllocationCallbacks *allocator)
{
	if (!instance)
		return;
	struct dispatch_instance *i = dispatch_instance_of(instance);

	dispatch_remove_instance(i);
	i->calls.DestroyInstance(instance, allocator);
	refusal_fini(&i->refusal);
	log_close(&i->log);
	free(i);
}

/* Can what is asked for be simulated on this driver? */
static VkResult check_device(const struct dispatch_instance *i, VkPhysicalDevice physical,
	const VkDeviceCreateInfo *info)
{
	VkPhysicalDeviceMemoryProperties real;

	i->calls.GetPhysicalDeviceMemoryProperties(physical, &real);
	if (i->config.has_heaps && real.memoryTypeCount != 1) {
		fprintf(stderr,
			"weightd layer: WEIGHTD_LAYER_HEAPS: a driver of one memory type is"
			" wanted, this one has %u\n",
			real.memoryTypeCount);
		return VK_ERROR_INITIALIZATION_FAILED;
	}
	return i->config.n_families ? queues_check(&i->config, info) : VK_SUCCESS;
}

/* The next layer's device, asked for in words that the driver knows. */
static VkResult call_next(struct dispatch_instance *i, VkPhysicalDevice physical,
	const VkDeviceCreateInfo *info, const VkAllocationCallbacks *allocator,
	struct dispatch_device *d, VkDevice *ret_device)
{
	_cleanup_(cleanup_free)
	const char **extensions = NULL;
	VkLayerDeviceLink *link = next_device_link(info);
	VkDeviceCreateInfo translated = *info;
	const float priority = 1.0f;
	const VkDeviceQueueCreateInfo queue = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
		.queueCount = 1,
		.pQueuePriorities = &priority,
	};

	if (!link)
		return VK_ERROR_INITIALIZATION_FAILED;
	VkResult r = abilities_translate(
		i, physical, info, &translated.enabledExtensionCount, &extensions);
	if (r != VK_SUCCESS)
		return r;
	translated.ppEnabledExtensionNames = extensions;
	if (i->config.n_families) {
		translated.queueCreateInfoCount = 1;
		translated.pQueueCreateInfos = &queue;
	}
	PFN_vkCreateDevice create =
		(PFN_vkCreateDevice)link->pfnNextGetInstanceProcAddr(i->handle, "vkCreateDevice");
	d->get_proc = link->pfnNextGetDeviceProcAddr;
	/* As with instances, *ret_device is an object of the loader's. */
	r = create ? create(physical, &translated, allocator, ret_device)
		   : VK_ERROR_INITIALIZATION_FAILED;
	if (r == VK_SUCCESS)
		d->handle = *ret_device;
	return r;
}

static void VKAPI_CALL destroy_device(VkDevice device, const VkAllocationCallbacks *allocator)
{
	if (!device)
		return;
	struct dispatch_device *d = dispatch_device_of(device);

	dispatch_remove_device(d);
	d->calls.DestroyDevice(device, allocator);
	memory_forget(d);
	queues_free(d->queues);
	free(d);
}

static VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
	const VkAllocationCallbacks *allocator, VkDevice *ret_device)
{
	struct dispatch_instance *i = dispatch_instance_of(physical);
	struct dispatch_device *d = calloc(1, sizeof(*d));

	if (!d)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	VkResult r = check_device(i, physical, info);
	if (r == VK_SUCCESS)
		r = call_next(i, physical, info, allocator, d, ret_device);
	if (r != VK_SUCCESS) {
		free(d);
		return r;
	}
	d->instance = i;
	d->physical = dispatch_physical_of(physical);
	memory_list_init(&d->memories);
	dispatch_add_device(d);
	if (i->config.n_families) {
		d->queues = queues_new(d, info);
		if (!d->queues) {
			destroy_device(d->handle, allocator);
			return VK_ERROR_OUT_OF_HOST_MEMORY;
		}
	}
	return VK_SUCCESS;
}

static const struct dispatch_row instance_rows[] = {
	DISPATCH_ROW(vkGetInstanceProcAddr, get_instance_proc),
	DISPATCH_ROW(vkCreateInstance, create_instance),
	DISPATCH_ROW(vkDestroyInstance, destroy_instance),
	DISPATCH_ROW(vkCreateDevice, create_device),
	{0},
};

static const struct dispatch_row device_rows[] = {
	DISPATCH_ROW(vkGetDeviceProcAddr, get_device_proc),
	DISPATCH_ROW(vkDestroyDevice, destroy_device),
	{0},
};

static PFN_vkVoidFunction find_row(const struct dispatch_row *rows, const char *name)
{
	while (rows->name && strcmp(rows->name, name))
		rows++;
	return rows->call;
}

/* What the layer answers in the next one's place; NULL: nothing. */
static PFN_vkVoidFunction find(const struct config *c, const char *name)
{
	static const struct dispatch_row *const tables[] = {
		device_rows,
		abilities_rows,
		buffer_rows,
		dma_buf_rows,
		heaps_rows,
		memory_rows,
		queues_family_rows,
		queues_rows,
		submit_rows,
	};
	unsigned n = ARRAY_SIZE(tables) - (c->n_families ? 0 : 2);
	PFN_vkVoidFunction f = NULL;

	for (unsigned t = 0; t < n && !f; t++)
		f = find_row(tables[t], name);
	return f;
}

static PFN_vkVoidFunction VKAPI_CALL get_instance_proc(VkInstance instance, const char *name)
{
	PFN_vkVoidFunction f = find_row(instance_rows, name);

	if (f || !instance)
		return f;
	const struct dispatch_instance *i = dispatch_instance_of(instance);
	PFN_vkVoidFunction next = i->get_proc(instance, name);
	f = next ? find(&i->config, name) : NULL;
	return f ? f : next;
}

static PFN_vkVoidFunction VKAPI_CALL get_device_proc(VkDevice device, const char *name)
{
	const struct dispatch_device *d = dispatch_device_of(device);
	PFN_vkVoidFunction next = d->get_proc(device, name);
	/* A call of an extension that is not enabled is not there with the layer either. */
	PFN_vkVoidFunction f = next ? find(&d->instance->config, name) : NULL;

	return f ? f : next;
}

VKAPI_ATTR VkResult VKAPI_CALL layer_negotiate(VkNegotiateLayerInterface *interface)
{
	if (interface->sType != LAYER_NEGOTIATE_INTERFACE_STRUCT ||
		interface->loaderLayerInterfaceVersion < CURRENT_LOADER_LAYER_INTERFACE_VERSION)
		return VK_ERROR_INITIALIZATION_FAILED;
	interface->loaderLayerInterfaceVersion = CURRENT_LOADER_LAYER_INTERFACE_VERSION;
	interface->pfnGetInstanceProcAddr = get_instance_proc;
	interface->pfnGetDeviceProcAddr = get_device_proc;
	interface->pfnGetPhysicalDeviceProcAddr = NULL;
	return VK_SUCCESS;
}
