/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_SUBMIT_H
#define VK_SUBMIT_H

/*
 * The device's two queues: commands in order, each submission a ticket. Submissions of one queue
 * run one after the other; those of two run beside each other unless one waits for the other's
 * ticket.
 *
 * A ticket says its queue and its place there: those of the compute queue count from 1, those of
 * the transfer queue from 1 above VK_SUBMIT_TRANSFER_TICKET. So tickets of one queue compare,
 * tickets of two do not. 0 is always done.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/queue.h"

struct err;
struct vk_device;
struct vk_command;

enum { VK_SUBMIT_MAX_COMMANDS = 64 };
#define VK_SUBMIT_TRANSFER_TICKET (UINT64_C(1) << 63)

/*
 * Runs the commands in order on the compute queue, with a full barrier between two and after what
 * was submitted there before. They must stay until it is done. -EINVAL for one that vk_command_end
 * refused, that is for another queue, or more than the maximum, -EBUSY for one that still runs,
 * -ENOMEM, VK_DEVICE_LOST.
 */
int must_check vk_submit(struct vk_device *d, struct vk_command *const *commands,
	uint32_t n_commands, struct err *ret_err, uint64_t *ret_ticket);

/*
 * The same on any queue, after the submissions whose tickets are in waits, of any queue, have ended
 * and so that it sees what they wrote. The GPU waits, not the caller. On the transfer queue the
 * barriers are between copies alone.
 *
 * Every ticket to wait for was given before (-EINVAL for others): nothing waits for what comes
 * later, so nothing can wait for ever, also where both queues are one queue of the device.
 */
int must_check vk_submit_on(struct vk_device *d, enum vk_queue queue,
	struct vk_command *const *commands, uint32_t n_commands, const uint64_t *waits,
	uint32_t n_waits, struct err *ret_err, uint64_t *ret_ticket);

/*
 * 0, -ETIMEDOUT, VK_DEVICE_LOST, -EINVAL for a ticket that was never given. Polls for some
 * microseconds before it sleeps. UINT64_MAX waits for ever.
 */
int must_check vk_submit_wait(struct vk_device *d, uint64_t ticket, uint64_t timeout_ns);

/*
 * Waits for ever for what is expected to be done at due_ns (CLOCK_MONOTONIC): naps until shortly
 * before, polls around it, and sleeps where it takes much longer. So nobody hears of it late, or by
 * a nap where it was done much earlier, and the processor is free for most of the time. Errors as
 * vk_submit_wait.
 */
int must_check vk_submit_wait_due(struct vk_device *d, uint64_t ticket, uint64_t due_ns);

/* Has the ticket been reached? False too after device loss: wait says so. */
bool vk_submit_is_done(struct vk_device *d, uint64_t ticket);

#endif
