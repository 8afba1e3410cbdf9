/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_TURNS_H
#define WORKERD_TURNS_H

/*
 * A model's table of turns (op_rope_kv_fill_turns), with what its file divides the angles by
 * (rope_freqs.weight), which is read back from wherever it is placed. Engine thread.
 */
#include "proto/util/cleanup.h"

struct err;
struct graph;
struct vk_device;
struct vk_slice;
struct weights;

/*
 * Writes [g->n_rot / 2] u64 to room, host-visible memory that is mapped at map; the device writes
 * there on the way, and is waited for, where the model has factors. -EINVAL where one of them is
 * not above 0 and finite: weightd looks at a tensor's shape, not at its contents.
 */
int must_check turns_fill(struct vk_device *d, const struct weights *w, const struct graph *g,
	const struct vk_slice *room, void *map, struct err *ret_err);

#endif
