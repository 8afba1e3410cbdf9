/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layer/submit.h"

#include <stdbool.h>
#include <stdlib.h>

#include "tests/layer/chain.h"
#include "tests/layer/dispatch.h"
#include "tests/layer/queues.h"

struct submit_semaphore {
	struct submit_semaphore *next;
	VkSemaphore handle;
	bool is_timeline;
	uint64_t value; /* reached, or will be by what the driver has; a binary one: 0 or 1 */
};

/* One VkSubmitInfo2, copied. */
struct submit_work {
	struct submit_work *next;
	VkFence fence;
	uint32_t n_waits, n_commands, n_signals;
	VkSemaphoreSubmitInfo *waits, *signals;
	VkCommandBufferSubmitInfo *commands;
};

static struct submit_work *work_free(struct submit_work *w)
{
	if (!w)
		return NULL;
	free(w->waits);
	free(w->signals);
	free(w->commands);
	free(w);
	return NULL;
}

static struct submit_work *work_new(uint32_t n_waits, uint32_t n_commands, uint32_t n_signals)
{
	struct submit_work *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->n_waits = n_waits;
	w->n_commands = n_commands;
	w->n_signals = n_signals;
	w->waits = calloc(n_waits + 1, sizeof(*w->waits));
	w->commands = calloc(n_commands + 1, sizeof(*w->commands));
	w->signals = calloc(n_signals + 1, sizeof(*w->signals));
	return w->waits && w->commands && w->signals ? w : work_free(w);
}

/* info: a VkSubmitInfo2 */
static struct submit_work *work_copy(const void *info)
{
	const VkSubmitInfo2 *s = info;
	struct submit_work *w = work_new(
		s->waitSemaphoreInfoCount, s->commandBufferInfoCount, s->signalSemaphoreInfoCount);

	for (uint32_t i = 0; w && i < w->n_waits; i++)
		w->waits[i] = s->pWaitSemaphoreInfos[i];
	for (uint32_t i = 0; w && i < w->n_commands; i++)
		w->commands[i] = s->pCommandBufferInfos[i];
	for (uint32_t i = 0; w && i < w->n_signals; i++)
		w->signals[i] = s->pSignalSemaphoreInfos[i];
	return w;
}

/* info: a VkSubmitInfo */
static struct submit_work *work_convert(const void *info)
{
	const VkSubmitInfo *s = info;
	struct submit_work *w =
		work_new(s->waitSemaphoreCount, s->commandBufferCount, s->signalSemaphoreCount);
	const VkTimelineSemaphoreSubmitInfo *values =
		chain_find(s->pNext, VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO);

	for (uint32_t i = 0; w && i < w->n_waits; i++)
		w->waits[i] =
			(VkSemaphoreSubmitInfo){.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO,
				.semaphore = s->pWaitSemaphores[i],
				.value = values && i < values->waitSemaphoreValueCount
						 ? values->pWaitSemaphoreValues[i]
						 : 0,
				.stageMask = s->pWaitDstStageMask[i]};
	for (uint32_t i = 0; w && i < w->n_commands; i++)
		w->commands[i] = (VkCommandBufferSubmitInfo){
			.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO,
			.commandBuffer = s->pCommandBuffers[i]};
	for (uint32_t i = 0; w && i < w->n_signals; i++)
		w->signals[i] =
			(VkSemaphoreSubmitInfo){.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO,
				.semaphore = s->pSignalSemaphores[i],
				.value = values && i < values->signalSemaphoreValueCount
						 ? values->pSignalSemaphoreValues[i]
						 : 0,
				.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT};
	return w;
}

static struct submit_semaphore *find_semaphore(struct queues *q, VkSemaphore handle)
{
	struct submit_semaphore *s = q->semaphores;

	while (s && s->handle != handle)
		s = s->next;
	return s;
}

static bool is_ready(struct queues *q, const struct submit_work *w)
{
	for (uint32_t i = 0; i < w->n_waits; i++) {
		const struct submit_semaphore *s = find_semaphore(q, w->waits[i].semaphore);

		if (s && s->value < (s->is_timeline ? w->waits[i].value : 1))
			return false;
	}
	return true;
}

