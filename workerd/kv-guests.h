/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_KV_GUESTS_H
#define WORKERD_KV_GUESTS_H

/*
 * Pages of the KV cache that lie in memory of others: which numbers they have, behind those of the
 * pool, and where each of them is. A guest is a memory with pages one after the other from its
 * start on. Pure; engine thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct kv_guests;
struct vk_memory;
struct vk_slice;

enum { KV_GUESTS_MAX = 64 };

struct kv_guests_params {
	uint32_t first_page;
	uint32_t n_pages;
	uint64_t n_page_bytes;
};

/* -ENOMEM. */
int must_check kv_guests_new(const struct kv_guests_params *params, struct kv_guests **ret_guests);

/* Accepts NULL; returns NULL. */
struct kv_guests *kv_guests_free(struct kv_guests *g);

/* The memory is borrowed until kv_guests_remove. -ENOSPC with the figures. */
int must_check kv_guests_add(struct kv_guests *g, struct vk_memory *memory, uint32_t n_pages,
	struct err *ret_err, uint32_t *ret_guest);
void kv_guests_remove(struct kv_guests *g, uint32_t guest);

/* Its pages are [*ret_first, *ret_first + *ret_n). */
void kv_guests_get_pages(
	const struct kv_guests *g, uint32_t guest, uint32_t *ret_first, uint32_t *ret_n);

/* The page is a guest's. */
void kv_guests_get_slice(const struct kv_guests *g, uint32_t page, struct vk_slice *ret_slice);

#endif
