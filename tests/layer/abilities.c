/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/abilities.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/cleanup.h"
#include "tests/layer/chain.h"
#include "tests/layer/dispatch.h"

/* What vk/feature.c asks for, in every structure where an application may find it. */
static const struct {
	const char *name;
	VkStructureType type;
	size_t offset;
} features[] = {
#define ROW(type, member, name)                                                          \
	{                                                                                \
#name, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_##type, offsetof(member, name), \
	}
#define CORE(name)                                                          \
	{                                                                   \
#name, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,        \
			offsetof(VkPhysicalDeviceFeatures2, features.name), \
	}
#define V11(name) ROW(VULKAN_1_1_FEATURES, VkPhysicalDeviceVulkan11Features, name)
#define V12(name) ROW(VULKAN_1_2_FEATURES, VkPhysicalDeviceVulkan12Features, name)
#define V13(name) ROW(VULKAN_1_3_FEATURES, VkPhysicalDeviceVulkan13Features, name)
#define S16(name) ROW(16BIT_STORAGE_FEATURES, VkPhysicalDevice16BitStorageFeatures, name)
#define S8(name) ROW(8BIT_STORAGE_FEATURES, VkPhysicalDevice8BitStorageFeatures, name)
#define F16(name) ROW(SHADER_FLOAT16_INT8_FEATURES, VkPhysicalDeviceShaderFloat16Int8Features, name)
#define ADDRESS(name) \
	ROW(BUFFER_DEVICE_ADDRESS_FEATURES, VkPhysicalDeviceBufferDeviceAddressFeatures, name)
#define SIZE(name) \
	ROW(SUBGROUP_SIZE_CONTROL_FEATURES, VkPhysicalDeviceSubgroupSizeControlFeatures, name)
#define MODEL(name) \
	ROW(VULKAN_MEMORY_MODEL_FEATURES, VkPhysicalDeviceVulkanMemoryModelFeatures, name)
	CORE(shaderInt16),
	CORE(shaderInt64),
	V11(storageBuffer16BitAccess),
	S16(storageBuffer16BitAccess),
	V11(uniformAndStorageBuffer16BitAccess),
	S16(uniformAndStorageBuffer16BitAccess),
	V12(storageBuffer8BitAccess),
	S8(storageBuffer8BitAccess),
	V12(uniformAndStorageBuffer8BitAccess),
	S8(uniformAndStorageBuffer8BitAccess),
	V12(shaderFloat16),
	F16(shaderFloat16),
	V12(shaderInt8),
	F16(shaderInt8),
	V12(scalarBlockLayout),
	ROW(SCALAR_BLOCK_LAYOUT_FEATURES, VkPhysicalDeviceScalarBlockLayoutFeatures,
		scalarBlockLayout),
	V12(timelineSemaphore),
	ROW(TIMELINE_SEMAPHORE_FEATURES, VkPhysicalDeviceTimelineSemaphoreFeatures,
		timelineSemaphore),
	V12(bufferDeviceAddress),
	ADDRESS(bufferDeviceAddress),
	V12(shaderSubgroupExtendedTypes),
	ROW(SHADER_SUBGROUP_EXTENDED_TYPES_FEATURES,
		VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures, shaderSubgroupExtendedTypes),
	V12(vulkanMemoryModel),
	MODEL(vulkanMemoryModel),
	V12(vulkanMemoryModelDeviceScope),
	MODEL(vulkanMemoryModelDeviceScope),
	V13(synchronization2),
	ROW(SYNCHRONIZATION_2_FEATURES, VkPhysicalDeviceSynchronization2Features, synchronization2),
	V13(maintenance4),
	ROW(MAINTENANCE_4_FEATURES, VkPhysicalDeviceMaintenance4Features, maintenance4),
	V13(subgroupSizeControl),
	SIZE(subgroupSizeControl),
	V13(computeFullSubgroups),
	SIZE(computeFullSubgroups),
	V13(shaderIntegerDotProduct),
	ROW(SHADER_INTEGER_DOT_PRODUCT_FEATURES, VkPhysicalDeviceShaderIntegerDotProductFeatures,
		shaderIntegerDotProduct),
#undef ROW
#undef CORE
#undef V11
#undef V12
#undef V13
#undef S16
#undef S8
#undef F16
#undef ADDRESS
#undef SIZE
#undef MODEL
};

