/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_KV_H
#define WORKERD_KV_H

/*
 * The KV cache: one pool of pages and a page table a session slot. A page holds the keys and values
 * of KV_PAGE_TOKENS positions in every layer; table entries are 64-bit device addresses in io
 * memory, so that recorded commands stay valid when pages move.
 *
 *	page: see workerd/kv-layout.h
 *	table: [n_slots][n_slot_pages] u64, 0 where there is no page
 *
 * Engine thread, between steps: the table is read by a step in flight. Pages are cleared before a
 * session gets them: no session reads another's, or what the driver had there. Whose a page is, is
 * in workerd/pages, and where it is in workerd/kv-chunks.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/kv-layout.h"

struct err;
struct kv;
struct vk_device;
struct vk_memory;
struct vk_slice;

struct kv_params {
	enum kv_layout_type type;
	uint32_t n_layers;
	uint32_t n_head_kv;
	uint32_t head_dim; /* of k and of v */
	uint32_t n_slots;
	uint32_t n_ctx;         /* tokens a slot can hold */
	uint64_t n_tokens;      /* of the pool, rounded up to pages */
	uint64_t n_chunk_bytes; /* allocated at once, at most; 0: chosen */
	bool is_exportable;     /* the memory of pages can leave the process (vk/share.h) */
};

int must_check kv_new(struct vk_device *d, const struct kv_params *params, struct err *ret_err,
	struct kv **ret_kv);
struct kv *kv_free(struct kv *kv);

/*
 * What there is at most: of the device for pages, of which kv_new allocates the first chunk alone,
 * and of io memory. -EINVAL.
 */
int must_check kv_measure(struct vk_device *d, const struct kv_params *params, struct err *ret_err,
	uint64_t *ret_page_bytes, uint64_t *ret_io_bytes);

/* The lowest free slot; -EAGAIN with the number of slots when there is none. */
int must_check kv_open(struct kv *kv, struct err *ret_err, uint32_t *ret_slot);

/* Chunks of memory that nobody has a page of any more are freed, but for one. */
void kv_close(struct kv *kv, uint32_t slot);

/*
 * Pages for positions [0, n_tokens) of the slot, the lowest free ones. Positions from the last
 * reserve's n_tokens on (or kv_truncate's, where that was less) are the ones to be written: no page
 * of them is another slot's too. -ENOSPC with the figures, also where the device has no memory for
 * a chunk of the pool; VK_DEVICE_LOST. On failure the slot keeps what it had.
 */
int must_check kv_reserve(struct kv *kv, uint32_t slot, uint32_t n_tokens, struct err *ret_err);

/*
 * slot, open and empty, begins with the first n_tokens of slot from, which has reserved them. Whole
 * pages are shared; the last one, when it is not full, is copied, with what is behind n_tokens in
 * it. Errors as kv_reserve.
 */
int must_check kv_fork(
	struct kv *kv, uint32_t from, uint32_t n_tokens, uint32_t slot, struct err *ret_err);

/*
 * The slot gets the pages that are known to hold the beginning of tokens[0..n_tokens), where they
 * are more than it has reserved: how many tokens it has then, 0 for no more than before. What is
 * not whole pages is not found. scope: workerd/prefix.h.
 */
uint32_t kv_adopt(
	struct kv *kv, uint32_t slot, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens);

/*
 * The slot's first n_tokens are these, and computed: whole pages of them may be found by kv_adopt,
 * also when the slot is closed, until somebody needs the memory.
 */
void kv_publish(
	struct kv *kv, uint32_t slot, uint64_t scope, const uint32_t *tokens, uint32_t n_tokens);

/*
 * memory holds whole pages of tokens[0..n_tokens), one after the other from its start on, in this
 * cache's layout: kv_adopt finds them, in every scope, and nobody writes there. The memory is
 * borrowed until kv_unlend, and the device has acquired it. -EINVAL for tokens that are no whole
 * pages, or more than the memory or a slot holds; -ENOSPC with the figures for more such pages than
 * there are numbers for.
 */
int must_check kv_lend(struct kv *kv, struct vk_memory *memory, const uint32_t *tokens,
	uint32_t n_tokens, struct err *ret_err, uint32_t *ret_guest);

/* Entries of its pages, which some may have lost with another guest of the same tokens. */
void kv_enter_lent(struct kv *kv, uint32_t guest, const uint32_t *tokens);

/* Has any slot a page of it? */
bool kv_is_lent_used(const struct kv *kv, uint32_t guest);

/* No slot has. */
void kv_unlend(struct kv *kv, uint32_t guest);

/* Gives back the pages behind the first n_tokens. */
void kv_truncate(struct kv *kv, uint32_t slot, uint32_t n_tokens);

const struct kv_params *kv_get_params(const struct kv *kv);
/* [n_slots][n_slot_pages] u64, and bytes up to a multiple of 16. Its version: other contents. */
void kv_get_table(const struct kv *kv, struct vk_slice *ret_table);
uint64_t kv_get_table_version(const struct kv *kv);
uint32_t kv_get_slot_pages(const struct kv *kv);
uint64_t kv_get_bytes(const struct kv *kv); /* of the pool, when all of it is allocated */
uint64_t kv_get_page_bytes(const struct kv *kv);

struct kv_pool {
	uint32_t n_pages;
	uint32_t n_chunks;
	uint32_t n_allocated_chunks;
	uint64_t n_allocated_bytes; /* of those, without what a driver rounds up */
};

void kv_get_pool(const struct kv *kv, struct kv_pool *ret_pool);
uint32_t kv_get_free_pages(const struct kv *kv);

/* Pages. used + cached + free = total. */
struct kv_counters {
	uint32_t n_total;
	uint32_t n_used;   /* that slots have */
	uint32_t n_shared; /* of those, that more than one slot has */
	uint32_t n_cached; /* that nothing but kv_adopt would find */
};

void kv_get_counters(const struct kv *kv, struct kv_counters *ret_counters);

/* The memory of the slot's page at index; -ENOENT when it has none there. */
int must_check kv_get_page(
	const struct kv *kv, uint32_t slot, uint32_t index, struct vk_slice *ret_page);

#endif
