/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "vk/adapter.h"
#include "vk/device-internal.h"
#include "vk/driver.h"
#include "vk/feature.h"
#include "vk/matrix.h"
#include "vk/memory-internal.h"
#include "vk/result.h"
#include "vk/validation.h"

VkResult vk_device_note(struct vk_device *d, VkResult result)
{
	if (result == VK_ERROR_DEVICE_LOST)
		d->is_lost = true;
	return result;
}

void vk_device_name(struct vk_device *d, VkObjectType type, uint64_t handle, const char *name)
{
	VkDebugUtilsObjectNameInfoEXT info = {
		.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_OBJECT_NAME_INFO_EXT,
		.objectType = type,
		.objectHandle = handle,
		.pObjectName = name,
	};

	/* A name that could not be set only makes a message less readable. */
	if (d->set_name)
		(void)d->set_name(d->device, &info);
}

static int make_instance(struct vk_device *d, struct err *ret_err)
{
	enum vk_validation_mode mode;
	VkDebugUtilsMessengerCreateInfoEXT messenger;
	const char *layer = VK_VALIDATION_LAYER;
	const char *extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
	VkApplicationInfo app = {
		.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
		.pApplicationName = "weightd",
		.apiVersion = VK_API_VERSION_1_3,
	};
	VkInstanceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
		.pApplicationInfo = &app,
	};

	int code = vk_validation_get_mode(ret_err, &mode);
	if (code)
		return code;
	if (mode != VK_VALIDATION_OFF) {
		vk_validation_fill(mode, &messenger);
		info.pNext = &messenger;
		info.enabledLayerCount = 1;
		info.ppEnabledLayerNames = &layer;
		info.enabledExtensionCount = 1;
		info.ppEnabledExtensionNames = &extension;
	}
	VkResult r = vkCreateInstance(&info, NULL, &d->instance);
	if (r == VK_ERROR_INCOMPATIBLE_DRIVER) {
		d->instance = VK_NULL_HANDLE;
		return err_set(ret_err, ENODEV,
			"no Vulkan driver: none is installed or none loads; install "
			"mesa-vulkan-drivers or a GPU driver");
	}
	if (r != VK_SUCCESS) {
		d->instance = VK_NULL_HANDLE;
		return vk_result_fail(r, ret_err, "Vulkan instance");
	}
	if (mode == VK_VALIDATION_OFF)
		return 0;
	PFN_vkCreateDebugUtilsMessengerEXT create =
		(PFN_vkCreateDebugUtilsMessengerEXT)vkGetInstanceProcAddr(
			d->instance, "vkCreateDebugUtilsMessengerEXT");
	r = create ? create(d->instance, &messenger, NULL, &d->messenger)
		   : VK_ERROR_EXTENSION_NOT_PRESENT;
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "validation messenger");
	d->set_name = (PFN_vkSetDebugUtilsObjectNameEXT)vkGetInstanceProcAddr(
		d->instance, "vkSetDebugUtilsObjectNameEXT");
	return 0;
}

