/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_CACHE_H
#define WORKERD_OPS_CACHE_H

/*
 * A layer's experts brought into device memory before they are read (shaders/cache.comp and
 * shaders/cache-fill.comp). The device alone decides: no step waits for the host.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct op_pool;
struct vk_command;

/* Device addresses of a layer's cache, see struct abi_cache. */
struct op_cache_layer {
	uint64_t layer;
	uint64_t state;
	uint64_t slots;
	uint64_t misses;
	uint64_t counts;
	uint32_t n_slots;
	uint32_t n_expert_bytes; /* of all parts */
};

struct op_cache_params {
	const struct op_cache_layer *layer;
	uint64_t choice; /* of [m][n_used] struct abi_choice */
	uint64_t m;      /* of u32: rows of the step */
	uint32_t n_used;
	uint32_t n_rows; /* the most that m can be */
};

/* Records it. Errors of op_pool_dispatch. Engine thread. */
int must_check op_cache_record(struct op_pool *pool, struct vk_command *c,
	const struct op_cache_params *params, struct err *ret_err);

#endif
