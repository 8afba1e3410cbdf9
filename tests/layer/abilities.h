/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_ABILITIES_H
#define TESTS_LAYER_ABILITIES_H

/* What the device says that it can: extensions, features and limits, less or more than it has. */
#include <stdbool.h>
#include <vulkan/vulkan_core.h>

#include "tests/layer/dispatch-row.h"

struct dispatch_instance;

/* Is it one of those features that can be hidden? */
bool abilities_is_feature(const char *name);

/*
 * What the layer below is to be given: the extensions that it knows, [*ret_n], freed by the caller.
 * VK_ERROR_FEATURE_NOT_PRESENT, VK_ERROR_EXTENSION_NOT_PRESENT for what is hidden.
 */
VkResult abilities_translate(const struct dispatch_instance *i, VkPhysicalDevice physical,
	const VkDeviceCreateInfo *info, uint32_t *ret_n, const char ***ret_names);

extern const struct dispatch_row abilities_rows[];

#endif
