/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/record.h"

#include <errno.h>

#include "vk/command.h"
#include "workerd/graph.h"
#include "workerd/ops/attention.h"
#include "workerd/ops/embed.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/rope-kv.h"

struct recorder {
	const struct graph *g;
	const struct record_addresses *a;
	struct op_pool *pool;
	struct vk_command *c;
	struct err *err;
	uint32_t n_rows;
};

static uint64_t value_address(const struct recorder *r, uint32_t value)
{
	if (value == GRAPH_NONE)
		return 0;
	const struct graph_value *v = &r->g->values[value];
	return v->is_logits ? r->a->logits : r->a->scratch + v->offset;
}

static int record_embed(const struct recorder *r, const struct graph_op *op)
{
	struct op_embed_params params = {
		.w = op->embed.w,
		.rows = r->a->rows,
		.m = r->a->n_rows,
		.y = value_address(r, op->embed.y),
		.n_rows = r->n_rows,
	};

	return op_embed_record(r->pool, r->c, &params, r->err);
}

static int record_matmul(const struct recorder *r, const struct graph_op *op)
{
	struct op_matmul_params params = {
		.n_parts = op->matmul.n_parts,
		.x = value_address(r, op->matmul.x),
		.y = value_address(r, op->matmul.y),
		.gain = op->matmul.gain.address,
		.r = value_address(r, op->matmul.r),
		.m = op->is_head ? r->a->n_want : r->a->n_rows,
		.want = op->is_head ? r->a->want : 0,
		.finish = op->matmul.finish,
		.eps = r->g->eps,
		.n_rows = r->n_rows,
	};

	for (uint32_t i = 0; i < op->matmul.n_parts; i++)
		params.w[i] = op->matmul.w[i];
	return op_matmul_record(r->pool, r->c, &params, r->err);
}

static int record_rope_kv(const struct recorder *r, const struct graph_op *op)
{
	struct op_rope_kv_params params = {
		.qkv = value_address(r, op->rope_kv.qkv),
		.q_gain = op->rope_kv.q_gain.address,
		.k_gain = op->rope_kv.k_gain.address,
		.turns = r->a->turns,
		.rows = r->a->rows,
		.m = r->a->n_rows,
		.table = r->a->table,
		.n_head = r->g->n_head,
		.n_head_kv = r->g->n_head_kv,
		.head_dim = r->g->head_dim,
		.n_rot = r->g->n_rot,
		.n_slot_pages = r->a->n_slot_pages,
		.layer = op->rope_kv.layer,
		.eps = r->g->eps,
		.n_rows = r->n_rows,
	};

	return op_rope_kv_record(r->pool, r->c, &params, r->err);
}

static int record_attention(const struct recorder *r, const struct graph_op *op)
{
	struct op_attention_params params = {
		.qkv = value_address(r, op->attention.qkv),
		.y = value_address(r, op->attention.y),
		.rows = r->a->rows,
		.m = r->a->n_rows,
		.table = r->a->table,
		.n_head = r->g->n_head,
		.n_head_kv = r->g->n_head_kv,
		.head_dim = r->g->head_dim,
		.n_slot_pages = r->a->n_slot_pages,
		.layer = op->attention.layer,
		.n_rows = r->n_rows,
	};

	return op_attention_record(r->pool, r->c, &params, r->err);
}

static int record_op(const struct recorder *r, const struct graph_op *op)
{
	switch (op->kind) {
	case GRAPH_EMBED: return record_embed(r, op);
	case GRAPH_MATMUL: return record_matmul(r, op);
	case GRAPH_ROPE_KV: return record_rope_kv(r, op);
	case GRAPH_ATTENTION: return record_attention(r, op);
	}
	return -EINVAL;
}

int record_graph(const struct graph *g, const struct record_addresses *a, struct op_pool *pool,
	uint32_t n_rows, bool is_head, struct err *ret_err, struct vk_command *c)
{
	const struct recorder recorder = {
		.g = g, .a = a, .pool = pool, .c = c, .err = ret_err, .n_rows = n_rows};

	vk_command_begin(c);
	for (uint32_t i = 0; i < g->n_ops; i++) {
		if (g->ops[i].is_head != is_head)
			continue;
		int r = record_op(&recorder, &g->ops[i]);
		if (r)
			return r;
		vk_command_barrier(c);
	}
	vk_command_host_barrier(c);
	return vk_command_end(c, ret_err);
}
