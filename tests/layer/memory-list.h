/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_MEMORY_LIST_H
#define TESTS_LAYER_MEMORY_LIST_H

/* The allocations of a device that live. Any thread. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <vulkan/vulkan_core.h>

struct memory {
	struct memory *next;
	VkDeviceMemory handle;
	uint64_t id; /* from 1, one after the other in the process */
	uint64_t n_bytes;
	uint32_t type_index; /* as shown */
	uint32_t heap;
	bool is_charged; /* to the heap; imports are not */
	void *map;       /* of a memfd that was imported as a dma-buf, or NULL */
};

struct memory_list {
	pthread_mutex_t lock;
	struct memory *head;
};

void memory_list_init(struct memory_list *l);
void memory_list_fini(struct memory_list *l); /* empty */

/* Takes m, and gives it its id. */
uint64_t memory_list_add(struct memory_list *l, struct memory *m);

/* Out of the list, the caller's; NULL: not there. */
struct memory *memory_list_take(struct memory_list *l, VkDeviceMemory handle);

/* The type of an allocation that lives; UINT32_MAX: not there. */
uint32_t memory_list_find_type(struct memory_list *l, VkDeviceMemory handle);

/* The id of one; 0: not there. */
uint64_t memory_list_find_id(struct memory_list *l, VkDeviceMemory handle);

#endif
