/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_DISPATCH_ROW_H
#define TESTS_LAYER_DISPATCH_ROW_H

/* An intercepted call. Tables of them end in a row without a name. */
#include <vulkan/vulkan_core.h>

struct dispatch_row {
	const char *name;
	PFN_vkVoidFunction call;
};

#define DISPATCH_ROW(name, call)                   \
	{                                          \
#name, (PFN_vkVoidFunction)(call), \
	}

#endif
