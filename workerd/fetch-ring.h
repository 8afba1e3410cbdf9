/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_FETCH_RING_H
#define WORKERD_FETCH_RING_H

/*
 * The staging ring of `paged` weights: some places of a piece each, filled by several threads, from
 * where the device copies them on. Engine thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct fetch_ring;
struct vk_device;
struct vk_slice;
struct weights_alloc;

/* Smaller copies lose the bus's rate; and some of them in flight hide the filling. */
enum { FETCH_RING_PIECE_BYTES = 4 << 20, FETCH_RING_N_PLACES = 8 };

/* -ENOMEM, -EAGAIN (no threads). */
int must_check fetch_ring_new(
	struct vk_device *d, struct err *ret_err, struct fetch_ring **ret_ring);

/* Nothing may be copied from it any more. Accepts NULL; returns NULL. */
struct fetch_ring *fetch_ring_free(struct fetch_ring *r);

/* The first n_bytes, at most a piece, of a place. */
void fetch_ring_get_slice(
	const struct fetch_ring *r, uint32_t place, uint64_t n_bytes, struct vk_slice *ret_slice);

/* Puts a part of a paged allocation into a place that nobody copies from. -EIO. */
int must_check fetch_ring_fill(struct fetch_ring *r, uint32_t place, const struct weights_alloc *a,
	uint64_t offset, uint64_t n_bytes, struct err *ret_err);

#endif
