/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/queues.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/layer/dispatch.h"
#include "tests/layer/submit.h"

VkResult queues_check(const struct config *c, const VkDeviceCreateInfo *info)
{
	for (uint32_t i = 0; i < info->queueCreateInfoCount; i++) {
		const VkDeviceQueueCreateInfo *q = &info->pQueueCreateInfos[i];

		if (q->queueFamilyIndex < c->n_families &&
			q->queueCount <= c->families[q->queueFamilyIndex].n_queues)
			continue;
		fprintf(stderr, "weightd layer: vkCreateDevice: no %u queues in family %u\n",
			q->queueCount, q->queueFamilyIndex);
		return VK_ERROR_INITIALIZATION_FAILED;
	}
	return VK_SUCCESS;
}

struct queues *queues_new(struct dispatch_device *d, const VkDeviceCreateInfo *info)
{
	struct queues *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->d = d;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->moved, NULL);
	d->calls.GetDeviceQueue(d->handle, 0, 0, &q->real);
	/* The loader's entry for this call gives the queue its table; nobody did so here. */
	memcpy(q->real, d->handle, sizeof(void *));
	for (uint32_t i = 0; i < info->queueCreateInfoCount; i++)
		q->n += info->pQueueCreateInfos[i].queueCount;
	q->queues = calloc(q->n + 1, sizeof(*q->queues));
	if (!q->queues)
		return queues_free(q);
	struct queues_queue *at = q->queues;
	for (uint32_t i = 0; i < info->queueCreateInfoCount; i++)
		for (uint32_t k = 0; k < info->pQueueCreateInfos[i].queueCount; k++)
			*at++ = (struct queues_queue){
				.key = d->key,
				.queues = q,
				.family = info->pQueueCreateInfos[i].queueFamilyIndex,
				.index = k,
			};
	return q;
}

struct queues *queues_free(struct queues *q)
{
	if (!q)
		return NULL;
	if (q->queues)
		submit_fini(q);
	pthread_cond_destroy(&q->moved);
	pthread_mutex_destroy(&q->lock);
	free(q->queues);
	free(q);
	return NULL;
}

static void VKAPI_PTR get_queue(VkDevice device, uint32_t family, uint32_t index, VkQueue *ret)
{
	struct queues *q = dispatch_device_of(device)->queues;

	for (uint32_t i = 0; i < q->n; i++)
		if (q->queues[i].family == family && q->queues[i].index == index)
			*ret = (VkQueue)&q->queues[i];
}

static void VKAPI_PTR get_queue2(VkDevice device, const VkDeviceQueueInfo2 *info, VkQueue *ret)
{
	get_queue(device, info->queueFamilyIndex, info->queueIndex, ret);
}

static VkResult VKAPI_PTR create_command_pool(VkDevice device, const VkCommandPoolCreateInfo *info,
	const VkAllocationCallbacks *allocator, VkCommandPool *ret)
{
	VkCommandPoolCreateInfo copy = *info;

	copy.queueFamilyIndex = 0;
	return dispatch_device_of(device)->calls.CreateCommandPool(device, &copy, allocator, ret);
}

/*
 * The external family and its like are the driver's too. What is of several simulated families (and
 * so of none by name) is of one at the driver.
 */
static uint32_t real_family(uint32_t family, uint32_t other)
{
	if (family == VK_QUEUE_FAMILY_IGNORED && other != VK_QUEUE_FAMILY_IGNORED)
		return 0;
	return family >= VK_QUEUE_FAMILY_FOREIGN_EXT ? family : 0;
}

/* A copy of [n] barriers with the driver's families; freed by the caller. Ends the process without
 * memory: recording has no way to say so. */
#define COPY_BARRIERS(n, barriers)                                                \
	({                                                                        \
		__typeof__(*(barriers)) *copy_ = calloc((n) + 1, sizeof(*copy_)); \
                                                                                  \
		if (!copy_)                                                       \
			abort();                                                  \
		for (uint32_t i_ = 0; i_ < (n); i_++) {                           \
			copy_[i_] = (barriers)[i_];                               \
			copy_[i_].srcQueueFamilyIndex =                           \
				real_family((barriers)[i_].srcQueueFamilyIndex,   \
					(barriers)[i_].dstQueueFamilyIndex);      \
			copy_[i_].dstQueueFamilyIndex =                           \
				real_family((barriers)[i_].dstQueueFamilyIndex,   \
					(barriers)[i_].srcQueueFamilyIndex);      \
		}                                                                 \
		copy_;                                                            \
	})

