/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/submit.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "vk/command-internal.h"
#include "vk/device-internal.h"
#include "vk/result.h"

/*
 * How long wait polls before it sleeps. A polled submission returns some 25 us earlier than a slept
 * one on a GPU, and steps of small models are not much longer than this.
 */
enum { POLL_NS = 50 * 1000 };

/* How long before and behind the time at which it is due. A timer fires within some 60 us. */
enum { DUE_BEFORE_NS = 150 * 1000, DUE_BEHIND_NS = 350 * 1000, MAX_NAP_NS = 300 * 1000 };

static int refuse_lost(struct err *ret_err)
{
	(void)err_set(ret_err, EIO, "submit: the device is lost");
	return VK_DEVICE_LOST;
}

static struct vk_queue_state *get_queue(struct vk_device *d, uint64_t ticket)
{
	return &d->queues[ticket & VK_SUBMIT_TRANSFER_TICKET ? VK_QUEUE_TRANSFER
							     : VK_QUEUE_COMPUTE];
}

static uint64_t get_value(uint64_t ticket)
{
	return ticket & ~VK_SUBMIT_TRANSFER_TICKET;
}

static uint64_t make_ticket(enum vk_queue queue, uint64_t value)
{
	return queue == VK_QUEUE_TRANSFER ? VK_SUBMIT_TRANSFER_TICKET | value : value;
}

static int check_commands(struct vk_device *d, enum vk_queue queue,
	struct vk_command *const *commands, uint32_t n_commands, struct err *ret_err)
{
	if ((unsigned)queue >= VK_QUEUE_N)
		return err_set(ret_err, EINVAL, "submit: no queue %u", (unsigned)queue);
	if (n_commands > VK_SUBMIT_MAX_COMMANDS)
		return err_set(ret_err, EINVAL, "submit: expected at most %d commands, found %u",
			VK_SUBMIT_MAX_COMMANDS, n_commands);
	if (d->is_lost)
		return refuse_lost(ret_err);
	for (uint32_t i = 0; i < n_commands; i++) {
		if (commands[i]->state != VK_COMMAND_READY)
			return err_set(ret_err, EINVAL, "submit: command %u was not recorded", i);
		if (commands[i]->queue != queue)
			return err_set(
				ret_err, EINVAL, "submit: command %u is for the other queue", i);
		for (uint32_t other = 0; other < i; other++)
			if (commands[other] == commands[i])
				return err_set(ret_err, EINVAL,
					"submit: command %u is command %u again", i, other);
		if (!vk_submit_is_done(d, commands[i]->ticket))
			return d->is_lost ? refuse_lost(ret_err)
					  : err_set(ret_err, EBUSY, "submit: command %u still runs",
						    i);
	}
	return 0;
}

/* The last submission of each queue that is waited for; 0: none. */
static int find_waits(struct vk_device *d, const uint64_t *waits, uint32_t n_waits,
	struct err *ret_err, uint64_t ret_values[VK_QUEUE_N])
{
	uint64_t values[VK_QUEUE_N] = {0};

	for (uint32_t i = 0; i < n_waits; i++) {
		const struct vk_queue_state *q = get_queue(d, waits[i]);
		uint64_t *value = &values[q - d->queues];

		if (get_value(waits[i]) > q->last)
			return err_set(ret_err, EINVAL,
				"submit: ticket %" PRIu64 " to wait for was never given",
				get_value(waits[i]));
		if (get_value(waits[i]) > *value)
			*value = get_value(waits[i]);
	}
	memcpy(ret_values, values, sizeof(values));
	return 0;
}

static VkSemaphoreSubmitInfo semaphore_at(const struct vk_queue_state *q, uint64_t value)
{
	return (VkSemaphoreSubmitInfo){
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO,
		.semaphore = q->timeline,
		.value = value,
		.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT,
	};
}

