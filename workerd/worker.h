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
struct weights_client_report;

struct worker {
	struct weights_client *weightd; /* its connection is the lease */
	struct vk_device *device;
	uint32_t handle_types; /* what of enum weights_client_handle the device takes, a bit each */
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

/* What weightd is told that this worker holds for itself; socket (borrowed): where its clients find
 * it. Before the engine thread runs. */
void worker_describe(
	const struct worker *w, const char *socket, struct weights_client_report *ret_report);

#endif
