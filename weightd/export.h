/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_EXPORT_H
#define WEIGHTD_EXPORT_H

/*
 * What a generation consists of for one device and shows to others: its memory, one descriptor an
 * allocation, and its manifest. The loader thread makes and frees it; between the two, everything
 * but the vk_memory pointers and the copy is constant and the loop thread reads it.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/util/cleanup.h"
#include "weightd/check.h"
#include "weightd/placement.h"

struct err;
struct source;
struct vk_device;
struct vk_memory;

enum export_handle { /* HandleType of weightd.proto */
	EXPORT_OPAQUE_FD = 1,
	EXPORT_MEMFD = 2,
	EXPORT_FILE = 3,
	EXPORT_DMA_BUF = 4,
	EXPORT_N_HANDLES, /* beyond each of them */
};

/* One way to a memory or window. */
struct export_fd {
	int fd; /* -1: none; lent to every packet */
	enum export_handle handle;
	uint64_t inode; /* fstat of fd */
	uint64_t dev;
};

struct export_alloc {
	struct vk_memory *memory; /* owned; the loader thread's alone; NULL: a window */
	struct export_fd main;    /* owned with memory, else the source's */
	struct export_fd opaque;  /* owned; of a dma-buf's memory, for who imports no dma-bufs */
	uint64_t n_bytes;         /* these four are what an importer repeats, vk/share.h */
	uint64_t buffer_bytes;
	uint32_t memory_type_index;
	bool is_dedicated;
	uint32_t placement;   /* enum manifest_placement */
	uint32_t heap_index;  /* of memory */
	uint64_t file_offset; /* of a window */
	bool is_writable;     /* a window is to be mapped so */
};

struct export
{
	char architecture[64];
	char format[16]; /* the block format that most weight bytes have */
	uint64_t n_parameters;
	uint32_t n_tensors;
	uint64_t weights_bytes;               /* of all allocations */
	uint64_t device_bytes;                /* of those with memory of their own */
	uint64_t n_placed_bytes[PLACEMENT_N]; /* of tensors, by enum manifest_placement */
	uint64_t n_unmet_bytes;               /* see struct placement */
	int manifest_fd;                      /* owned, sealed */
	uint64_t manifest_bytes;
	struct source *source; /* a reference */
	uint64_t host_bytes;   /* of memory that the device exports of the host's */
	bool is_charged;       /* source_charge was done for it */
	struct check *check;   /* owned; weightd/check.h says who reads what of it */
	bool has_file_identity;
	uint8_t file_identity[IDENTITY_BYTES]; /* identity_make_file */
	uint64_t generation;
	bool is_foreign;   /* for devices that are not weightd's */
	bool is_inherited; /* of an earlier weightd: drivers do not count it as this process's */
	/* The loader thread's. */
	struct check_pass scrub_pass;
	uint64_t scrub_round; /* the last one that looked at all of it */
	bool is_suspect;      /* something differed, or could not be looked at: it is left alone */
	uint32_t n_allocs;
	struct export_alloc *allocs;
	uint8_t *sums; /* owned; checksums as the state file keeps them, NULL: none were taken */
	uint32_t n_sums_bytes;
	/* The loop thread's: windows of the file from this index on are in the source's copy of it
	 * too; UINT32_MAX: none. */
	uint32_t copied_from;
	TAILQ_ENTRY(export) entry; /* the loader's lists */
};

/* Memory of a device, and not a window of something in host memory? */
static inline bool export_has_memory(const struct export_alloc *a)
{
	return a->main.handle == EXPORT_OPAQUE_FD || a->main.handle == EXPORT_DMA_BUF;
}

/* What of it is the device's own memory, and not the host's. */
static inline uint64_t export_count_device_bytes(const struct export *e)
{
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < e->n_allocs; i++)
		if (export_has_memory(&e->allocs[i]) &&
			e->allocs[i].placement == MANIFEST_PLACEMENT_DEVICE)
			n_bytes += e->allocs[i].n_bytes;
	return n_bytes;
}

/* n_allocs empty allocations. */
int must_check export_new(uint32_t n_allocs, struct source *source, struct export **ret_export);

/* Closes the descriptors and frees the memory. Loader thread. Accepts NULL; returns NULL. */
struct export *export_free(struct export *e);

/*
 * Makes the descriptors: of memory that is filled and released to VK_QUEUE_FAMILY_EXTERNAL, and
 * those of the source for the windows in p. -errno, or EXPORT_DEVICE_LOST, with ret_err. Loader
 * thread.
 */
enum { EXPORT_DEVICE_LOST = 1 };
int must_check export_share(struct export *e, const struct placement *p, struct err *ret_err);

/*
 * The memory of descriptors that an earlier weightd exported, whose allocations say all that an
 * importer repeats. What is windows stays as it is. The memory stays released to
 * VK_QUEUE_FAMILY_EXTERNAL. -errno, or EXPORT_DEVICE_LOST, with ret_err. Loader thread.
 */
int must_check export_import(struct export *e, struct vk_device *d, struct err *ret_err);

/* Frees the memory and keeps the descriptors, before the device goes. Loader thread. */
void export_drop_memory(struct export *e);

/* It needs the model file to stay as it is. */
bool export_uses_file(const struct export *e);

/* ---- what a worker gets of an allocation ---- */

/* What a worker's driver imports; see Acquire. */
struct export_importer {
	uint32_t handle_types; /* a bit each; 0: opaque descriptors alone */
	/* Allocations from this index on are not imported as that handle; UINT32_MAX: all are. */
	uint32_t refused_from[EXPORT_N_HANDLES];
};

void export_init_importer(struct export_importer *i, uint32_t handle_types);

struct export_offer {
	struct export_fd fd; /* lent */
	uint32_t placement;
	bool is_writable;
};

/*
 * The allocation of that index as the importer takes it: as it is, else memory by its opaque
 * descriptor, a window of the file as one of its copy, a window for reading. -ENOTSUP: nothing that
 * it understands.
 */
int must_check export_get_offer(const struct export *e, uint32_t index,
	const struct export_importer *importer, struct export_offer *ret_offer);

/* The first window of the file that the importer takes as a memfd alone; n_allocs: there is none.
 */
uint32_t export_find_copied(const struct export *e, const struct export_importer *importer);

#endif