static int find_queues(struct vk_device *d, struct err *ret_err)
{
	VkQueueFamilyProperties families[32];
	const struct vk_queue_state *compute = &d->queues[VK_QUEUE_COMPUTE];
	const struct vk_queue_state *transfer = &d->queues[VK_QUEUE_TRANSFER];
	uint32_t n = ARRAY_SIZE(families);

	vkGetPhysicalDeviceQueueFamilyProperties(d->physical, &n, families);
	if (!vk_queue_choose(families, n, d->queues))
		return err_set(ret_err, ENOTSUP, "device %s: no queue computes", d->info.name);
	uint32_t bits = families[compute->family].timestampValidBits;
	d->stamp_mask = bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
	if (!d->stamp_mask)
		d->info.ns_per_tick = 0;
	d->info.has_transfer_queue =
		compute->family != transfer->family || compute->index != transfer->index;
	return 0;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* All that is asked of the physical device but its export ability. */
static void fill_info(struct vk_device *d, const struct vk_feature_set *set)
{
	VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
	VkPhysicalDeviceVulkan13Properties v13 = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES,
		.pNext = set->has_host_import ? &host : NULL};
	VkPhysicalDeviceShaderSMBuiltinsPropertiesNV sm = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV};
	VkPhysicalDeviceVulkan12Properties v12 = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES, .pNext = &v13};
	VkPhysicalDeviceVulkan11Properties v11 = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES, .pNext = &v12};
	VkPhysicalDeviceProperties2 properties = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &v11};
	const VkPhysicalDeviceProperties *p = &properties.properties;
	struct vk_device_info *info = &d->info;

	if (set->has_sm_count) {
		sm.pNext = v13.pNext;
		v13.pNext = &sm;
	}
	vkGetPhysicalDeviceProperties2(d->physical, &properties);
	snprintf(info->name, sizeof(info->name), "%s", p->deviceName);
	snprintf(info->driver, sizeof(info->driver), "%.100s %.150s", v12.driverName,
		v12.driverInfo);
	memcpy(info->uuid, v11.deviceUUID, sizeof(info->uuid));
	memcpy(info->driver_uuid, v11.driverUUID, sizeof(info->driver_uuid));
	info->vendor_id = p->vendorID;
	info->is_software = p->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
	info->subgroup_size = v11.subgroupSize;
	info->n_cores = sm.shaderSMCount;
	info->max_push_bytes = p->limits.maxPushConstantsSize;
	info->max_shared_bytes = p->limits.maxComputeSharedMemorySize;
	info->max_alloc_bytes = min_u64(v11.maxMemoryAllocationSize, v13.maxBufferSize);
	info->import_align = set->has_host_import ? host.minImportedHostPointerAlignment : 0;
	info->has_memory_budget = set->has_memory_budget;
	if (set->has_matrix)
		info->n_matrices = vk_matrix_list(d->instance, d->physical, info->matrices);

	memcpy(d->max_groups, p->limits.maxComputeWorkGroupCount, sizeof(d->max_groups));
	memcpy(d->max_group_size, p->limits.maxComputeWorkGroupSize, sizeof(d->max_group_size));
	info->max_invocations = p->limits.maxComputeWorkGroupInvocations;
	d->max_subgroups = v13.maxComputeWorkgroupSubgroups;
	d->can_require_size = set->v13.subgroupSizeControl &&
			      (v13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) &&
			      info->subgroup_size >= v13.minSubgroupSize &&
			      info->subgroup_size <= v13.maxSubgroupSize;
	d->can_require_full = d->can_require_size && set->v13.computeFullSubgroups;
	d->wants_statistics = set->has_statistics;
	info->ns_per_tick = p->limits.timestampPeriod;
}

/* What the driver claims of our buffers with one kind of memory from elsewhere. */
static VkExternalMemoryProperties get_claims(
	const struct vk_device *d, VkExternalMemoryHandleTypeFlagBits handle_bit)
{
	VkPhysicalDeviceExternalBufferInfo info = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
		.usage = VK_MEMORY_BUFFER_USAGE,
		.handleType = handle_bit,
	};
	VkExternalBufferProperties properties = {
		.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};

	vkGetPhysicalDeviceExternalBufferProperties(d->physical, &info, &properties);
	return properties.externalMemoryProperties;
}