bool abilities_is_feature(const char *name)
{
	for (unsigned i = 0; i < ARRAY_SIZE(features); i++)
		if (!strcmp(features[i].name, name))
			return true;
	return false;
}

/* The value of feature row `at` in a structure that holds it. */
static VkBool32 *value_in(const void *structure, unsigned at)
{
	return (VkBool32 *)((uintptr_t)structure + features[at].offset);
}

static void VKAPI_PTR get_features2(VkPhysicalDevice physical, VkPhysicalDeviceFeatures2 *ret)
{
	struct dispatch_instance *i = dispatch_instance_of(physical);

	i->calls.GetPhysicalDeviceFeatures2(physical, ret);
	for (unsigned f = 0; f < ARRAY_SIZE(features); f++) {
		void *structure = chain_find_out(ret, features[f].type);

		if (structure && config_hides(&i->config, features[f].name))
			*value_in(structure, f) = VK_FALSE;
	}
}

static void VKAPI_PTR get_features(VkPhysicalDevice physical, VkPhysicalDeviceFeatures *ret)
{
	VkPhysicalDeviceFeatures2 features2 = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};

	get_features2(physical, &features2);
	*ret = features2.features;
}

/* Is something hidden asked for? */
static bool wants_hidden_feature(const struct config *c, const VkDeviceCreateInfo *info)
{
	VkPhysicalDeviceFeatures2 old = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};

	if (info->pEnabledFeatures)
		old.features = *info->pEnabledFeatures;
	for (unsigned f = 0; f < ARRAY_SIZE(features); f++) {
		const void *structure = chain_find(info->pNext, features[f].type);

		if (!structure && info->pEnabledFeatures)
			structure = chain_find(&old, features[f].type);
		if (structure && config_hides(c, features[f].name) && *value_in(structure, f))
			return true;
	}
	return false;
}

static bool is_listed(const VkExtensionProperties *list, uint32_t n, const char *name)
{
	for (uint32_t i = 0; i < n; i++)
		if (!strcmp(list[i].extensionName, name))
			return true;
	return false;
}

/* What lies below, [*ret_n] with room for two more; freed by the caller. */
static VkResult list_real(const struct dispatch_instance *i, VkPhysicalDevice physical,
	uint32_t *ret_n, VkExtensionProperties **ret_list)
{
	uint32_t n = 0;
	VkExtensionProperties *list = NULL;

	VkResult r = i->calls.EnumerateDeviceExtensionProperties(physical, NULL, &n, NULL);
	if (r != VK_SUCCESS)
		return r;
	list = calloc(n + 2, sizeof(*list));
	if (!list)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	r = i->calls.EnumerateDeviceExtensionProperties(physical, NULL, &n, list);
	if (r < 0) {
		free(list);
		return r;
	}
	*ret_n = n;
	*ret_list = list;
	return VK_SUCCESS;
}

/* Adds one that is simulated, unless the driver has it. */
static uint32_t add_extension(VkExtensionProperties *list, uint32_t n, bool is_offered,
	const char *name, uint32_t version)
{
	if (!is_offered || is_listed(list, n, name))
		return n;
	strcpy(list[n].extensionName, name);
	list[n].specVersion = version;
	return n + 1;
}

/* Besides what the variable names: a budget that the driver has is of its own heaps. */
static bool is_hidden(const struct config *c, const char *name)
{
	if (c->has_heaps && !c->has_budget && !strcmp(name, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME))
		return true;
	return config_hides(c, name);
}

static VkResult list_shown(const struct dispatch_instance *i, VkPhysicalDevice physical,
	uint32_t *ret_n, VkExtensionProperties **ret_list)
{
	const struct config *c = &i->config;
	VkExtensionProperties *list;
	uint32_t n = 0, n_kept = 0;

	VkResult r = list_real(i, physical, &n, &list);
	if (r != VK_SUCCESS)
		return r;
	n = add_extension(list, n, c->has_budget, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME,
		VK_EXT_MEMORY_BUDGET_SPEC_VERSION);
	n = add_extension(list, n, c->dma_buf, VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME,
		VK_EXT_EXTERNAL_MEMORY_DMA_BUF_SPEC_VERSION);
	for (uint32_t at = 0; at < n; at++)
		if (!is_hidden(c, list[at].extensionName))
			list[n_kept++] = list[at];
	*ret_n = n_kept;
	*ret_list = list;
	return VK_SUCCESS;
}

