/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_STATISTICS_H
#define VK_STATISTICS_H

/*
 * What the driver's compiler says of each pipeline (registers, spills, ...), to stderr, when the
 * environment has WEIGHTD_PIPELINE_STATISTICS=1 and the driver
 * VK_KHR_pipeline_executable_properties: for who writes kernels. Inside vk/ only.
 */
#include <stdbool.h>
#include <vulkan/vulkan_core.h>

bool vk_statistics_is_wanted(void);

/* Of a pipeline that was made with VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR. */
void vk_statistics_print(VkDevice device, VkPipeline pipeline, const char *name);

#endif
