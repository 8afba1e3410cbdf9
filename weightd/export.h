/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_EXPORT_H
#define WEIGHTD_EXPORT_H

/*
 * What a loaded generation consists of and shows to others: its memory, one descriptor an
 * allocation, and its manifest. The loader thread makes and frees it; between the two, everything
 * but the vk_memory pointers is constant and the loop thread reads it.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/util/cleanup.h"

struct err;
struct vk_memory;

struct export_alloc {
	struct vk_memory *memory; /* owned; the loader thread's alone */
	int fd;                   /* owned: an opaque fd of memory, lent to every packet */
	uint64_t n_bytes;         /* these four are what an importer repeats, vk/share.h */
	uint64_t buffer_bytes;
	uint32_t memory_type_index;
	bool is_dedicated;
	uint32_t placement; /* enum manifest_placement */
	uint32_t heap_index;
	uint64_t inode; /* fstat of fd */
	uint64_t dev;
};

struct export
{
	char architecture[64];
	char format[16]; /* the block format that most weight bytes have */
	uint64_t n_parameters;
	uint32_t n_tensors;
	uint64_t weights_bytes; /* of all allocations */
	int manifest_fd;        /* owned, sealed */
	uint64_t manifest_bytes;
	uint32_t n_allocs;
	struct export_alloc *allocs;
	TAILQ_ENTRY(export) entry; /* the loader's lists */
};

/* n_allocs empty allocations. */
int must_check export_new(uint32_t n_allocs, struct export **ret_export);

/* Closes the descriptors and frees the memory. Loader thread. Accepts NULL; returns NULL. */
struct export *export_free(struct export *e);

/* Makes the descriptors of memory that is filled and released to VK_QUEUE_FAMILY_EXTERNAL.
 * -errno, or EXPORT_DEVICE_LOST, with ret_err. Loader thread. */
enum { EXPORT_DEVICE_LOST = 1 };
int must_check export_share(struct export *e, struct err *ret_err);

/* Frees the memory and keeps the descriptors, before the device goes. Loader thread. */
void export_drop_memory(struct export *e);

#endif
