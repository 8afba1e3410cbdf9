/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PAGE_IO_H
#define WORKERD_PAGE_IO_H

/*
 * Pages of the KV cache to host memory and back, some at a time. Whoever asks waits for the device.
 * Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct kv;
struct page_io;
struct vk_device;

/* Memory of role io for a few MiB of pages, or for one. -ENOMEM, VK_DEVICE_LOST. */
int must_check page_io_new(
	struct vk_device *d, uint64_t n_page_bytes, struct err *ret_err, struct page_io **ret_io);
struct page_io *page_io_free(struct page_io *io);

/* A copy was not done in time, and may go on: nothing is to be asked of the device any more. */
bool page_io_is_stuck(const struct page_io *io);

/* [page_io_get_max pages], borrowed: what was read, or what is to be written. */
uint8_t *page_io_get_bytes(struct page_io *io);
uint32_t page_io_get_max(const struct page_io *io);

/*
 * n pages of the slot, which has them, from index first on; at most page_io_get_max. The pages that
 * are written are the slot's alone (kv_reserve). -ETIMEDOUT, VK_DEVICE_LOST.
 */
int must_check page_io_read(struct page_io *io, const struct kv *kv, uint32_t slot, uint32_t first,
	uint32_t n, struct err *ret_err);
int must_check page_io_write(struct page_io *io, const struct kv *kv, uint32_t slot, uint32_t first,
	uint32_t n, struct err *ret_err);

#endif
