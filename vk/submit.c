/* SPDX-License-Identifier: Apache-2.0 */
#include "vk/submit.h"

#include <errno.h>
#include <time.h>

#include "vk/command-internal.h"
#include "vk/device-internal.h"
#include "vk/result.h"

/*
 * How long wait polls before it sleeps. A polled submission returns some 25 us earlier than a slept
 * one on a GPU, and steps of small models are not much longer than this.
 */
enum { POLL_NS = 50 * 1000 };

static int refuse_lost(struct err *ret_err)
{
	(void)err_set(ret_err, EIO, "submit: the device is lost");
	return VK_DEVICE_LOST;
}

int vk_submit(struct vk_device *d, struct vk_command *const *commands, uint32_t n_commands,
	struct err *ret_err, uint64_t *ret_ticket)
{
	VkCommandBufferSubmitInfo buffers[VK_SUBMIT_MAX_COMMANDS];
	uint64_t ticket = d->last_ticket + 1;
	VkSemaphoreSubmitInfo signal = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO,
		.semaphore = d->timeline,
		.value = ticket,
		.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT,
	};
	VkSubmitInfo2 info = {
		.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO_2,
		.commandBufferInfoCount = n_commands,
		.pCommandBufferInfos = buffers,
		.signalSemaphoreInfoCount = 1,
		.pSignalSemaphoreInfos = &signal,
	};

	if (n_commands > VK_SUBMIT_MAX_COMMANDS)
		return err_set(ret_err, EINVAL, "submit: expected at most %d commands, found %u",
			VK_SUBMIT_MAX_COMMANDS, n_commands);
	if (d->is_lost)
		return refuse_lost(ret_err);
	for (uint32_t i = 0; i < n_commands; i++) {
		if (commands[i]->state != VK_COMMAND_READY)
			return err_set(ret_err, EINVAL, "submit: command %u was not recorded", i);
		for (uint32_t other = 0; other < i; other++)
			if (commands[other] == commands[i])
				return err_set(ret_err, EINVAL,
					"submit: command %u is command %u again", i, other);
		if (!vk_submit_is_done(d, commands[i]->ticket))
			return d->is_lost ? refuse_lost(ret_err)
					  : err_set(ret_err, EBUSY, "submit: command %u still runs",
						    i);
		buffers[i] = (VkCommandBufferSubmitInfo){
			.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO,
			.commandBuffer = commands[i]->buffer,
		};
	}
	VkResult r = vk_device_note(d, vkQueueSubmit2(d->queue, 1, &info, VK_NULL_HANDLE));
	if (r != VK_SUCCESS)
		return vk_result_fail(r, ret_err, "submit of %u commands", n_commands);
	for (uint32_t i = 0; i < n_commands; i++)
		commands[i]->ticket = ticket;
	d->last_ticket = ticket;
	*ret_ticket = ticket;
	return 0;
}

bool vk_submit_is_done(struct vk_device *d, uint64_t ticket)
{
	uint64_t value;

	if (d->is_lost)
		return false;
	if (ticket <= d->done_ticket)
		return true;
	VkResult r = vk_device_note(d, vkGetSemaphoreCounterValue(d->device, d->timeline, &value));
	if (r != VK_SUCCESS)
		return false;
	/* A lost device may set its semaphores to anything. */
	if (value > d->last_ticket) {
		d->is_lost = true;
		return false;
	}
	d->done_ticket = value;
	return value >= ticket;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int vk_submit_wait(struct vk_device *d, uint64_t ticket, uint64_t timeout_ns)
{
	VkSemaphoreWaitInfo info = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
		.semaphoreCount = 1,
		.pSemaphores = &d->timeline,
		.pValues = &ticket,
	};
	uint64_t start = now_ns(), spent = 0;

	if (ticket > d->last_ticket)
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
