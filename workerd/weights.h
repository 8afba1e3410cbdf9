/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_WEIGHTS_H
#define WORKERD_WEIGHTS_H

/*
 * The attached model: the manifest and the memory of one generation, imported or, where it is
 * `paged`, to be read. Read-only by agreement: Vulkan's import has no access flag. Made on the main
 * thread, then the engine thread's.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/weights-client.h"

struct err;
struct manifest;
struct vk_command;
struct vk_device;
struct vk_memory;

/* Where the bytes of the manifest's allocation of the same index are for this worker. */
struct weights_alloc {
	uint32_t placement;       /* enum manifest_placement; 0: not attached */
	struct vk_memory *memory; /* NULL: paged */
	uint64_t base;            /* where in memory its bytes begin */
	void *map;                /* the host pages behind memory, in a weights_map; NULL: none */
	int kept_fd;              /* as it came, for a weightd that lost its own; `owner` owns it */
	uint32_t owner;           /* index of the first allocation of the same file */
	int fd;                   /* paged: read at file_offset, owned; else -1 */
	uint64_t file_offset;     /* paged */
};

/* A part of one file that has windows. */
struct weights_map {
	uint8_t *pages;
	uint64_t begin; /* in the file */
	uint64_t end;
	uint64_t dev;
	uint64_t inode;
	bool is_writable;
	bool is_memfd;
	int fd; /* borrowed until it is mapped */
};

struct weights {
	struct weights_client_contents contents; /* as weightd told with the lease */
	struct manifest *manifest;
	int manifest_fd; /* as it came, owned */
	uint64_t generation;
	uint32_t n_allocs;
	struct weights_alloc *allocs; /* [n_allocs], by manifest alloc index */
	uint32_t n_maps;
	struct weights_map *maps;
	struct vk_device *device;     /* borrowed; where the command runs */
	struct vk_command *ownership; /* takes the memories over, once; submitted or NULL */
	uint64_t ownership_ticket;
	uint64_t n_bytes;   /* of all of them */
	uint64_t attach_ns; /* Acquire sent to last buffer bound */
};

/* The layer of a tensor that belongs to none. */
enum { WEIGHTS_NO_LAYER = UINT32_MAX };

/* A paged tensor's address is this and its offset: one that no device has. */
#define WEIGHTS_PAGED_ADDRESS (1ull << 63)

/* A tensor where it lies. */
struct weights_tensor {
	uint64_t address; /* device address; 0: the model has no such tensor */
	uint32_t dtype;   /* enum dtype_id */
	uint32_t layout;  /* enum manifest_layout */
	uint64_t ne[4];   /* [0] is the row length */
	uint64_t n_bytes;
	uint32_t alloc;  /* index into weights.allocs */
	uint32_t layer;  /* of "blk.<layer>.", or WEIGHTS_NO_LAYER */
	uint64_t offset; /* into the allocation */
};

struct weights_attach_params {
	struct weights_client *client;
	struct vk_device *device;
	const char *model;
	/* That import, 0: as many as pay, 1: one allocation after the other in order. */
	uint32_t n_threads;
};

/*
 * A condition of weights_attach: the driver refused an import that it was expected to take; ret_err
 * has its reason. The device may be poisoned: it is to be made anew, and another lease taken that
 * does without (weights_client_add_refusal).
 */
enum { WEIGHTS_REFUSED = 2 };

struct weights_refusal {
	uint32_t handle_type; /* enum weights_client_handle */
	uint32_t index;       /* of the allocation */
	/* Nothing was imported beside it; else an allocation after it may be what was refused, and
	 * the poison of that all that this one had. */
	bool is_exact;
};

/*
 * Takes a lease, imports every allocation, checks the manifest and acquires ownership. Descriptors
 * that are host pages are mapped after their size was checked; the mapping lives as long as the
 * memory. ret_refusal is written with WEIGHTS_REFUSED only. On an error the lease is given back.
 * Times are logged at debug.
 */
int must_check weights_attach(const struct weights_attach_params *params, struct err *ret_err,
	struct weights_refusal *ret_refusal, struct weights **ret_weights);

/*
 * The identity of what is attached (weightd/identity.h): whatever was computed with weights of the
 * same identity could have been computed with these. False while weightd has not said it.
 */
bool weights_get_identity(const struct weights *w, uint8_t ret_identity[32]);

/* Frees the imports; the lease is the client's connection. Accepts NULL; returns NULL. */
struct weights *weights_free(struct weights *w);

/* Looked up when the plan is built, never in a step. -ENOENT with the name in ret_err. */
int must_check weights_find(const struct weights *w, const char *name, struct err *ret_err,
	struct weights_tensor *ret_tensor);

/* Of a tensor's name; WEIGHTS_NO_LAYER. */
uint32_t weights_get_layer(const char *name);

/* Bytes of the allocations with that enum manifest_placement. */
uint64_t weights_count_bytes(const struct weights *w, uint32_t placement);

/* Reads a paged allocation's bytes. -EIO with a sentence where the file has been cut. Any thread.
 */
int must_check weights_read(const struct weights_alloc *a, uint64_t offset, uint64_t n_bytes,
	void *ret_bytes, struct err *ret_err);

#endif
