/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_WEIGHTS_H
#define WORKERD_WEIGHTS_H

/*
 * The attached model: the manifest and the imported memory of one generation. Read-only by
 * agreement: Vulkan's import has no access flag. Made on the main thread, then the engine thread's.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct manifest;
struct vk_device;
struct vk_memory;
struct weights_client;

struct weights {
	struct manifest *manifest;
	uint64_t generation;
	uint32_t n_memories;
	struct vk_memory **memories; /* [n_memories], by manifest alloc index */
	uint64_t n_bytes;            /* of all of them */
	uint64_t attach_ns;          /* Acquire sent to last buffer bound */
};

/* A tensor where it lies. */
struct weights_tensor {
	uint64_t address; /* device address; 0: the model has no such tensor */
	uint32_t dtype;   /* enum dtype_id */
	uint32_t layout;  /* enum manifest_layout */
	uint64_t ne[4];   /* [0] is the row length */
	uint64_t n_bytes;
};

/* Takes a lease, imports every allocation, checks the manifest and acquires ownership. */
int must_check weights_attach(struct weights_client *c, struct vk_device *d, const char *model,
	struct err *ret_err, struct weights **ret_weights);

/* Frees the imports; the lease is the client's connection. Accepts NULL; returns NULL. */
struct weights *weights_free(struct weights *w);

/* Looked up when the plan is built, never in a step. -ENOENT with the name in ret_err. */
int must_check weights_find(const struct weights *w, const char *name, struct err *ret_err,
	struct weights_tensor *ret_tensor);

#endif
