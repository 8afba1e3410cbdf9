/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VK_SUBMIT_H
#define VK_SUBMIT_H

/*
 * The device's compute queue: commands in order, each submission a ticket (the value its timeline
 * semaphore reaches). Submissions of one device run one after the other.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct vk_device;
struct vk_command;

enum { VK_SUBMIT_MAX_COMMANDS = 64 };

/*
 * Runs the commands in order, with a full barrier between two and after what was submitted before.
 * They must stay until it is done. -EINVAL for one that vk_command_end refused or more than the
 * maximum, -EBUSY for one that still runs, -ENOMEM, VK_DEVICE_LOST.
 */
int must_check vk_submit(struct vk_device *d, struct vk_command *const *commands,
	uint32_t n_commands, struct err *ret_err, uint64_t *ret_ticket);

/*
 * 0, -ETIMEDOUT, VK_DEVICE_LOST, -EINVAL for a ticket that was never given. Polls for some
 * microseconds before it sleeps. UINT64_MAX waits for ever.
 */
int must_check vk_submit_wait(struct vk_device *d, uint64_t ticket, uint64_t timeout_ns);

/* Has the ticket been reached? False too after device loss: wait says so. */
bool vk_submit_is_done(struct vk_device *d, uint64_t ticket);

#endif
