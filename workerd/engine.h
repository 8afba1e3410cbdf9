/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_ENGINE_H
#define WORKERD_ENGINE_H

/*
 * The engine thread: owns the device, the plan, the KV cache and the sessions from engine_new to
 * engine_free. Between steps it serves the requests in its queue (all kinds but those that the text
 * thread alone answers), in order.
 *
 * When the device is lost or a step fails, every generation ends as FAILED, MESSAGE_FAILED goes
 * out once, and every further request is refused: the process is to end.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct engine;
struct err;
struct kv;
struct manifest;
struct plan;
struct queue;
struct vk_device;

struct engine_params {
	struct vk_device *device;
	const struct manifest *manifest;
	struct kv *kv;
	struct plan *plan;
	uint32_t n_rows; /* of a step, as the plan was made for */
	struct queue *in;
	struct queue *out; /* answers, tokens and finished generations, to the loop */
};

/* Starts the thread; all borrowed, and not to be touched until engine_free. */
int must_check engine_new(
	const struct engine_params *params, struct err *ret_err, struct engine **ret_engine);

/*
 * The thread ends when it has served what is in its queue, every generation cancelled and every
 * session closed; MESSAGE_STOP is the last that it sends. Does nothing the second time.
 */
void engine_stop(struct engine *e);

/* Stops and waits for the thread. Accepts NULL; returns NULL. */
struct engine *engine_free(struct engine *e);

#endif
