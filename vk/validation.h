/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_VALIDATION_H
#define VK_VALIDATION_H

/* The Khronos validation layer, when WEIGHTD_VALIDATION asks for it. Inside vk/ only. */
#include <stdbool.h>
#include <vulkan/vulkan_core.h>

#include "proto/util/cleanup.h"

struct err;

#define VK_VALIDATION_LAYER "VK_LAYER_KHRONOS_validation"

enum vk_validation_mode {
	VK_VALIDATION_OFF,
	VK_VALIDATION_PRINT,
	VK_VALIDATION_ABORT, /* the first error ends the process */
};

/*
 * Reads the environment: unset, empty or "0", "1", "abort". -EINVAL for another value, -ENOENT when
 * the layer was asked for and is not installed: a check that cannot run is not passed over.
 */
int must_check vk_validation_get_mode(struct err *ret_err, enum vk_validation_mode *ret_mode);

/*
 * May what came with this version of the API be used? Always where validation is off; else where
 * the layer is not older.
 */
bool vk_validation_knows(uint32_t api_version);

/* For VkInstanceCreateInfo.pNext and for the messenger: errors go to stderr. */
void vk_validation_fill(enum vk_validation_mode mode, VkDebugUtilsMessengerCreateInfoEXT *ret_info);

#endif