static void VKAPI_PTR cmd_barrier(VkCommandBuffer command, VkPipelineStageFlags src,
	VkPipelineStageFlags dst, VkDependencyFlags flags, uint32_t n_memory,
	const VkMemoryBarrier *memory, uint32_t n_buffers, const VkBufferMemoryBarrier *buffers,
	uint32_t n_images, const VkImageMemoryBarrier *images)
{
	_cleanup_(cleanup_free)
	VkBufferMemoryBarrier *real_buffers = NULL;
	_cleanup_(cleanup_free)
	VkImageMemoryBarrier *real_images = NULL;

	real_buffers = COPY_BARRIERS(n_buffers, (VkBufferMemoryBarrier *)buffers);
	real_images = COPY_BARRIERS(n_images, (VkImageMemoryBarrier *)images);
	dispatch_device_of(command)->calls.CmdPipelineBarrier(command, src, dst, flags, n_memory,
		memory, n_buffers, real_buffers, n_images, real_images);
}

static void VKAPI_PTR cmd_barrier2(VkCommandBuffer command, const VkDependencyInfo *info)
{
	VkDependencyInfo copy = *info;
	_cleanup_(cleanup_free)
	VkBufferMemoryBarrier2 *buffers = NULL;
	_cleanup_(cleanup_free)
	VkImageMemoryBarrier2 *images = NULL;

	buffers = COPY_BARRIERS(info->bufferMemoryBarrierCount,
		(VkBufferMemoryBarrier2 *)info->pBufferMemoryBarriers);
	images = COPY_BARRIERS(
		info->imageMemoryBarrierCount, (VkImageMemoryBarrier2 *)info->pImageMemoryBarriers);
	copy.pBufferMemoryBarriers = buffers;
	copy.pImageMemoryBarriers = images;
	dispatch_device_of(command)->calls.CmdPipelineBarrier2(command, &copy);
}

static void show_family(const struct config_family *f, VkQueueFamilyProperties *ret)
{
	ret->queueFlags = f->flags;
	ret->queueCount = f->n_queues;
}

static void VKAPI_PTR get_families(
	VkPhysicalDevice physical, uint32_t *ret_n, VkQueueFamilyProperties *ret)
{
	struct dispatch_instance *i = dispatch_instance_of(physical);
	const struct config *c = &i->config;
	uint32_t one = 1;

	if (!c->n_families) {
		i->calls.GetPhysicalDeviceQueueFamilyProperties(physical, ret_n, ret);
		return;
	}
	if (!ret || *ret_n > c->n_families)
		*ret_n = c->n_families;
	for (uint32_t f = 0; ret && f < *ret_n; f++) {
		i->calls.GetPhysicalDeviceQueueFamilyProperties(physical, &one, &ret[f]);
		show_family(&c->families[f], &ret[f]);
	}
}

static void VKAPI_PTR get_families2(
	VkPhysicalDevice physical, uint32_t *ret_n, VkQueueFamilyProperties2 *ret)
{
	struct dispatch_instance *i = dispatch_instance_of(physical);
	const struct config *c = &i->config;
	uint32_t one = 1;

	if (!c->n_families) {
		i->calls.GetPhysicalDeviceQueueFamilyProperties2(physical, ret_n, ret);
		return;
	}
	if (!ret || *ret_n > c->n_families)
		*ret_n = c->n_families;
	for (uint32_t f = 0; ret && f < *ret_n; f++) {
		i->calls.GetPhysicalDeviceQueueFamilyProperties2(physical, &one, &ret[f]);
		show_family(&c->families[f], &ret[f].queueFamilyProperties);
	}
}

const struct dispatch_row queues_family_rows[] = {
	DISPATCH_ROW(vkGetPhysicalDeviceQueueFamilyProperties, get_families),
	DISPATCH_ROW(vkGetPhysicalDeviceQueueFamilyProperties2, get_families2),
	DISPATCH_ROW(vkGetPhysicalDeviceQueueFamilyProperties2KHR, get_families2),
	{0},
};

const struct dispatch_row queues_rows[] = {
	DISPATCH_ROW(vkGetDeviceQueue, get_queue),
	DISPATCH_ROW(vkGetDeviceQueue2, get_queue2),
	DISPATCH_ROW(vkCreateCommandPool, create_command_pool),
	DISPATCH_ROW(vkCmdPipelineBarrier, cmd_barrier),
	DISPATCH_ROW(vkCmdPipelineBarrier2, cmd_barrier2),
	DISPATCH_ROW(vkCmdPipelineBarrier2KHR, cmd_barrier2),
	{0},
};