static void forward(struct queues *q, const struct submit_work *w)
{
	VkSubmitInfo2 info = {
		.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO_2,
		.waitSemaphoreInfoCount = w->n_waits,
		.pWaitSemaphoreInfos = w->waits,
		.commandBufferInfoCount = w->n_commands,
		.pCommandBufferInfos = w->commands,
		.signalSemaphoreInfoCount = w->n_signals,
		.pSignalSemaphoreInfos = w->signals,
	};

	VkResult r = q->d->calls.QueueSubmit2(q->real, 1, &info, w->fence);
	if (r != VK_SUCCESS && q->error == VK_SUCCESS)
		q->error = r;
	for (uint32_t i = 0; i < w->n_waits; i++) {
		struct submit_semaphore *s = find_semaphore(q, w->waits[i].semaphore);

		if (s && !s->is_timeline)
			s->value = 0;
	}
	for (uint32_t i = 0; i < w->n_signals; i++) {
		struct submit_semaphore *s = find_semaphore(q, w->signals[i].semaphore);

		if (s)
			s->value = s->is_timeline ? w->signals[i].value : 1;
	}
}

/* Gives the driver all that is ready; one queue's work may make another's so. */
static void move(struct queues *q)
{
	bool has_moved;

	do {
		has_moved = false;
		for (uint32_t i = 0; i < q->n; i++) {
			struct queues_queue *queue = &q->queues[i];

			while (queue->held && is_ready(q, queue->held)) {
				struct submit_work *w = queue->held;

				queue->held = w->next;
				forward(q, w);
				work_free(w);
				has_moved = true;
			}
		}
	} while (has_moved);
	pthread_cond_broadcast(&q->moved);
}

static struct submit_work *list_free(struct submit_work *head)
{
	while (head) {
		struct submit_work *w = head;

		head = w->next;
		work_free(w);
	}
	return NULL;
}

/* Takes the list of work. The result may be that of work submitted before. */
static VkResult submit(VkQueue handle, struct submit_work *head)
{
	struct queues_queue *queue = (struct queues_queue *)handle;
	struct queues *q = queue->queues;
	struct submit_work **tail = &queue->held;

	pthread_mutex_lock(&q->lock);
	while (*tail)
		tail = &(*tail)->next;
	*tail = head;
	move(q);
	VkResult r = q->error;
	pthread_mutex_unlock(&q->lock);
	return r;
}

/*
 * Copies n infos of n_bytes each by `make` and submits them. The fence is signalled after the last,
 * and on its own where there is none.
 */
static VkResult submit_infos(VkQueue queue, uint32_t n, const void *infos, size_t n_bytes,
	struct submit_work *(*make)(const void *), VkFence fence)
{
	struct submit_work *head = NULL, **tail = &head;

	for (uint32_t i = 0; i < n || (!head && fence); i++) {
		struct submit_work *w =
			i < n ? make((const char *)infos + i * n_bytes) : work_new(0, 0, 0);

		if (!w) {
			list_free(head);
			return VK_ERROR_OUT_OF_HOST_MEMORY;
		}
		if (i + 1 >= n)
			w->fence = fence;
		*tail = w;
		tail = &w->next;
	}
	return submit(queue, head);
}

static VkResult VKAPI_PTR queue_submit(
	VkQueue queue, uint32_t n, const VkSubmitInfo *infos, VkFence fence)
{
	return submit_infos(queue, n, infos, sizeof(*infos), work_convert, fence);
}

static VkResult VKAPI_PTR queue_submit2(
	VkQueue queue, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence)
{
	return submit_infos(queue, n, infos, sizeof(*infos), work_copy, fence);
}

/* Until another thread has submitted or signalled what this queue's work waits for. */
static void wait_moved(struct queues *q, const struct queues_queue *queue)
{
	while (queue->held && q->error == VK_SUCCESS)
		pthread_cond_wait(&q->moved, &q->lock);
}

static VkResult VKAPI_PTR queue_wait_idle(VkQueue handle)
{
	struct queues_queue *queue = (struct queues_queue *)handle;
	struct queues *q = queue->queues;

	pthread_mutex_lock(&q->lock);
	wait_moved(q, queue);
	VkResult r = q->error;
	if (r == VK_SUCCESS)
		r = q->d->calls.QueueWaitIdle(q->real);
	pthread_mutex_unlock(&q->lock);
	return r;
}

