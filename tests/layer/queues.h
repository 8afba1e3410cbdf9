/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_QUEUES_H
#define TESTS_LAYER_QUEUES_H

/*
 * Queue families that the driver does not have, all on its one queue. Each simulated queue has a
 * handle of its own, whose submissions wait in the layer (submit.h) until what they wait for is on
 * its way: a queue may be given work that waits for another queue's later submission. Any thread.
 */
#include <pthread.h>
#include <stdint.h>
#include <vulkan/vulkan_core.h>

#include "tests/layer/dispatch-row.h"

struct config;
struct dispatch_device;
struct submit_semaphore;
struct submit_work;

/* Behind a VkQueue. */
struct queues_queue {
	void *key; /* the loader's; first, as in every dispatchable object */
	struct queues *queues;
	uint32_t family;
	uint32_t index;
	struct submit_work *held; /* the oldest; NULL: none */
};

struct queues {
	struct dispatch_device *d;
	VkQueue real;
	pthread_mutex_t lock; /* of all below, and of the real queue */
	pthread_cond_t moved; /* work went to the driver */
	struct submit_semaphore *semaphores;
	VkResult error; /* the first of the driver's */
	uint32_t n;
	struct queues_queue *queues; /* [n] */
};

/* Are these families and counts there? VK_ERROR_INITIALIZATION_FAILED and a line on stderr. */
VkResult queues_check(const struct config *c, const VkDeviceCreateInfo *info);

/* NULL: no memory. */
struct queues *queues_new(struct dispatch_device *d, const VkDeviceCreateInfo *info);
struct queues *queues_free(struct queues *q);

/* Calls on physical devices, which pass through where nothing is simulated. */
extern const struct dispatch_row queues_family_rows[];

/* Calls on devices that simulate queues. */
extern const struct dispatch_row queues_rows[];

#endif