static VkResult VKAPI_PTR enumerate_extensions(VkPhysicalDevice physical, const char *layer,
	uint32_t *ret_n, VkExtensionProperties *ret_list)
{
	struct dispatch_instance *i = dispatch_instance_of(physical);
	_cleanup_(cleanup_free)
	VkExtensionProperties *list = NULL;
	uint32_t n = 0;

	if (layer)
		return i->calls.EnumerateDeviceExtensionProperties(
			physical, layer, ret_n, ret_list);
	VkResult r = list_shown(i, physical, &n, &list);
	if (r != VK_SUCCESS)
		return r;
	if (!ret_list) {
		*ret_n = n;
		return VK_SUCCESS;
	}
	if (*ret_n > n)
		*ret_n = n;
	memcpy(ret_list, list, *ret_n * sizeof(*list));
	return *ret_n < n ? VK_INCOMPLETE : VK_SUCCESS;
}

VkResult abilities_translate(const struct dispatch_instance *i, VkPhysicalDevice physical,
	const VkDeviceCreateInfo *info, uint32_t *ret_n, const char ***ret_names)
{
	_cleanup_(cleanup_free)
	VkExtensionProperties *shown = NULL, *real = NULL;
	_cleanup_(cleanup_free)
	const char **names = NULL;
	uint32_t n_shown = 0, n_real = 0, n = 0;
	bool has_host = false;

	if (wants_hidden_feature(&i->config, info))
		return VK_ERROR_FEATURE_NOT_PRESENT;
	VkResult r = list_shown(i, physical, &n_shown, &shown);
	if (r == VK_SUCCESS)
		r = list_real(i, physical, &n_real, &real);
	if (r != VK_SUCCESS)
		return r;
	names = calloc(info->enabledExtensionCount + 1, sizeof(*names));
	if (!names)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	for (uint32_t at = 0; at < info->enabledExtensionCount; at++) {
		const char *name = info->ppEnabledExtensionNames[at];

		if (!is_listed(shown, n_shown, name))
			return VK_ERROR_EXTENSION_NOT_PRESENT;
		if (is_listed(real, n_real, name))
			names[n++] = name;
		if (!strcmp(name, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME))
			has_host = true;
	}
	/* Plain memfds come in by this door. */
	if ((i->config.dma_buf & CONFIG_DMA_BUF_MEMFD) && !has_host)
		names[n++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
	*ret_n = n;
	*ret_names = TAKE_PTR(names);
	return VK_SUCCESS;
}

static uint64_t at_most(uint64_t value, uint64_t limit)
{
	return value < limit ? value : limit;
}

static void VKAPI_PTR get_properties2(VkPhysicalDevice physical, VkPhysicalDeviceProperties2 *ret)
{
	struct dispatch_instance *i = dispatch_instance_of(physical);
	const struct config *c = &i->config;

	i->calls.GetPhysicalDeviceProperties2(physical, ret);
	VkPhysicalDeviceVulkan11Properties *v11 =
		chain_find_out(ret->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES);
	VkPhysicalDeviceVulkan13Properties *v13 =
		chain_find_out(ret->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES);
	VkPhysicalDeviceMaintenance3Properties *m3 = chain_find_out(
		ret->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES);
	VkPhysicalDeviceMaintenance4Properties *m4 = chain_find_out(
		ret->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES);
	if (v11)
		v11->maxMemoryAllocationSize =
			at_most(v11->maxMemoryAllocationSize, c->max_alloc_bytes);
	if (m3)
		m3->maxMemoryAllocationSize =
			at_most(m3->maxMemoryAllocationSize, c->max_alloc_bytes);
	if (v13)
		v13->maxBufferSize = at_most(v13->maxBufferSize, c->max_buffer_bytes);
	if (m4)
		m4->maxBufferSize = at_most(m4->maxBufferSize, c->max_buffer_bytes);
}

const struct dispatch_row abilities_rows[] = {
	DISPATCH_ROW(vkEnumerateDeviceExtensionProperties, enumerate_extensions),
	DISPATCH_ROW(vkGetPhysicalDeviceFeatures, get_features),
	DISPATCH_ROW(vkGetPhysicalDeviceFeatures2, get_features2),
	DISPATCH_ROW(vkGetPhysicalDeviceFeatures2KHR, get_features2),
	DISPATCH_ROW(vkGetPhysicalDeviceProperties2, get_properties2),
	DISPATCH_ROW(vkGetPhysicalDeviceProperties2KHR, get_properties2),
	{0},
};
