/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_FEATURE_H
#define VK_FEATURE_H

/* What is asked of a device when it is created. Inside vk/ only. */
#include <stdbool.h>
#include <stdint.h>
#include <vulkan/vulkan_core.h>

#include "proto/util/cleanup.h"
#include "vk/matrix.h"

struct err;

enum { VK_FEATURE_MAX_EXTENSIONS = 8 };

/* core heads a pNext chain through the others: the set must not be moved once filled. */
struct vk_feature_set {
	VkPhysicalDeviceFeatures2 core;
	VkPhysicalDeviceVulkan11Features v11;
	VkPhysicalDeviceVulkan12Features v12;
	VkPhysicalDeviceVulkan13Features v13;
	VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix; /* in the chain with has_matrix */
	VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR
		statistics; /* with has_statistics */
	uint32_t n_extensions;
	const char *extensions[VK_FEATURE_MAX_EXTENSIONS];
	bool has_memory_budget;
	bool has_host_import;
	bool has_dma_buf;
	bool has_sm_count;   /* VK_NV_shader_sm_builtins, of which only a property is used */
	bool has_statistics; /* and they are wanted */
	bool has_matrix;     /* and the features that kernels with matrices need */
};

/*
 * Fills the set with all that weightd uses and the device has. -ENOTSUP names the device and every
 * required thing that it lacks.
 */
int must_check vk_feature_choose(
	VkPhysicalDevice physical, struct err *ret_err, struct vk_feature_set *ret_set);

#endif
