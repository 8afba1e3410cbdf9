/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_DMA_BUF_H
#define TESTS_LAYER_DMA_BUF_H

/*
 * dma-bufs on a driver that has none: each is an opaque descriptor underneath, or a plain memfd
 * whose pages are imported by pointer. Any thread.
 */
#include <vulkan/vulkan_core.h>

#include "tests/layer/dispatch-row.h"

struct config;
struct dispatch_device;
struct request;

/* The driver's handle types for shown ones. */
VkExternalMemoryHandleTypeFlags dma_buf_real_types(
	const struct config *c, VkExternalMemoryHandleTypeFlags types);

/*
 * Imports r->fd, a dma-buf. chain: what follows info, a copy that may be changed. On success the
 * descriptor is the layer's or the driver's; ret_map is to be unmapped after the memory is freed,
 * or NULL.
 */
VkResult dma_buf_import(struct dispatch_device *d, const struct request *r,
	const VkMemoryAllocateInfo *info, void *chain, const VkAllocationCallbacks *allocator,
	VkDeviceMemory *ret_memory, void **ret_map);

extern const struct dispatch_row dma_buf_rows[];

#endif
