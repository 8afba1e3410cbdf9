/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_PLACEMENT_H
#define WEIGHTD_PLACEMENT_H

/*
 * Where every tensor of a model lives on one device: a pure function of the tensor table, the
 * device's limits and abilities, and the policy. Any thread.
 *
 * Tensors stay on the device until its room is spent. Then the experts leave, layer by layer from
 * the last, then whole layers from the last; what is left of a layer after that (its norms) and the
 * tensors of no layer (embedding, output) go last of all. Who leaves is pinned, else staged, else
 * paged; a rule of the policy may ask for any of them, and gets it or the next one.
 *
 * A tensor is one piece in one allocation. One that is larger than an allocation may be is paged:
 * its reader takes it a part at a time.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/manifest.h"
#include "proto/util/cleanup.h"

struct err;
struct gguf;
struct policy;

enum {
	PLACEMENT_ALIGN = 256,      /* bytes; kernels load tensors with the widest aligned loads */
	PLACEMENT_PIN_ALIGN = 16,   /* what a tensor must have in a file to be used there */
	PLACEMENT_MAX_ALLOCS = 512, /* a generation: keeps its row of a status below a packet */
	PLACEMENT_N = 5,            /* beyond every enum manifest_placement */
};

struct placement_limits {
	const char *device;        /* name, for refusals */
	uint64_t max_alloc_bytes;  /* the most one allocation may have */
	uint64_t max_window_bytes; /* the most one import of host pages may have */
	uint64_t page_bytes;       /* windows begin and end at multiples of it; a power of two */
	uint64_t host_page_bytes;  /* the kernel's, at most page_bytes; of windows that are read */
	uint64_t free_bytes;       /* of the device's memory */
	uint64_t used_bytes;       /* weights that it has already, for the policy's budget */
	/* What others on it would give back, were they asked: see PLACEMENT_SHORT. */
	uint64_t may_free_bytes;
	uint64_t host_free_bytes;
	uint64_t host_used_bytes; /* weights that host memory has already */
	/* [n_tensors] by tensor index: those that the generation's memfd has already, and those
	 * whose pages in the file are charged already; they cost nothing more. NULL: none.
	 * Borrowed.
	 */
	const bool *is_staged;
	const bool *is_pinned;
	uint64_t file_bytes;
	bool has_device;       /* false: nothing can live on it */
	bool can_pin;          /* it imports the model file's own pages */
	bool can_import_memfd; /* staged: windows of a memfd */
	bool can_export_host;  /* else staged: host memory that it exports */
};

/* What an allocation consists of. */
enum placement_home {
	PLACEMENT_DEVICE_MEMORY, /* allocated on the device and exported */
	PLACEMENT_HOST_MEMORY,   /* host-visible memory of the device, exported */
	PLACEMENT_MEMFD,         /* a window of the generation's memfd */
	PLACEMENT_FILE,          /* a window of the model file */
};

struct placement_alloc {
	enum placement_home home;
	uint64_t offset;  /* windows: where in the memfd or file */
	uint64_t n_bytes; /* windows: in whole pages; else as in the manifest */
};

struct placement {
	uint64_t n_bytes;                     /* of all allocations, as in the manifest */
	uint64_t n_placed_bytes[PLACEMENT_N]; /* of tensors, by enum manifest_placement */
	uint64_t n_unmet_bytes; /* of tensors for which the host had no placement but `paged` */
	uint32_t n_allocs;
	struct manifest_alloc *allocs; /* [n_allocs] */
	struct placement_alloc *homes; /* [n_allocs] */
	uint32_t n_tensors;
	uint32_t *order;         /* [n_tensors] tensor indices, by file offset */
	uint32_t *tensor_alloc;  /* [n_tensors] by tensor index */
	uint64_t *tensor_offset; /* [n_tensors] by tensor index; bytes into the allocation */
	uint64_t *memfd_offset;  /* [n_tensors] by tensor index: the same on every device */
	uint64_t memfd_bytes;    /* the memfd's size, holes included */
};

/* A condition of placement_new: something would have to leave the device for want of room, and
 * others could make that room. */
enum { PLACEMENT_SHORT = 1 };

/*
 * PLACEMENT_SHORT sets ret_short_bytes (may be NULL) alone: what is missing, at most
 * may_free_bytes. -E2BIG with figures: too many allocations, or a tensor that a rule wants on the
 * device and is larger than an allocation may be. -ENOMEM with figures: what rules want there does
 * not fit. Frees with placement_free.
 */
int must_check placement_new(const struct gguf *g, const struct placement_limits *limits,
	const struct policy *policy, struct err *ret_err, uint64_t *ret_short_bytes,
	struct placement **ret_placement);

/*
 * The model's tensors lie where memfd_offset says, and no longer where its file has them. Done
 * again, it changes nothing. -EOVERFLOW, -ENOMEM.
 */
int must_check placement_move_to_memfd(struct gguf *g, struct err *ret_err);

/* Accepts NULL; returns NULL. */
struct placement *placement_free(struct placement *p);

#endif