static VkResult VKAPI_PTR device_wait_idle(VkDevice device)
{
	struct dispatch_device *d = dispatch_device_of(device);
	struct queues *q = d->queues;

	pthread_mutex_lock(&q->lock);
	for (uint32_t i = 0; i < q->n; i++)
		wait_moved(q, &q->queues[i]);
	VkResult r = q->error;
	if (r == VK_SUCCESS)
		r = d->calls.DeviceWaitIdle(device);
	pthread_mutex_unlock(&q->lock);
	return r;
}

static VkResult VKAPI_PTR create_semaphore(VkDevice device, const VkSemaphoreCreateInfo *info,
	const VkAllocationCallbacks *allocator, VkSemaphore *ret_semaphore)
{
	struct dispatch_device *d = dispatch_device_of(device);
	struct queues *q = d->queues;
	const VkSemaphoreTypeCreateInfo *type =
		chain_find(info->pNext, VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO);
	struct submit_semaphore *s = calloc(1, sizeof(*s));

	if (!s)
		return VK_ERROR_OUT_OF_HOST_MEMORY;
	VkResult r = d->calls.CreateSemaphore(device, info, allocator, &s->handle);
	if (r != VK_SUCCESS) {
		free(s);
		return r;
	}
	s->is_timeline = type && type->semaphoreType == VK_SEMAPHORE_TYPE_TIMELINE;
	s->value = s->is_timeline ? type->initialValue : 0;
	*ret_semaphore = s->handle;
	pthread_mutex_lock(&q->lock);
	s->next = q->semaphores;
	q->semaphores = s;
	pthread_mutex_unlock(&q->lock);
	return VK_SUCCESS;
}

static void VKAPI_PTR destroy_semaphore(
	VkDevice device, VkSemaphore semaphore, const VkAllocationCallbacks *allocator)
{
	struct dispatch_device *d = dispatch_device_of(device);
	struct queues *q = d->queues;
	struct submit_semaphore **at = &q->semaphores, *s;

	pthread_mutex_lock(&q->lock);
	while (*at && (*at)->handle != semaphore)
		at = &(*at)->next;
	s = *at;
	if (s)
		*at = s->next;
	pthread_mutex_unlock(&q->lock);
	free(s);
	d->calls.DestroySemaphore(device, semaphore, allocator);
}

static VkResult VKAPI_PTR signal_semaphore(VkDevice device, const VkSemaphoreSignalInfo *info)
{
	struct dispatch_device *d = dispatch_device_of(device);
	struct queues *q = d->queues;

	pthread_mutex_lock(&q->lock);
	VkResult r = d->calls.SignalSemaphore(device, info);
	struct submit_semaphore *s = find_semaphore(q, info->semaphore);
	if (r == VK_SUCCESS && s)
		s->value = info->value;
	move(q);
	pthread_mutex_unlock(&q->lock);
	return r;
}

void submit_fini(struct queues *q)
{
	for (uint32_t i = 0; i < q->n; i++)
		q->queues[i].held = list_free(q->queues[i].held);
	while (q->semaphores) {
		struct submit_semaphore *s = q->semaphores;

		q->semaphores = s->next;
		free(s);
	}
}

const struct dispatch_row submit_rows[] = {
	DISPATCH_ROW(vkQueueSubmit, queue_submit),
	DISPATCH_ROW(vkQueueSubmit2, queue_submit2),
	DISPATCH_ROW(vkQueueSubmit2KHR, queue_submit2),
	DISPATCH_ROW(vkQueueWaitIdle, queue_wait_idle),
	DISPATCH_ROW(vkDeviceWaitIdle, device_wait_idle),
	DISPATCH_ROW(vkCreateSemaphore, create_semaphore),
	DISPATCH_ROW(vkDestroySemaphore, destroy_semaphore),
	DISPATCH_ROW(vkSignalSemaphore, signal_semaphore),
	DISPATCH_ROW(vkSignalSemaphoreKHR, signal_semaphore),
	{0},
};
