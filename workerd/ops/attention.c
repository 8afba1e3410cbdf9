/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/attention.h"

#include <errno.h>
#include <math.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "workerd/ops/pool.h"

enum {
	/* A software driver leaves loops after 65,535 rounds of an invocation, of all its loops. */
	MAX_ROUNDS = 65000,
	/* Warps that hide the latency of memory where a step has one row. */
	GPU_SPLITS = 8,
};

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

/* Lanes that share a key of n_vecs loads: at least an eighth of a subgroup, see BLOCK there. */
static uint32_t choose_lanes(const struct op_pool *pool, uint32_t n_vecs)
{
	uint32_t n_subgroup = op_pool_get_subgroup_size(pool);
	uint32_t n = n_subgroup / 8;

	while (n < n_vecs && n < n_subgroup)
		n *= 2;
	return n;
}

/* A row's order of sums must not hang on the step's size, so neither may this. */
static uint32_t choose_splits(
	const struct op_pool *pool, const struct op_attention_params *p, uint32_t n_lanes)
{
	uint32_t n_block = ABI_ATTENTION_UNROLL * op_pool_get_subgroup_size(pool) / n_lanes;
	uint64_t n_rounds = (uint64_t)p->n_slot_pages * KV_PAGE_TOKENS / n_block;
	uint32_t n = op_pool_is_software(pool) ? 1 : GPU_SPLITS;

	if (p->n_splits)
		return p->n_splits;
	while (n_rounds / n > MAX_ROUNDS)
		n *= 2;
	return n;
}

static int check(const struct op_attention_params *p, struct err *ret_err)
{
	if (p->head_dim == 0 || p->head_dim % 2 || p->head_dim > OP_ATTENTION_MAX_HEAD_DIM)
		return err_set(ret_err, ENOTSUP,
			"attention: head: expected an even number up to %d, found %u",
			OP_ATTENTION_MAX_HEAD_DIM, p->head_dim);
	if (p->n_head_kv == 0 || p->n_head % p->n_head_kv)
		return err_set(ret_err, ENOTSUP,
			"attention: heads: expected a multiple of %u key heads, found %u",
			p->n_head_kv, p->n_head);
	if (p->n_splits > OP_ATTENTION_MAX_SPLITS)
		return err_set(ret_err, EINVAL, "attention: splits: expected up to %d, found %u",
			OP_ATTENTION_MAX_SPLITS, p->n_splits);
	return 0;
}

int op_attention_record(struct op_pool *pool, struct vk_command *c,
	const struct op_attention_params *p, struct err *ret_err)
{
	struct kv_layout layout = {0};
	int r = check(p, ret_err);

	if (!r && kv_layout_get(p->kv_type, p->n_head_kv, p->head_dim, &layout))
		r = err_set(ret_err, ENOTSUP, "attention: %u key heads are too many", p->n_head_kv);
	if (r)
		return r;
	uint32_t n_heads = choose_heads(pool, p);
	uint32_t n_lanes = choose_lanes(pool, layout.n_row_bytes / KV_LAYOUT_ALIGN);
	uint32_t n_splits = choose_splits(pool, p, n_lanes);
	if (n_splits > OP_ATTENTION_MAX_SPLITS)
		return err_set(ret_err, ENOTSUP, "attention: a context of %u pages is too long",
			p->n_slot_pages);
	const struct abi_attention push = {
		.qkv = p->qkv,
		.y = p->y,
		.rows = p->rows,
		.m = p->m,
		.table = p->table,
		.n_head = p->n_head,
		.n_head_kv = p->n_head_kv,
		.n_slot_pages = p->n_slot_pages,
		.layer = p->layer,
		.window = p->window,
		.scale = 1.0f / sqrtf((float)p->head_dim),
	};
	const struct op_pool_kernel kernel = {
		.id = p->kv_type == KV_LAYOUT_Q8_0 ? KERNELS_ATTENTION_Q8_0 : KERNELS_ATTENTION_F16,
		.n_subgroups = n_splits,
		.n_spec = ABI_ATTENTION_SPEC_SPLITS + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_ATTENTION_SPEC_HEADS - ABI_SPEC_KERNEL] = n_heads,
			[ABI_ATTENTION_SPEC_HEAD_DIM - ABI_SPEC_KERNEL] = p->head_dim,
			[ABI_ATTENTION_SPEC_LANES - ABI_SPEC_KERNEL] = n_lanes,
			[ABI_ATTENTION_SPEC_SPLITS - ABI_SPEC_KERNEL] = n_splits},
	};
	return op_pool_dispatch(
		pool, c, &kernel, &push, p->n_head / n_heads * n_splits, p->n_rows, ret_err);
}
