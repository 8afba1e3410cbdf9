/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_PIPELINE_INTERNAL_H
#define VK_PIPELINE_INTERNAL_H

/* Inside vk/ only. */
#include <vulkan/vulkan_core.h>

#include "vk/pipeline.h"

enum { VK_PIPELINE_NAME_BYTES = 64 };

struct vk_pipeline {
	struct vk_device *d;
	VkPipelineLayout layout;
	VkPipeline pipeline;
	uint32_t n_push_bytes;
	char name[VK_PIPELINE_NAME_BYTES];
};

#endif
