/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_ADAPTER_H
#define VK_ADAPTER_H

/* Which physical device a user's text means. Inside vk/ only. */
#include <stdint.h>
#include <vulkan/vulkan_core.h>

#include "proto/util/cleanup.h"

struct err;

enum vk_adapter_kind {
	VK_ADAPTER_AUTO,
	VK_ADAPTER_SOFTWARE,
	VK_ADAPTER_INDEX,
	VK_ADAPTER_UUID,
};

struct vk_adapter_choice {
	enum vk_adapter_kind kind;
	uint32_t index;
	uint8_t uuid[VK_UUID_SIZE];
};

/* The texts of vk_device_new; -EINVAL for any other. */
int must_check vk_adapter_parse(
	const char *text, struct err *ret_err, struct vk_adapter_choice *ret_choice);

/* The first device that fits; -ENODEV with a list of those there are. */
int must_check vk_adapter_find(VkInstance instance, const struct vk_adapter_choice *choice,
	struct err *ret_err, VkPhysicalDevice *ret_physical);

#endif
