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

/* Runs the commands in order, with a full barrier between two. They must stay until it is done. */
int must_check vk_submit(struct vk_device *d, struct vk_command *const *commands,
	uint32_t n_commands, struct err *ret_err, uint64_t *ret_ticket);

/* 0, -ETIMEDOUT, VK_DEVICE_LOST. Polls for some microseconds before it sleeps. */
int must_check vk_submit_wait(struct vk_device *d, uint64_t ticket, uint64_t timeout_ns);

/* Has the ticket been reached? False too after device loss: wait says so. */
bool vk_submit_is_done(struct vk_device *d, uint64_t ticket);

#endif
