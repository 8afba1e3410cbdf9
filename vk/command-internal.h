/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_COMMAND_INTERNAL_H
#define VK_COMMAND_INTERNAL_H

/* Inside vk/ only. */
#include <vulkan/vulkan_core.h>

#include "proto/util/err.h"
#include "vk/command.h"

enum vk_command_state {
	VK_COMMAND_EMPTY,
	VK_COMMAND_RECORDING,
	VK_COMMAND_FAILED, /* while recording; what follows is not recorded */
	VK_COMMAND_READY,
};

struct vk_command {
	struct vk_device *d;
	enum vk_queue queue;
	VkCommandPool pool;
	VkCommandBuffer buffer;
	VkQueryPool queries; /* [n_stamps] */
	uint32_t n_stamps;
	uint64_t *ticks; /* [n_stamps], room for vk_command_get_stamps */
	enum vk_command_state state;
	uint64_t ticket; /* of the last submission; 0: none */
	VkPipeline bound;
	uint32_t n_dispatches;
	int error; /* the first while recording */
	struct err err;
};

#endif
