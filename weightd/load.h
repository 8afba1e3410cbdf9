/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_LOAD_H
#define WEIGHTD_LOAD_H

/*
 * One load from front to back: file -> gguf -> validate -> placement -> memory -> fill -> export
 * and manifest. Loader thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/fill.h"

struct checksum;
struct err;
struct export;
struct policy;
struct source_account;
struct source;
struct upload;
struct sum_key;
struct vk_device;
struct vk_device_info;

/* What importers on the device can do, beyond device memory; from the probe. Mappings are shared.
 */
struct load_abilities {
	bool imports_memfd;      /* of memfds, read-write */
	bool imports_file[2][2]; /* of files: [in memory][read-write] */
	/* Host-visible memory leaves as such descriptors, and comes in; dma-bufs are preferred. */
	bool exports_host_fd;
	bool exports_host_dma_buf;
};

/* What a load is for. */
enum load_goal {
	LOAD_NEW,  /* the file to where it is placed */
	LOAD_HEAT, /* the same, and what is staged comes from there; then the memfd goes */
	LOAD_COOL, /* all of it to the memfd, beside what the device has of it; makes no export */
};

struct load_params {
	enum load_goal goal;
	struct vk_device
		*device;     /* NULL: for devices that are not weightd's, in host memory alone */
	struct upload *ring; /* see fill_params */
	uint64_t generation;
	struct source *source;
	const struct policy *policy;
	const struct source_account *account;
	struct load_abilities abilities;
	uint64_t alloc_bytes;     /* the most an allocation may have; 0: the device's limit */
	uint64_t window_bytes;    /* the most an import of host pages may have; 0: as above */
	uint64_t may_free_bytes;  /* of it, that others would give back: see LOAD_SHORT */
	uint64_t room_bytes;      /* of the device, at most; UINT64_MAX: as its driver says */
	uint64_t heap_used_bytes; /* by weights, of the heap that load_find_heap names */
	bool *may_import;         /* heating by imports; false once the driver has refused one */
	bool use_pread;
	const struct sum_key *key;
	struct checksum **checksum; /* of the device, made when it is needed */
	fill_progress_fn progress;
	void *userdata;
};

enum {
	LOAD_DEVICE_LOST = 1,
	LOAD_SHORT = 2, /* ret_short_bytes are missing on the device, and others would give them */
};

/* Index of the largest device-local heap: where weights go. */
uint32_t load_find_heap(const struct vk_device *d);
uint32_t load_find_largest_heap(const struct vk_device_info *info);

/*
 * Everything is freed on failure; ret_err has the sentence. -EINVAL, -ENOTSUP: the file; -E2BIG,
 * -ENOMEM: the device; -ESTALE: the file changed; -EBADMSG: its bytes are
 * not those of the generation's first load; -ECANCELED. A device whose memory ends before its
 * budget said so gets what it had room for, and the rest is placed anew.
 * To cool, host memory must have room for all of it: -ENOSPC.
 * ret_refusal: uring_get_refusal.
 */
int must_check load_run(const struct load_params *params, struct err *ret_err,
	struct export **ret_export, int *ret_refusal, uint64_t *ret_short_bytes);

#endif
