/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_RESULT_H
#define VK_RESULT_H

/* The one place where a VkResult becomes a code of this project. Inside vk/ only. */
#include <vulkan/vulkan_core.h>

#include "proto/util/cleanup.h"

struct err;

/* "VK_ERROR_DEVICE_LOST"; "VkResult" for one without a name here. Static. */
const char *vk_result_name(VkResult result);

/*
 * 0 for VK_SUCCESS, VK_DEVICE_LOST (vk/device.h), else -errno: -ENOMEM, -ETIMEDOUT, -EAGAIN
 * (VK_NOT_READY), -ENOTSUP, -ENOENT (no such layer), -EIO for the rest.
 */
int must_check vk_result_code(VkResult result);

/* The same for a result that is not VK_SUCCESS, and ret_err says "TEXT: NAME (NUMBER)". */
int must_check vk_result_fail(VkResult result, struct err *ret_err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
