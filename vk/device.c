/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "vk/adapter.h"
#include "vk/device-internal.h"
#include "vk/feature.h"
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

/* The first family that computes: on the GPUs known, it has the same compute rate as any other. */
static int find_queue_family(struct vk_device *d, struct err *ret_err)
{
	VkQueueFamilyProperties families[32];
	uint32_t n = ARRAY_SIZE(families);

	vkGetPhysicalDeviceQueueFamilyProperties(d->physical, &n, families);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t bits = families[i].timestampValidBits;

		if (!(families[i].queueFlags & VK_QUEUE_COMPUTE_BIT))
			continue;
		d->queue_family = i;
		d->stamp_mask = bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
		return 0;
	}
	return err_set(ret_err, ENOTSUP, "device %s: no queue computes", d->info.name);
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
	VkPhysicalDeviceVulkan12Properties v12 = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES, .pNext = &v13};
	VkPhysicalDeviceVulkan11Properties v11 = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES, .pNext = &v12};
	VkPhysicalDeviceProperties2 properties = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &v11};
	const VkPhysicalDeviceProperties *p = &properties.properties;
	struct vk_device_info *info = &d->info;

	vkGetPhysicalDeviceProperties2(d->physical, &properties);
	snprintf(info->name, sizeof(info->name), "%s", p->deviceName);
	snprintf(info->driver, sizeof(info->driver), "%.100s %.150s", v12.driverName,
		v12.driverInfo);
	memcpy(info->uuid, v11.deviceUUID, sizeof(info->uuid));
	memcpy(info->driver_uuid, v11.driverUUID, sizeof(info->driver_uuid));
	info->vendor_id = p->vendorID;
	info->is_software = p->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
	info->subgroup_size = v11.subgroupSize;
	info->max_push_bytes = p->limits.maxPushConstantsSize;
	info->max_shared_bytes = p->limits.maxComputeSharedMemorySize;
	info->max_alloc_bytes = min_u64(v11.maxMemoryAllocationSize, v13.maxBufferSize);
	info->import_align = set->has_host_import ? host.minImportedHostPointerAlignment : 0;
	info->has_memory_budget = set->has_memory_budget;

	memcpy(d->max_groups, p->limits.maxComputeWorkGroupCount, sizeof(d->max_groups));
	memcpy(d->max_group_size, p->limits.maxComputeWorkGroupSize, sizeof(d->max_group_size));
	d->max_invocations = p->limits.maxComputeWorkGroupInvocations;
	d->max_subgroups = v13.maxComputeWorkgroupSubgroups;
	d->can_require_size = set->v13.subgroupSizeControl &&
			      (v13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) &&
			      info->subgroup_size >= v13.minSubgroupSize &&
			      info->subgroup_size <= v13.maxSubgroupSize;
	d->can_require_full = d->can_require_size && set->v13.computeFullSubgroups;
	info->ns_per_tick = p->limits.timestampPeriod;
}

static void fill_export_info(struct vk_device *d)
{
	VkPhysicalDeviceExternalBufferInfo info = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
		.usage = VK_MEMORY_BUFFER_USAGE,
		.handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
	};
	VkExternalBufferProperties properties = {
		.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};

	vkGetPhysicalDeviceExternalBufferProperties(d->physical, &info, &properties);
	VkExternalMemoryFeatureFlags have =
		properties.externalMemoryProperties.externalMemoryFeatures;
	d->info.has_export_fd = (have & VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT) &&
				(have & VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT);
	d->export_is_dedicated = have & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT;
}

static int make_logical(struct vk_device *d, const struct vk_feature_set *set, struct err *ret_err)
{
	float priority = 1.0f;
	VkDeviceQueueCreateInfo queue = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
		.queueFamilyIndex = d->queue_family,
		.queueCount = 1,
		.pQueuePriorities = &priority,
	};
	VkDeviceCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
		.pNext = &set->core,
		.queueCreateInfoCount = 1,
		.pQueueCreateInfos = &queue,
		.enabledExtensionCount = set->n_extensions,
		.ppEnabledExtensionNames = set->extensions,
	};

	VkResult r = vkCreateDevice(d->physical, &info, NULL, &d->device);
	if (r != VK_SUCCESS) {
		d->device = VK_NULL_HANDLE;
		return vk_result_fail(r, ret_err, "device %s", d->info.name);
	}
	vkGetDeviceQueue(d->device, d->queue_family, 0, &d->queue);
	d->get_memory_fd = (PFN_vkGetMemoryFdKHR)vkGetDeviceProcAddr(d->device, "vkGetMemoryFdKHR");
	if (!d->get_memory_fd)
		return err_set(ret_err, ENOTSUP, "device %s: no vkGetMemoryFdKHR", d->info.name);
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

	VkResult r = vkCreateSemaphore(d->device, &semaphore, NULL, &d->timeline);
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
	fill_export_info(d);
	vkGetPhysicalDeviceMemoryProperties(d->physical, &d->types);
	d->info.n_heaps = d->types.memoryHeapCount;
	vk_device_query_heaps(d, d->info.heaps);
	r = find_queue_family(d, ret_err);
	if (r)
		return r;
	if (!d->stamp_mask)
		d->info.ns_per_tick = 0;
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
	int r = make_device(d, select, ret_err);
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
		vkDestroySemaphore(d->device, d->timeline, NULL);
		vkDestroyDevice(d->device, NULL);
	}
	if (d->messenger) {
		PFN_vkDestroyDebugUtilsMessengerEXT destroy =
			(PFN_vkDestroyDebugUtilsMessengerEXT)vkGetInstanceProcAddr(
				d->instance, "vkDestroyDebugUtilsMessengerEXT");
		destroy(d->instance, d->messenger, NULL);
	}
	if (d->instance)
		vkDestroyInstance(d->instance, NULL);
	free(d);
	return NULL;
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
