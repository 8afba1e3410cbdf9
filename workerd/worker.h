/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_WORKER_H
#define WORKERD_WORKER_H

/*
 * What a worker needs before it can serve: the client of weightd, the device, and the stack on it.
 * Made on the main thread; the stack is the engine's when that has begun, and so is the device.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/stack.h"

struct err;
struct notice_params;
struct options;

struct worker {
	struct stack_params site;
	struct notice_params *notice; /* borrowed */
	struct stack *stack;          /* until the engine takes it */
	uint32_t handle_types; /* what of enum weights_client_handle the device takes, a bit each */
};

/*
 * Attaches to o->model and allocates. Refused with a sentence: no weightd, no such model, another
 * device, an option that does not fit the model, no memory, a spill under --fail-on-spill. What
 * weightd tells from the lease on goes to notice. All is borrowed for the worker's life.
 */
int must_check worker_new(const struct options *o, const char *socket, struct notice_params *notice,
	struct err *ret_err, struct worker **ret_worker);

/* Gives everything back and ends the lease. Accepts NULL; returns NULL. */
struct worker *worker_free(struct worker *w);

#endif
