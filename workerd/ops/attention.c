/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/attention.h"

#include <errno.h>
#include <math.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "workerd/ops/pool.h"

/*
 * Query heads of one subgroup: each key is loaded once for all of them. A real device has the
 * cache for that and needs the subgroups; a software driver pays for each load.
 */
static uint32_t choose_heads(const struct op_pool *pool, const struct op_attention_params *p)
{
	uint32_t n_group = p->n_head / p->n_head_kv;
	uint32_t n = op_pool_is_software(pool) && p->head_dim <= 128 ? 4 : 1;

	while (n_group % n)
		n /= 2;
	return n;
}

int op_attention_record(struct op_pool *pool, struct vk_command *c,
	const struct op_attention_params *p, struct err *ret_err)
{
	struct abi_attention push = {
		.qkv = p->qkv,
		.y = p->y,
		.rows = p->rows,
		.m = p->m,
		.table = p->table,
		.n_head = p->n_head,
		.n_head_kv = p->n_head_kv,
		.n_slot_pages = p->n_slot_pages,
		.layer = p->layer,
		.scale = 1.0f / sqrtf((float)p->head_dim),
	};

	if (p->head_dim == 0 || p->head_dim % 2 || p->head_dim > OP_ATTENTION_MAX_HEAD_DIM)
		return err_set(ret_err, ENOTSUP,
			"attention: head: expected an even number up to %d, found %u",
			OP_ATTENTION_MAX_HEAD_DIM, p->head_dim);
	if (p->n_head_kv == 0 || p->n_head % p->n_head_kv)
		return err_set(ret_err, ENOTSUP,
			"attention: heads: expected a multiple of %u key heads, found %u",
			p->n_head_kv, p->n_head);
	struct op_pool_kernel kernel = {
		.id = KERNELS_ATTENTION,
		.n_subgroups = 1,
		.n_spec = ABI_ATTENTION_SPEC_HEAD_DIM + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_ATTENTION_SPEC_HEADS - ABI_SPEC_KERNEL] = choose_heads(pool, p),
			[ABI_ATTENTION_SPEC_HEAD_DIM - ABI_SPEC_KERNEL] = p->head_dim},
	};
	uint32_t n_heads = kernel.spec[ABI_ATTENTION_SPEC_HEADS - ABI_SPEC_KERNEL];
	return op_pool_dispatch(pool, c, &kernel, &push, p->n_head / n_heads, p->n_rows, ret_err);
}
