/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_KV_CHUNKS_H
#define WORKERD_KV_CHUNKS_H

/*
 * The memory of the KV cache's pages, in chunks of some pages each that are allocated when a page
 * of them is wanted first and freed when none of theirs is in use any more, but for one: an idle
 * worker has one chunk at most. Pages do not straddle chunks. Fresh memory is whatever the driver
 * had there. Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct kv_chunks;
struct vk_device;
struct vk_slice;

struct kv_chunks_params {
	uint64_t n_page_bytes; /* > 0, at most what the device allocates at once */
	uint32_t n_pages;      /* > 0 */
	uint64_t n_bytes;      /* of a chunk, at most, but a page at least; 0: chosen */
	bool is_exportable;
};

/* Allocates the first chunk. -ENOMEM and the other errors of vk_memory_new. */
int must_check kv_chunks_new(struct vk_device *d, const struct kv_chunks_params *params,
	struct err *ret_err, struct kv_chunks **ret_chunks);

/* No submitted work may use them any more. Accepts NULL; returns NULL. */
struct kv_chunks *kv_chunks_free(struct kv_chunks *c);

/*
 * Memory for the page, if it has none; of the first chunk alone it may be host memory. -ENOMEM with
 * the figures, VK_DEVICE_LOST.
 */
int must_check kv_chunks_need(struct kv_chunks *c, uint32_t page, struct err *ret_err);

typedef bool (*kv_chunks_is_used_fn)(const void *userdata, uint32_t page);

/* Frees chunks without a page in use, but for the first of them; no work may be under way there. */
void kv_chunks_trim(struct kv_chunks *c, kv_chunks_is_used_fn is_used, const void *userdata);

/* Where n pages from this one on are, all of one chunk that has memory. */
void kv_chunks_get_slice(
	const struct kv_chunks *c, uint32_t page, uint32_t n, struct vk_slice *ret_slice);

/* Pages from this one to the end of its chunk. */
uint32_t kv_chunks_count_rest(const struct kv_chunks *c, uint32_t page);

struct kv_chunks_figures {
	uint32_t n_chunks;
	uint32_t n_allocated;
	uint64_t n_allocated_bytes; /* as asked for */
};

void kv_chunks_get_figures(const struct kv_chunks *c, struct kv_chunks_figures *ret_figures);

#endif