static void fill_handle_info(struct vk_device *d, const struct vk_feature_set *set)
{
	const VkExternalMemoryFeatureFlags out = VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT;
	const VkExternalMemoryFeatureFlags in = VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
	const VkExternalMemoryHandleTypeFlags both =
		vk_memory_handle_bit(VK_HANDLE_OPAQUE_FD) | vk_memory_handle_bit(VK_HANDLE_DMA_BUF);
	VkExternalMemoryFeatureFlags *have = d->handle_features;
	VkExternalMemoryProperties opaque =
		get_claims(d, vk_memory_handle_bit(VK_HANDLE_OPAQUE_FD));
	VkExternalMemoryProperties dma_buf = {0};

	if (set->has_dma_buf)
		dma_buf = get_claims(d, vk_memory_handle_bit(VK_HANDLE_DMA_BUF));
	have[VK_HANDLE_OPAQUE_FD] = opaque.externalMemoryFeatures;
	have[VK_HANDLE_DMA_BUF] = dma_buf.externalMemoryFeatures;
	/* VkExportMemoryAllocateInfo: every handle type must be compatible with all others. */
	d->can_export_both =
		(opaque.compatibleHandleTypes & dma_buf.compatibleHandleTypes & both) == both;
	d->info.has_export_fd =
		(have[VK_HANDLE_OPAQUE_FD] & out) && (have[VK_HANDLE_OPAQUE_FD] & in);
	d->info.has_export_dma_buf = have[VK_HANDLE_DMA_BUF] & out;
	d->info.has_import_dma_buf = have[VK_HANDLE_DMA_BUF] & in;
	if (set->has_host_import)
		d->info.has_import_host =
			get_claims(d, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT)
				.externalMemoryFeatures &
			in;
}

static int make_logical(struct vk_device *d, const struct vk_feature_set *set, struct err *ret_err)
{
	const float priorities[2] = {1.0f, 1.0f};
	const struct vk_queue_state *compute = &d->queues[VK_QUEUE_COMPUTE];
	const struct vk_queue_state *transfer = &d->queues[VK_QUEUE_TRANSFER];
	bool is_one_family = compute->family == transfer->family;
	VkDeviceQueueCreateInfo queues[2] = {
		{.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
			.queueFamilyIndex = compute->family,
			.queueCount = is_one_family ? transfer->index + 1 : 1,
			.pQueuePriorities = priorities},
		{.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
			.queueFamilyIndex = transfer->family,
			.queueCount = 1,
			.pQueuePriorities = priorities},
	};
	VkDeviceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
		.pNext = &set->core,
		.queueCreateInfoCount = is_one_family ? 1 : 2,
		.pQueueCreateInfos = queues,
		.enabledExtensionCount = set->n_extensions,
		.ppEnabledExtensionNames = set->extensions,
	};

	VkResult r = vkCreateDevice(d->physical, &info, NULL, &d->device);
	if (r != VK_SUCCESS) {
		d->device = VK_NULL_HANDLE;
		return vk_result_fail(r, ret_err, "device %s", d->info.name);
	}
	for (int i = 0; i < VK_QUEUE_N; i++)
		vkGetDeviceQueue(
			d->device, d->queues[i].family, d->queues[i].index, &d->queues[i].queue);
	d->get_memory_fd = (PFN_vkGetMemoryFdKHR)vkGetDeviceProcAddr(d->device, "vkGetMemoryFdKHR");
	d->get_fd_properties = (PFN_vkGetMemoryFdPropertiesKHR)vkGetDeviceProcAddr(
		d->device, "vkGetMemoryFdPropertiesKHR");
	if (!d->get_memory_fd || !d->get_fd_properties)
		return err_set(ret_err, ENOTSUP, "device %s: no vkGetMemoryFdKHR", d->info.name);
	if (!set->has_host_import)
		return 0;
	d->get_pointer_properties = (PFN_vkGetMemoryHostPointerPropertiesEXT)vkGetDeviceProcAddr(
		d->device, "vkGetMemoryHostPointerPropertiesEXT");
	if (!d->get_pointer_properties)
		return err_set(ret_err, ENOTSUP,
			"device %s: no vkGetMemoryHostPointerPropertiesEXT", d->info.name);
	return 0;
}

static int make_objects(struct vk_device *d, struct err *ret_err)
{
	VkSemaphoreTypeCreateInfo timeline = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
		.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
	};
	VkSemaphoreCreateInfo semaphore = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &timeline};
	VkPipelineCacheCreateInfo cache = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};

	VkResult r = VK_SUCCESS;
	for (int i = 0; i < VK_QUEUE_N && r == VK_SUCCESS; i++)
		r = vkCreateSemaphore(d->device, &semaphore, NULL, &d->queues[i].timeline);
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "timeline semaphore");
	r = vkCreatePipelineCache(d->device, &cache, NULL, &d->cache);
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "pipeline cache");
	return 0;
}

