/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/record.h"

#include <errno.h>

#include "vk/command.h"
#include "workerd/graph.h"
#include "workerd/ops/attention.h"
#include "workerd/ops/best.h"
#include "workerd/ops/cache.h"
#include "workerd/ops/embed.h"
#include "workerd/ops/experts.h"
#include "workerd/ops/group.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/rope-kv.h"
#include "workerd/ops/route.h"

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
		.rows = r->a->embed_rows ? r->a->embed_rows : r->a->rows,
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
		.is_exact = r->a->is_exact,
		.finish = op->matmul.finish,
		.eps = r->g->eps,
		.n_rows = r->n_rows,
	};

	if (r->g->has_staging) {
		params.staging = value_address(r, r->g->staging);
		params.n_staging_bytes = graph_value_bytes(r->g, r->g->staging, r->n_rows);
	}
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
		.is_interleaved = r->g->is_rope_interleaved,
		.n_slot_pages = r->a->n_slot_pages,
		.layer = op->rope_kv.layer,
		.kv_type = r->a->kv_type,
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
		.spans = r->a->spans,
		.partials = value_address(r, op->attention.partials),
		.counters = r->a->attention_counters,
		.n_head = r->g->n_head,
		.n_head_kv = r->g->n_head_kv,
		.head_dim = r->g->head_dim,
		.n_slot_pages = r->a->n_slot_pages,
		.layer = op->attention.layer,
		.window = op->attention.window,
		.kv_type = r->a->kv_type,
		.n_rows = r->n_rows,
		.n_spans = r->a->n_spans,
		.tune.kind = r->a->attention,
	};

	return op_attention_record(r->pool, r->c, &params, r->err);
}

/* The cache of the layer's experts, NULL where it has none. */
static const struct op_cache_layer *find_cache(
	const struct recorder *r, const struct graph_routing *routing)
{
	return r->a->expert_caches && routing->cache != GRAPH_NONE
		       ? &r->a->expert_caches[routing->cache]
		       : NULL;
}

/* Few rows need none of it, unless there is a cache to be filled: they choose on the way. */
static int record_route(const struct recorder *r, const struct graph_op *op)
{
	struct op_route_params route = {
		.logits = value_address(r, op->route.logits),
		.choice = value_address(r, op->route.choice),
		.m = r->a->n_rows,
		.n_expert = r->g->n_expert,
		.n_used = r->g->n_expert_used,
		.n_rows = r->n_rows,
	};
	struct op_group_params group = {
		.choice = route.choice,
		.pairs = value_address(r, op->route.pairs),
		.groups = value_address(r, op->route.groups),
		.wide = value_address(r, op->route.wide),
		.m = route.m,
		.n_expert = route.n_expert,
		.n_used = route.n_used,
		.n_rows = route.n_rows,
	};

	struct op_cache_params cache = {
		.layer = find_cache(r, &op->route),
		.choice = route.choice,
		.m = route.m,
		.n_used = route.n_used,
		.n_rows = r->n_rows,
	};
	bool is_grouped = op_experts_is_grouped(r->n_rows, route.n_expert, route.n_used);

	if (!is_grouped && !cache.layer)
		return 0;
	int rc = op_route_record(r->pool, r->c, &route, r->err);
	if (rc)
		return rc;
	vk_command_barrier(r->c);
	return is_grouped ? op_group_record(r->pool, r->c, &group, r->err)
			  : op_cache_record(r->pool, r->c, &cache, r->err);
}

static int record_experts(const struct recorder *r, const struct graph_op *op)
{
	const struct graph_routing *routing = &op->experts.routing;
	bool is_cached = find_cache(r, routing) != NULL;
	bool is_grouped = op_experts_is_grouped(r->n_rows, r->g->n_expert, r->g->n_expert_used);
	struct op_experts_params params = {
		.finish = op->experts.finish,
		.x = value_address(r, op->experts.x),
		.y = value_address(r, op->experts.y),
		.z = value_address(r, op->experts.z),
		.gain = op->experts.gain.address,
		.logits = value_address(r, routing->logits),
		.choice = value_address(r, routing->choice),
		.pairs = value_address(r, routing->pairs),
		.groups = value_address(r, routing->groups),
		.wide = value_address(r, routing->wide),
		.is_exact = r->a->is_exact,
		.m = r->a->n_rows,
		.n_used = r->g->n_expert_used,
		.is_routed = is_cached,
		/* What few rows want has been brought into slots, as far as there are any. */
		.is_far = op->experts.is_far && (is_grouped || !is_cached),
		.eps = r->g->eps,
		.n_rows = r->n_rows,
	};

	if (r->g->has_staging) {
		params.staging = value_address(r, r->g->staging);
		params.n_staging_bytes = graph_value_bytes(r->g, r->g->staging, r->n_rows);
	}
	for (uint32_t i = 0; i < op->experts.n_parts; i++) {
		params.w[i] = op->experts.w[i];
		params.tables[i] = r->a->expert_tables + sizeof(uint64_t) * op->experts.tables[i];
	}
	return op_experts_record(r->pool, r->c, &params, r->err);
}

static int record_best(const struct recorder *r, const struct graph_op *op)
{
	const struct op_best_params params = {
		.logits = value_address(r, op->best.logits),
		.parts = r->a->parts,
		.y = r->a->best,
		.m = r->a->n_want,
		.n = r->g->values[op->best.logits].width,
		.n_rows = r->n_rows,
	};

	return op_best_record(r->pool, r->c, &params, r->err);
}

static int record_op(const struct recorder *r, const struct graph_op *op)
{
	switch (op->kind) {
	case GRAPH_EMBED: return record_embed(r, op);
	case GRAPH_MATMUL: return record_matmul(r, op);
	case GRAPH_ROPE_KV: return record_rope_kv(r, op);
	case GRAPH_ATTENTION: return record_attention(r, op);
	case GRAPH_ROUTE: return record_route(r, op);
	case GRAPH_EXPERTS: return record_experts(r, op);
	case GRAPH_BEST: return record_best(r, op);
	}
	return -EINVAL;
}

int record_graph(const struct graph *g, const struct record_addresses *a, struct op_pool *pool,
	uint32_t n_rows, const struct record_range *range, struct err *ret_err,
	struct vk_command *c)
{
	const struct recorder recorder = {
		.g = g, .a = a, .pool = pool, .c = c, .err = ret_err, .n_rows = n_rows};

	vk_command_begin(c);
	for (uint32_t i = range->first; i < range->end; i++) {
		if (g->ops[i].is_head != range->is_head)
			continue;
		if (range->ret_op)
			*range->ret_op = i;
		uint32_t n_before = vk_command_get_n_dispatches(c);
		int r = record_op(&recorder, &g->ops[i]);
		if (r)
			return r;
		if (vk_command_get_n_dispatches(c) > n_before)
			vk_command_barrier(c);
	}
	vk_command_host_barrier(c);
	return vk_command_end(c, ret_err);
}
