/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_QUEUE_INTERNAL_H
#define VK_QUEUE_INTERNAL_H

/* Inside vk/ only. */
#include <stdbool.h>
#include <stdint.h>
#include <vulkan/vulkan_core.h>

#include "vk/queue.h"

/* One line of work: a queue (two lines may share it) and what was given to it. */
struct vk_queue_state {
	uint32_t family;
	uint32_t index; /* in the family */
	VkQueue queue;
	VkSemaphore timeline; /* its value is the last submission that is done */
	uint64_t last;        /* submission */
	uint64_t done;        /* the timeline's value when it was last read */
};

/*
 * Fills family and index of both lines, nothing else. A pure function of the table. False when no
 * family computes.
 */
bool vk_queue_choose(const VkQueueFamilyProperties *families, uint32_t n_families,
	struct vk_queue_state ret_queues[VK_QUEUE_N]);

#endif
