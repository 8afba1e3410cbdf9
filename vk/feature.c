/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/feature.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/err.h"
#include "vk/result.h"
#include "vk/statistics.h"
#include "vk/validation.h"

#define SUBGROUP_OPERATIONS (VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT)

static const struct {
	const char *name;
	size_t offset; /* of a VkBool32 in struct vk_feature_set */
	bool is_required;
} features[] = {
#define NEED(part, name)                                                \
	{                                                               \
#name, offsetof(struct vk_feature_set, part.name), true \
	}
#define MAY(part, name)                                                  \
	{                                                                \
#name, offsetof(struct vk_feature_set, part.name), false \
	}
	MAY(core.features, shaderInt16),
	MAY(core.features, shaderInt64),
	NEED(v11, storageBuffer16BitAccess),
	MAY(v11, uniformAndStorageBuffer16BitAccess),
	NEED(v12, storageBuffer8BitAccess),
	MAY(v12, uniformAndStorageBuffer8BitAccess),
	NEED(v12, shaderFloat16),
	NEED(v12, shaderInt8),
	MAY(v12, scalarBlockLayout),
	NEED(v12, timelineSemaphore),
	NEED(v12, bufferDeviceAddress),
	MAY(v12, shaderSubgroupExtendedTypes),
	MAY(v12, vulkanMemoryModel),
	MAY(v12, vulkanMemoryModelDeviceScope),
	NEED(v13, synchronization2),
	NEED(v13, maintenance4),
	MAY(v13, subgroupSizeControl),
	MAY(v13, computeFullSubgroups),
	NEED(v13, shaderIntegerDotProduct),
#undef NEED
#undef MAY
};

static const struct {
	const char *name;
	size_t has_offset; /* of a bool in struct vk_feature_set; 0: required */
} extensions[] = {
	{VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME, 0},
	{VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME,
		offsetof(struct vk_feature_set, has_host_import)},
	{VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME,
		offsetof(struct vk_feature_set, has_dma_buf)},
	{VK_EXT_MEMORY_BUDGET_EXTENSION_NAME, offsetof(struct vk_feature_set, has_memory_budget)},
	{VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME, offsetof(struct vk_feature_set, has_matrix)},
	{VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME, offsetof(struct vk_feature_set, has_sm_count)},
	{VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME,
		offsetof(struct vk_feature_set, has_statistics)},
};
_Static_assert(ARRAY_SIZE(extensions) <= VK_FEATURE_MAX_EXTENSIONS, "extensions fit");

/* A growing list of names, "a, b, c". */
struct lack {
	char text[ERR_TEXT_BYTES];
};

static void add_lack(struct lack *l, const char *name)
{
	size_t at = strlen(l->text);

	snprintf(l->text + at, sizeof(l->text) - at, "%s%s", at ? ", " : "", name);
}

static void init_set(struct vk_feature_set *s)
{
	*s = (struct vk_feature_set){
		.core = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &s->v11},
		.v11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
			.pNext = &s->v12},
		.v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
			.pNext = &s->v13},
		.v13 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES},
	};
}

static void choose_features(VkPhysicalDevice physical, struct lack *l, struct vk_feature_set *s)
{
	struct vk_feature_set have;

	init_set(&have);
	vkGetPhysicalDeviceFeatures2(physical, &have.core);
	for (unsigned i = 0; i < ARRAY_SIZE(features); i++) {
		VkBool32 value;

		memcpy(&value, (char *)&have + features[i].offset, sizeof(value));
		memcpy((char *)s + features[i].offset, &value, sizeof(value));
		if (!value && features[i].is_required)
			add_lack(l, features[i].name);
	}
}

