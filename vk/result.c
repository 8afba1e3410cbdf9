/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/result.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "proto/util/err.h"
#include "vk/device.h"

static const struct {
	VkResult result;
	const char *name;
	int code;
} rows[] = {
#define ROW(result, code)             \
	{                             \
		result, #result, code \
	}
	ROW(VK_SUCCESS, 0),
	ROW(VK_NOT_READY, -EAGAIN),
	ROW(VK_TIMEOUT, -ETIMEDOUT),
	ROW(VK_INCOMPLETE, -EIO),
	ROW(VK_ERROR_OUT_OF_HOST_MEMORY, -ENOMEM),
	ROW(VK_ERROR_OUT_OF_DEVICE_MEMORY, -ENOMEM),
	ROW(VK_ERROR_INITIALIZATION_FAILED, -EIO),
	ROW(VK_ERROR_DEVICE_LOST, VK_DEVICE_LOST),
	ROW(VK_ERROR_MEMORY_MAP_FAILED, -ENOMEM),
	ROW(VK_ERROR_LAYER_NOT_PRESENT, -ENOENT),
	ROW(VK_ERROR_EXTENSION_NOT_PRESENT, -ENOTSUP),
	ROW(VK_ERROR_FEATURE_NOT_PRESENT, -ENOTSUP),
	ROW(VK_ERROR_INCOMPATIBLE_DRIVER, -ENOTSUP),
	ROW(VK_ERROR_TOO_MANY_OBJECTS, -ENOMEM),
	ROW(VK_ERROR_FRAGMENTED_POOL, -ENOMEM),
	ROW(VK_ERROR_UNKNOWN, -EIO),
	ROW(VK_ERROR_OUT_OF_POOL_MEMORY, -ENOMEM),
	ROW(VK_ERROR_INVALID_EXTERNAL_HANDLE, -EIO),
	ROW(VK_ERROR_FRAGMENTATION, -ENOMEM),
	ROW(VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS, -EIO),
	ROW(VK_ERROR_INVALID_SHADER_NV, -EIO),
#undef ROW
};

const char *vk_result_name(VkResult result)
{
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++)
		if (rows[i].result == result)
			return rows[i].name;
	return "VkResult";
}

int vk_result_code(VkResult result)
{
	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++)
		if (rows[i].result == result)
			return rows[i].code;
	return -EIO;
}

int vk_result_fail(VkResult result, struct err *ret_err, const char *format, ...)
{
	char where[ERR_TEXT_BYTES];
	va_list args;

	va_start(args, format);
	vsnprintf(where, sizeof(where), format, args);
	va_end(args);
	(void)err_set(ret_err, EIO, "%s: %s (%d)", where, vk_result_name(result), (int)result);
	return vk_result_code(result);
}
