/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_LAYER_H
#define TESTS_LAYER_LAYER_H

/* The one symbol of the library; the manifest tells the loader its name. */
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan_core.h>

/* Not VK_LAYER_EXPORT, which vk_layer.h defines in some versions only. */
__attribute__((visibility("default"))) VKAPI_ATTR VkResult VKAPI_CALL layer_negotiate(
	VkNegotiateLayerInterface *interface);

#endif
