/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/rope-kv.h"

#include <errno.h>
#include <math.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "workerd/ops/pool.h"

_Static_assert(ABI_KV_PAGE_TOKENS == KV_PAGE_TOKENS, "kernels and kv agree on a page");

void op_rope_kv_fill_turns(float base, const float *factors, uint32_t n_rot, uint64_t *ret_turns)
{
	for (uint32_t i = 0; i < n_rot / 2; i++) {
		long double angle = powl(base, -2.0L * i / n_rot) / (factors ? factors[i] : 1.0L);
		long double turns = angle / (2.0L * 3.14159265358979323846264338327950288L);

		/* Whole turns are none: a base or a factor below 1 gives angles above one turn. */
		turns -= floorl(turns);
		ret_turns[i] = (uint64_t)ldexpl(turns, 64);
	}
}

int op_rope_kv_record(struct op_pool *pool, struct vk_command *c, const struct op_rope_kv_params *p,
	struct err *ret_err)
{
	struct op_pool_kernel kernel = {
		.id = p->kv_type == KV_LAYOUT_Q8_0 ? KERNELS_ROPE_KV_Q8_0 : KERNELS_ROPE_KV_F16,
		.n_subgroups = 1};
	struct abi_rope_kv push = {
		.qkv = p->qkv,
		.q_gain = p->q_gain,
		.k_gain = p->k_gain,
		.turns = p->turns,
		.rows = p->rows,
		.m = p->m,
		.table = p->table,
		.n_head = p->n_head,
		.n_head_kv = p->n_head_kv,
		.head_dim = p->head_dim,
		.n_rot = p->n_rot,
		.n_slot_pages = p->n_slot_pages,
		.layer = p->layer,
		.eps = p->eps,
		.is_interleaved = p->is_interleaved,
	};

	if (p->n_rot % 2 || p->n_rot > p->head_dim)
		return err_set(ret_err, EINVAL,
			"rope: rotated dimensions: expected an even number up to %u, found %u",
			p->head_dim, p->n_rot);
	return op_pool_dispatch(
		pool, c, &kernel, &push, p->n_head + p->n_head_kv, p->n_rows, ret_err);
}
