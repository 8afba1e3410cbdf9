/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_CONFIG_H
#define TESTS_LAYER_CONFIG_H

/* What a VkInstance simulates: the WEIGHTD_LAYER_ variables, which layer.c explains. */
#include <stdbool.h>
#include <stdint.h>
#include <vulkan/vulkan_core.h>

#include "proto/util/cleanup.h"

struct err;

enum { CONFIG_MAX_HIDDEN = 32, CONFIG_MAX_FAMILIES = 8 };

/* WEIGHTD_LAYER_DMA_BUF */
enum {
	CONFIG_DMA_BUF_EXPORT = 1,
	CONFIG_DMA_BUF_IMPORT = 2,
	CONFIG_DMA_BUF_MEMFD = 4, /* plain memfds are imported too */
	CONFIG_DMA_BUF_APART = 8, /* what is exported as one is no opaque descriptor as well */
};

/* config.refuse: beside mapping_bit(). */
#define CONFIG_REFUSE_DMA_BUF (UINT32_C(1) << 31)

struct config_budget {
	uint64_t n_bytes; /* UINT64_MAX: the heap's size */
	uint64_t step_bytes;
};

struct config_family {
	VkQueueFlags flags;
	uint32_t n_queues;
};

struct config {
	const char *log_path; /* the environment's own string, NULL: no log */

	uint32_t refuse;      /* bits of mapping_bit(), and CONFIG_REFUSE_DMA_BUF */
	uint64_t refuse_from; /* the first refused among those that match, from 1 */
	bool poison;
	uint64_t fail_alloc; /* from 1; 0: none */
	bool fail_onward;    /* and every one after it */

	bool has_heaps;
	VkPhysicalDeviceMemoryProperties memory;
	bool has_budget;
	struct config_budget budgets[VK_MAX_MEMORY_HEAPS];

	uint32_t n_hidden;
	char hidden[CONFIG_MAX_HIDDEN][VK_MAX_EXTENSION_NAME_SIZE]; /* extensions and features */
	uint64_t max_alloc_bytes;                                   /* UINT64_MAX: the driver's */
	uint64_t max_buffer_bytes;

	uint32_t dma_buf; /* 0: not offered */
	uint32_t n_families;
	struct config_family families[CONFIG_MAX_FAMILIES];
};

/* -EINVAL with the variable, what it may hold and what it held. Any thread. */
int must_check config_read(struct err *ret_err, struct config *ret_config);

bool config_hides(const struct config *c, const char *name);

#endif
