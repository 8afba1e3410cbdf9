/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/cache.h"

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "workerd/ops/pool.h"

/*
 * What a subgroup copies. Enough of them that a bus with microseconds of latency is kept busy, and
 * on a software driver loops stay far below the 65,536 rounds at which it leaves them.
 */
enum { CHUNK_BYTES = 16 << 10 };

int op_cache_record(struct op_pool *pool, struct vk_command *c, const struct op_cache_params *p,
	struct err *ret_err)
{
	const struct op_cache_layer *l = p->layer;
	struct op_pool_kernel kernel = {.id = KERNELS_CACHE, .n_subgroups = 1};
	struct abi_cache push = {.layer = l->layer,
		.state = l->state,
		.slots = l->slots,
		.misses = l->misses,
		.counts = l->counts,
		.choice = p->choice,
		.m = p->m,
		.n_slots = l->n_slots,
		.n_used = p->n_used};
	uint32_t n_pairs = p->n_rows * p->n_used;
	uint32_t n_chunks = (l->n_expert_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;

	int r = op_pool_dispatch(pool, c, &kernel, &push, 1, 1, ret_err);
	if (r)
		return r;
	vk_command_barrier(c);
	kernel.id = KERNELS_CACHE_FILL;
	return op_pool_dispatch(pool, c, &kernel, &push, n_chunks,
		n_pairs < l->n_slots ? n_pairs : l->n_slots, ret_err);
}
