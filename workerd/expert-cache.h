/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_EXPERT_CACHE_H
#define WORKERD_EXPERT_CACHE_H

/*
 * Device memory for the experts that few rows want, of layers whose experts are in host memory that
 * the device can read. Each such layer has its share of the budget as slots of one expert each, the
 * least recently used of which is taken for the next. Engine thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/ops/cache.h"

struct err;
struct expert_cache;
struct graph;
struct vk_device;
struct weights;

/*
 * As a number of bytes: what the device has left, less a margin for the workers that come later.
 * None on a software device, and where all memory is the device's own: host memory is no slower.
 */
#define EXPERT_CACHE_AUTO UINT64_MAX

/*
 * Sums over all layers since the start. The device counts in 32 bits a layer, which is months of
 * decoding.
 */
struct expert_cache_counters {
	uint64_t n_slots;
	uint64_t n_bytes;   /* of the slots; they are scratch */
	uint64_t n_found;   /* experts that were in a slot when a step wanted them */
	uint64_t n_fetched; /* that were copied into one */
	uint64_t n_direct;  /* rows' experts read from host memory, all slots being in use */
};

/*
 * Finds the layers and marks their ops in the graph. tables: device address of the graph's expert
 * tables, already filled. n_bytes is lowered to what the device has left, and to what all experts
 * take. *ret_cache is NULL where there is nothing to cache, less than a slot for each layer, or no
 * memory (said in one line, of EXPERT_CACHE_AUTO only where there is something to cache). To be
 * called when all other memory has been made. w is borrowed for the call.
 */
int must_check expert_cache_new(struct vk_device *d, const struct weights *w, struct graph *g,
	uint64_t tables, uint64_t n_bytes, struct err *ret_err, struct expert_cache **ret_cache);

/* No submitted work may use it any more. Accepts NULL; returns NULL. */
struct expert_cache *expert_cache_free(struct expert_cache *c);

/* By the id that graph_routing.cache has; valid as long as the cache. */
const struct op_cache_layer *expert_cache_get_layers(const struct expert_cache *c);

/* Between two steps. */
void expert_cache_get_counters(
	const struct expert_cache *c, struct expert_cache_counters *ret_counters);

#endif
