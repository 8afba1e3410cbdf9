/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_FETCH_H
#define WORKERD_FETCH_H

/*
 * Weights in host memory copied into device memory ahead of their use. The graph is cut into
 * segments, one a layer; a layer with such weights has them copied into one of two slots while the
 * segment before it is computed from the other. The device's transfer queue copies what the device
 * has imported; what is `paged` goes through a staging ring. Nothing waits on the host but for a
 * free place of that ring. Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct fetch;
struct graph;
struct vk_device;
struct weights;

/* Ops [first, end) of the graph, all of the head or none. Those of the head are the last. */
struct fetch_segment {
	uint32_t first;
	uint32_t end;
	bool is_head;
	uint64_t n_bytes; /* copied for it; 0: all its weights are read where they are */
};

struct fetch_counters {
	uint64_t copied_bytes; /* by the device, from imported memory */
	uint64_t paged_bytes;  /* through the staging ring */
};

/*
 * w and g are borrowed for the fetch's life. *ret_fetch is NULL where every weight is in device
 * memory, and where there is no device memory for the slots and no `paged` weight needs them (said
 * in one line). Where one does they may spill, or it is -ENOMEM.
 */
int must_check fetch_new(struct vk_device *d, const struct weights *w, const struct graph *g,
	bool may_spill, struct err *ret_err, struct fetch **ret_fetch);

/* No submitted work may use it any more. Accepts NULL; returns NULL. */
struct fetch *fetch_free(struct fetch *f);

/* Some weights are `paged`: no kernel can read them where they are, at any number of rows. */
bool fetch_is_required(const struct fetch *f);

/* The graph with the addresses of the slots in its ops, to be recorded by segments. Borrowed. */
const struct graph *fetch_get_graph(const struct fetch *f);

uint32_t fetch_get_n_segments(const struct fetch *f);
const struct fetch_segment *fetch_get_segment(const struct fetch *f, uint32_t segment);

/*
 * Has the segment's weights copied once its slot is free. *ret_ticket: what the segment's compute
 * must wait for on the transfer queue, 0: nothing. -EIO where a paged file has been cut,
 * VK_DEVICE_LOST.
 */
int must_check fetch_begin(
	struct fetch *f, uint32_t segment, struct err *ret_err, uint64_t *ret_ticket);

/* The slot of the segment is free again when that ticket of the compute queue is done. */
void fetch_end(struct fetch *f, uint32_t segment, uint64_t ticket);

/* All that one streamed step copies, waited for: to be measured. */
int must_check fetch_all(struct fetch *f, struct err *ret_err, uint64_t *ret_bytes);

/* Waits until nothing is copied any more, after an error. */
void fetch_drain(struct fetch *f);

const struct fetch_counters *fetch_get_counters(const struct fetch *f);

/* Forgets what was copied so far. */
void fetch_reset_counters(struct fetch *f);

#endif