static int make_device(struct vk_device *d, const char *select, struct err *ret_err)
{
	struct vk_adapter_choice choice;
	struct vk_feature_set set;

	int r = vk_adapter_parse(select, ret_err, &choice);
	if (!r)
		r = make_instance(d, ret_err);
	if (!r)
		r = vk_adapter_find(d->instance, &choice, ret_err, &d->physical);
	if (!r)
		r = vk_feature_choose(d->physical, ret_err, &set);
	if (r)
		return r;
	fill_info(d, &set);
	fill_handle_info(d, &set);
	vkGetPhysicalDeviceMemoryProperties(d->physical, &d->types);
	d->info.n_heaps = d->types.memoryHeapCount;
	vk_device_query_heaps(d, d->info.heaps);
	r = find_queues(d, ret_err);
	if (!r)
		r = make_logical(d, &set, ret_err);
	if (!r)
		r = make_objects(d, ret_err);
	return r;
}

int vk_device_new(const char *select, struct err *ret_err, struct vk_device **ret_device)
{
	struct vk_device *d = calloc(1, sizeof(*d));

	if (!d)
		return err_set(ret_err, ENOMEM, "device: no memory");
	pthread_mutex_init(&d->books.lock, NULL);
	int r = make_device(d, select, ret_err);
	/* Failed or not, the driver was loaded, and is still. */
	vk_driver_hold();
	if (r) {
		vk_device_free(d);
		return r;
	}
	*ret_device = d;
	return 0;
}

struct vk_device *vk_device_free(struct vk_device *d)
{
	if (!d)
		return NULL;
	if (d->device) {
		/* After a loss it fails at once, and there is nothing to wait for. */
		(void)vkDeviceWaitIdle(d->device);
		vkDestroyPipelineCache(d->device, d->cache, NULL);
		for (int i = 0; i < VK_QUEUE_N; i++)
			vkDestroySemaphore(d->device, d->queues[i].timeline, NULL);
		vkDestroyDevice(d->device, NULL);
	}
	if (d->messenger) {
		PFN_vkDestroyDebugUtilsMessengerEXT destroy =
			(PFN_vkDestroyDebugUtilsMessengerEXT)vkGetInstanceProcAddr(
				d->instance, "vkDestroyDebugUtilsMessengerEXT");
		destroy(d->instance, d->messenger, NULL);
	}
	/* What a refusal broke may lie in the library: the next device was seen to work after the
	 * loader had unloaded it. */
	if (d->is_poisoned)
		vk_driver_release();
	if (d->instance)
		vkDestroyInstance(d->instance, NULL);
	pthread_mutex_destroy(&d->books.lock);
	free(d);
	return NULL;
}

bool vk_device_is_concurrent(const struct vk_device *d)
{
	return d->queues[VK_QUEUE_COMPUTE].family != d->queues[VK_QUEUE_TRANSFER].family;
}

bool vk_device_is_poisoned(const struct vk_device *d)
{
	return d->is_poisoned;
}

const struct vk_device_info *vk_device_get_info(const struct vk_device *d)
{
	return &d->info;
}

void vk_device_query_heaps(
	const struct vk_device *d, struct vk_device_heap ret_heaps[VK_DEVICE_MAX_HEAPS])
{
	VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
	VkPhysicalDeviceMemoryProperties2 properties = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
		.pNext = d->info.has_memory_budget ? &budget : NULL};

	vkGetPhysicalDeviceMemoryProperties2(d->physical, &properties);
	for (uint32_t i = 0; i < d->info.n_heaps; i++) {
		const VkMemoryHeap *h = &properties.memoryProperties.memoryHeaps[i];

		ret_heaps[i] = (struct vk_device_heap){
			.n_bytes = h->size,
			.device_local = h->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT,
			.budget_bytes = d->info.has_memory_budget ? budget.heapBudget[i] : h->size,
			.usage_bytes = d->info.has_memory_budget ? budget.heapUsage[i] : 0,
		};
	}
}