static int choose_extensions(
	VkPhysicalDevice physical, struct lack *l, struct err *ret_err, struct vk_feature_set *s)
{
	_cleanup_(cleanup_free)
	VkExtensionProperties *have = NULL;
	uint32_t n = 0;

	VkResult r = vkEnumerateDeviceExtensionProperties(physical, NULL, &n, NULL);
	if (r == VK_SUCCESS && n > 0) {
		have = calloc(n, sizeof(*have));
		if (!have)
			return err_set(ret_err, ENOMEM, "device: no memory for %u extensions", n);
		r = vkEnumerateDeviceExtensionProperties(physical, NULL, &n, have);
	}
	if (r != VK_SUCCESS && r != VK_INCOMPLETE)
		return vk_result_fail(r, ret_err, "device: list of extensions");
	for (unsigned i = 0; i < ARRAY_SIZE(extensions); i++) {
		uint32_t at = 0;

		while (at < n && strcmp(have[at].extensionName, extensions[i].name))
			at++;
		if (at < n)
			s->extensions[s->n_extensions++] = extensions[i].name;
		if (extensions[i].has_offset)
			*(bool *)((char *)s + extensions[i].has_offset) = at < n;
		else if (at == n)
			add_lack(l, extensions[i].name);
	}
	return 0;
}

static void leave_out(struct vk_feature_set *s, const char *extension)
{
	for (uint32_t i = 0; i < s->n_extensions; i++)
		if (!strcmp(s->extensions[i], extension))
			s->extensions[i] = s->extensions[--s->n_extensions];
}

/*
 * Matrices need the extension's feature and the memory model that its SPIR-V declares. A validation
 * layer older than the extension would call every use of it an error.
 */
static void choose_matrix(VkPhysicalDevice physical, struct vk_feature_set *s)
{
	VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR};
	VkPhysicalDeviceFeatures2 have = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &matrix};

	if (!s->has_matrix)
		return;
	if (vk_validation_knows(VK_MATRIX_API_VERSION))
		vkGetPhysicalDeviceFeatures2(physical, &have);
	s->has_matrix = matrix.cooperativeMatrix && s->v12.vulkanMemoryModel;
	if (s->has_matrix) {
		s->matrix = (VkPhysicalDeviceCooperativeMatrixFeaturesKHR){
			.sType = matrix.sType, .cooperativeMatrix = VK_TRUE};
		s->v13.pNext = &s->matrix;
		return;
	}
	leave_out(s, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
}

static void choose_statistics(struct vk_feature_set *s)
{
	s->has_statistics = s->has_statistics && vk_statistics_is_wanted();
	if (!s->has_statistics) {
		leave_out(s, VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
		return;
	}
	/* The feature is required of whoever has the extension. */
	s->statistics = (VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR){
		.sType =
			VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
		.pNext = s->v13.pNext,
		.pipelineExecutableInfo = VK_TRUE};
	s->v13.pNext = &s->statistics;
}

int vk_feature_choose(
	VkPhysicalDevice physical, struct err *ret_err, struct vk_feature_set *ret_set)
{
	VkPhysicalDeviceVulkan11Properties v11 = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES};
	VkPhysicalDeviceProperties2 properties = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
	const VkPhysicalDeviceProperties *p = &properties.properties;
	struct lack lack = {.text = ""};

	init_set(ret_set);
	/* Structures of 1.3 must not be shown to an older device. */
	vkGetPhysicalDeviceProperties2(physical, &properties);
	if (p->apiVersion < VK_API_VERSION_1_3)
		return err_set(ret_err, ENOTSUP, "device %s: expected Vulkan 1.3, found %u.%u.%u",
			p->deviceName, VK_API_VERSION_MAJOR(p->apiVersion),
			VK_API_VERSION_MINOR(p->apiVersion), VK_API_VERSION_PATCH(p->apiVersion));
	choose_features(physical, &lack, ret_set);
	int r = choose_extensions(physical, &lack, ret_err, ret_set);
	if (r)
		return r;
	choose_matrix(physical, ret_set);
	choose_statistics(ret_set);
	properties.pNext = &v11;
	vkGetPhysicalDeviceProperties2(physical, &properties);
	if ((v11.subgroupSupportedOperations & SUBGROUP_OPERATIONS) != SUBGROUP_OPERATIONS ||
		!(v11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT))
		add_lack(&lack, "subgroup shuffle in compute shaders");
	if (*lack.text)
		return err_set(ret_err, ENOTSUP, "device %s: its driver lacks %s", p->deviceName,
			lack.text);
	return 0;
}
