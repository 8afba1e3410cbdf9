/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_WORKER_H
#define WORKERD_WORKER_H

/*
 * What a worker needs before it can serve: the lease, the device, the weights, the KV cache and the
 * plan. Made on the main thread; device, kv and plan are the engine thread's while that runs.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct kv;
struct options;
struct plan;
struct vk_device;
struct weights;
struct weights_client;

struct worker {
	struct weights_client *weightd; /* its connection is the lease */
	struct vk_device *device;
	struct weights *weights;
	struct kv *kv;
	struct plan *plan;
	uint32_t n_rows; /* of a step: the chunk that fitted */
};

/*
 * Attaches to o->model and allocates. Refused with a sentence: no weightd, no such model, another
 * device, an option that does not fit the model, no memory, a spill under --fail-on-spill.
 */
int must_check worker_new(const struct options *o, struct err *ret_err, struct worker **ret_worker);

/* Gives everything back and ends the lease. Accepts NULL; returns NULL. */
struct worker *worker_free(struct worker *w);

/* Tells weightd what this worker holds for itself; socket: where its clients find it. */
int must_check worker_report(struct worker *w, const char *socket, struct err *ret_err);

#endif
