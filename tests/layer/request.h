/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_REQUEST_H
#define TESTS_LAYER_REQUEST_H

/* What one vkAllocateMemory asks for, told in one place to those who judge, rewrite and log it. */
#include <stdbool.h>
#include <stdint.h>
#include <vulkan/vulkan_core.h>

#include "tests/layer/mapping.h"

struct request {
	const VkMemoryAllocateInfo *info; /* borrowed */
	VkMemoryAllocateFlags flags;
	bool is_dedicated;
	VkExternalMemoryHandleTypeFlags export_types;
	VkExternalMemoryHandleTypeFlags import_type; /* one bit; 0: no import */
	int fd;                                      /* imported; -1: none */
	void *pointer;                               /* imported; NULL: none */
	struct mapping mapping;                      /* of fd or pointer */
};

/* info must outlive it. */
void request_read(const VkMemoryAllocateInfo *info, struct request *ret_request);

#endif
