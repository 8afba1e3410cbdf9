/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_STOPWATCH_H
#define WORKERD_STOPWATCH_H

/*
 * How long recorded commands take on a device that is awake (workerd/warm.h). Commands that are to
 * be compared are run in turn, so that what changes meanwhile changes all of them, and of each the
 * median counts: one run that others of this GPU disturbed is none.
 *
 * Engine thread, between two steps.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct stopwatch;
struct vk_command;
struct vk_device;

enum { STOPWATCH_N_STAMPS = 2, STOPWATCH_MAX_COMMANDS = 4, STOPWATCH_MAX_RUNS = 15 };

/* d outlives it. Errors as of warm_new. */
int must_check stopwatch_new(
	struct vk_device *d, struct err *ret_err, struct stopwatch **ret_watch);

/* Accepts NULL; returns NULL. */
struct stopwatch *stopwatch_free(struct stopwatch *w);

/*
 * n commands that are ended and have STOPWATCH_N_STAMPS, at the begin and the end of what is
 * measured. Each is run once before, which may compile something, then n_runs times.
 * -ENOTSUP without timestamps, VK_DEVICE_LOST.
 */
int must_check stopwatch_time(struct stopwatch *w, struct vk_command *const *commands, uint32_t n,
	uint32_t n_runs, struct err *ret_err, uint64_t *ret_ns);

#endif
