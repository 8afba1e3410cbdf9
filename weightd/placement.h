/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_PLACEMENT_H
#define WEIGHTD_PLACEMENT_H

/*
 * Where every tensor of a model lives: a pure function of the tensor table and the device's limits.
 * Tensors are packed in order of file offset, so that the file is read from front to back;
 * boundaries between allocations fall between tensors. Any thread.
 */
#include <stdint.h>

#include "proto/manifest.h"
#include "proto/util/cleanup.h"

struct err;
struct gguf;

enum {
	PLACEMENT_ALIGN = 256,      /* bytes; kernels load tensors with the widest aligned loads */
	PLACEMENT_MAX_ALLOCS = 512, /* a generation: keeps its row of a status below a packet */
};

struct placement_limits {
	const char *device;       /* name, for refusals */
	uint64_t max_alloc_bytes; /* the most one allocation may have */
	uint64_t free_bytes;      /* the most all may have together */
};

struct placement {
	uint64_t n_bytes; /* of all allocations */
	uint32_t n_allocs;
	struct manifest_alloc *allocs; /* [n_allocs], all MANIFEST_PLACEMENT_DEVICE */
	uint32_t n_tensors;
	uint32_t *order;         /* [n_tensors] tensor indices, by file offset */
	uint32_t *tensor_alloc;  /* [n_tensors] by tensor index */
	uint64_t *tensor_offset; /* [n_tensors] by tensor index; bytes into the allocation */
};

/*
 * -E2BIG with figures: a tensor larger than an allocation may be, or too many allocations.
 * -ENOMEM with figures: the device has not enough free. Frees with placement_free.
 */
int must_check placement_new(const struct gguf *g, const struct placement_limits *limits,
	struct err *ret_err, struct placement **ret_placement);

/* Accepts NULL; returns NULL. */
struct placement *placement_free(struct placement *p);

#endif
