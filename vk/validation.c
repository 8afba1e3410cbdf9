/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/validation.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "vk/result.h"

static int find_layer(struct err *ret_err, uint32_t *ret_api_version)
{
	_cleanup_(cleanup_free)
	VkLayerProperties *layers = NULL;
	uint32_t n = 0;

	VkResult r = vkEnumerateInstanceLayerProperties(&n, NULL);
	if (r == VK_SUCCESS && n > 0) {
		layers = calloc(n, sizeof(*layers));
		if (!layers)
			return err_set(ret_err, ENOMEM, "validation: no memory for %u layers", n);
		r = vkEnumerateInstanceLayerProperties(&n, layers);
	}
	if (r != VK_SUCCESS && r != VK_INCOMPLETE)
		return vk_result_fail(r, ret_err, "validation: list of Vulkan layers");
	for (uint32_t i = 0; i < n; i++)
		if (!strcmp(layers[i].layerName, VK_VALIDATION_LAYER)) {
			*ret_api_version = layers[i].specVersion;
			return 0;
		}
	return err_set(ret_err, ENOENT,
		"WEIGHTD_VALIDATION: %s is not installed (vulkan-validationlayers)",
		VK_VALIDATION_LAYER);
}

int vk_validation_get_mode(struct err *ret_err, enum vk_validation_mode *ret_mode)
{
	const char *text = getenv("WEIGHTD_VALIDATION");
	enum vk_validation_mode mode;
	uint32_t api_version;

	if (!text || !*text || !strcmp(text, "0"))
		mode = VK_VALIDATION_OFF;
	else if (!strcmp(text, "1"))
		mode = VK_VALIDATION_PRINT;
	else if (!strcmp(text, "abort"))
		mode = VK_VALIDATION_ABORT;
	else
		return err_set(ret_err, EINVAL,
			"WEIGHTD_VALIDATION: expected 0, 1 or abort, found \"%s\"", text);
	if (mode != VK_VALIDATION_OFF) {
		int r = find_layer(ret_err, &api_version);
		if (r)
			return r;
	}
	*ret_mode = mode;
	return 0;
}

bool vk_validation_knows(uint32_t api_version)
{
	enum vk_validation_mode mode;
	uint32_t layer_version = 0;
	struct err e = ERR_NULL;

	if (vk_validation_get_mode(&e, &mode))
		return false;
	return mode == VK_VALIDATION_OFF ||
	       (!find_layer(&e, &layer_version) && layer_version >= api_version);
}

static VkBool32 VKAPI_PTR on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
	VkDebugUtilsMessageTypeFlagsEXT types, const VkDebugUtilsMessengerCallbackDataEXT *data,
	void *userdata)
{
	(void)severity;
	(void)types;
	fprintf(stderr, "validation: %s\n", data->pMessage);
	if ((enum vk_validation_mode)(uintptr_t)userdata == VK_VALIDATION_ABORT)
		abort();
	return VK_FALSE;
}

void vk_validation_fill(enum vk_validation_mode mode, VkDebugUtilsMessengerCreateInfoEXT *ret_info)
{
	*ret_info = (VkDebugUtilsMessengerCreateInfoEXT){
		.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
		.messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
		/* The general type is the loader's and the driver's own: "found no drivers" and
		 * refused allocations, of which the caller is told and which he handles. */
		.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
		.pfnUserCallback = on_message,
		.pUserData = (void *)(uintptr_t)mode,
	};
}
