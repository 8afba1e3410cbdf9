/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PARK_H
#define WORKERD_PARK_H

/*
 * When the engine drops its stack and when it makes it anew: parking, moving to a newer generation,
 * recovery from one that is lost. What it promises is in workerd/engine.h. Engine thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/scheduler.h"

struct engine;
struct err;
struct message;
struct stack;

/* What the scheduler has to know of the stack. */
struct scheduler_params park_get_scheduler_params(const struct stack *s);

/* A stack for the parked engine: its refusal, which leaves the engine parked, or its failure. */
int must_check park_unpark(struct engine *e, struct err *ret_err);

/* Takes a MESSAGE_NOTICE; park_attend acts on it. */
void park_take_notice(struct engine *e, struct message *m);

/* The stack that there is now, or none, is what the link tells of. */
void park_tell_lease(struct engine *e);

/* What is to be done about the stack, between two steps; the engine has not failed. */
void park_attend(struct engine *e);

/* When it is to park if nothing comes, CLOCK_MONOTONIC; UINT64_MAX: never. */
uint64_t park_get_deadline(const struct engine *e);

#endif