int vk_submit_on(struct vk_device *d, enum vk_queue queue, struct vk_command *const *commands,
	uint32_t n_commands, const uint64_t *waits, uint32_t n_waits, struct err *ret_err,
	uint64_t *ret_ticket)
{
	VkCommandBufferSubmitInfo buffers[VK_SUBMIT_MAX_COMMANDS];
	VkSemaphoreSubmitInfo wait_infos[VK_QUEUE_N];
	uint64_t values[VK_QUEUE_N];

	int code = check_commands(d, queue, commands, n_commands, ret_err);
	if (!code)
		code = find_waits(d, waits, n_waits, ret_err, values);
	if (code)
		return code;
	struct vk_queue_state *q = &d->queues[queue];
	VkSemaphoreSubmitInfo signal = semaphore_at(q, q->last + 1);
	VkSubmitInfo2 info = {
		.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO_2,
		.pWaitSemaphoreInfos = wait_infos,
		.commandBufferInfoCount = n_commands,
		.pCommandBufferInfos = buffers,
		.signalSemaphoreInfoCount = 1,
		.pSignalSemaphoreInfos = &signal,
	};
	/* What went before on the same queue is waited for by the barrier that begins a command. */
	for (int i = 0; i < VK_QUEUE_N; i++)
		if (i != (int)queue && values[i] > 0)
			wait_infos[info.waitSemaphoreInfoCount++] =
				semaphore_at(&d->queues[i], values[i]);
	for (uint32_t i = 0; i < n_commands; i++)
		buffers[i] = (VkCommandBufferSubmitInfo){
			.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO,
			.commandBuffer = commands[i]->buffer,
		};
	VkResult r = vk_device_note(d, vkQueueSubmit2(q->queue, 1, &info, VK_NULL_HANDLE));
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "submit of %u commands", n_commands);
	q->last++;
	for (uint32_t i = 0; i < n_commands; i++)
		commands[i]->ticket = make_ticket(queue, q->last);
	*ret_ticket = make_ticket(queue, q->last);
	return 0;
}

int vk_submit(struct vk_device *d, struct vk_command *const *commands, uint32_t n_commands,
	struct err *ret_err, uint64_t *ret_ticket)
{
	return vk_submit_on(
		d, VK_QUEUE_COMPUTE, commands, n_commands, NULL, 0, ret_err, ret_ticket);
}

bool vk_submit_is_done(struct vk_device *d, uint64_t ticket)
{
	struct vk_queue_state *q = get_queue(d, ticket);
	uint64_t value;

	if (d->is_lost)
		return false;
	if (get_value(ticket) <= q->done)
		return true;
	VkResult r = vk_device_note(d, vkGetSemaphoreCounterValue(d->device, q->timeline, &value));
	if (r != VK_SUCCESS)
		return false;
	/* A lost device may set its semaphores to anything. */
	if (value > q->last) {
		d->is_lost = true;
		return false;
	}
	q->done = value;
	return value >= get_value(ticket);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int vk_submit_wait(struct vk_device *d, uint64_t ticket, uint64_t timeout_ns)
{
	const struct vk_queue_state *q = get_queue(d, ticket);
	uint64_t value = get_value(ticket);
	VkSemaphoreWaitInfo info = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
		.semaphoreCount = 1,
		.pSemaphores = &q->timeline,
		.pValues = &value,
	};
	uint64_t start = now_ns(), spent = 0;

	if (value > q->last)
		return -EINVAL;
	/* A software device computes on the CPU that polling would take from it. */
	uint64_t poll_ns = d->info.is_software ? 0 : POLL_NS;
	do {
		if (vk_submit_is_done(d, ticket))
			return 0;
		if (d->is_lost)
			return VK_DEVICE_LOST;
		spent = now_ns() - start;
	} while (spent < poll_ns && spent < timeout_ns);
	if (spent >= timeout_ns)
		return -ETIMEDOUT;
	VkResult r = vk_device_note(d, vkWaitSemaphores(d->device, &info, timeout_ns - spent));
	if (r != VK_SUCCESS)
		return vk_result_code(r);
	return vk_submit_is_done(d, ticket) ? 0 : VK_DEVICE_LOST;
}

int vk_submit_wait_due(struct vk_device *d, uint64_t ticket, uint64_t due_ns)
{
	const struct vk_queue_state *q = get_queue(d, ticket);
	uint64_t now = now_ns();

	if (get_value(ticket) > q->last)
		return -EINVAL;
	/* A software device computes on the CPU that polling would take from it. */
	if (d->info.is_software || due_ns < now)
		return vk_submit_wait(d, ticket, UINT64_MAX);
	for (; now < due_ns + DUE_BEHIND_NS && !d->is_lost; now = now_ns()) {
		uint64_t left_ns = due_ns > now + DUE_BEFORE_NS ? due_ns - DUE_BEFORE_NS - now : 0;
		/* It may be done long before: then the next one will be due earlier. */
		const struct timespec nap = {
			.tv_nsec = (long)(left_ns < MAX_NAP_NS ? left_ns : MAX_NAP_NS)};

		if (vk_submit_is_done(d, ticket))
			return 0;
		if (left_ns)
			nanosleep(&nap, NULL);
	}
	return vk_submit_wait(d, ticket, UINT64_MAX);
}
