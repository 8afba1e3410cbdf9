/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_HEAPS_H
#define TESTS_LAYER_HEAPS_H

/*
 * Memory types and heaps as the application sees them, with an account and a budget of each heap.
 * Simulated types are all type 0 of the driver. Any thread.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <vulkan/vulkan_core.h>

#include "tests/layer/dispatch-row.h"

struct config;

struct heaps {
	const struct config *config;
	VkPhysicalDeviceMemoryProperties memory; /* as shown */
	pthread_mutex_t lock;
	uint64_t used_bytes[VK_MAX_MEMORY_HEAPS];
	uint64_t n_queries; /* of the budget */
};

/* real: the driver's own, shown where none are simulated. */
void heaps_init(
	struct heaps *h, const struct config *config, const VkPhysicalDeviceMemoryProperties *real);
void heaps_fini(struct heaps *h);

/* False when the simulated heap is full; the driver's own are never. */
bool heaps_take(struct heaps *h, uint32_t heap, uint64_t n_bytes);
void heaps_give(struct heaps *h, uint32_t heap, uint64_t n_bytes);

/* The driver's type behind a shown one. */
uint32_t heaps_real_type(const struct heaps *h, uint32_t type);

/* Shown types for the driver's memoryTypeBits. */
uint32_t heaps_shown_bits(const struct heaps *h, uint32_t real_bits);

/* The same for imported host memory: simulated types outside the device only, where there are. */
uint32_t heaps_shown_host_bits(const struct heaps *h, uint32_t real_bits);

extern const struct dispatch_row heaps_rows[];

#endif
