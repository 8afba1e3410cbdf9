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
#include "workerd/ops/matrix-experts.h"
#include "workerd/ops/matvec-experts.h"
#include "workerd/ops/matvec.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/rope-kv.h"
#include "workerd/ops/route.h"
#include "workerd/ops/router.h"
#include "workerd/ops/skinny.h"

struct recorder {
	const struct graph *g;
	const struct record_addresses *a;
	struct op_pool *pool;
	struct vk_command *c;
	struct err *err;
	uint32_t n_rows;
	uint32_t end; /* of the ops that are recorded */
	bool is_spread;
	uint32_t rope_op; /* that the attention behind it does; GRAPH_NONE: none */
	/* What an op has decided for those behind it, whose x it stages.
	 */
	uint32_t matmul_op; /* GRAPH_NONE: nothing */
	struct op_matmul_params matmul;
	uint32_t experts_op;
	struct op_experts_params experts;
	uint32_t staged_op; /* whose x a router has left as bytes, see workerd/ops/router.h */
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
		.picked = r->a->picked,
		.n_rows = r->n_rows,
	};

	return op_embed_record(r->pool, r->c, &params, r->err);
}

/* Commands are for a power of two rows, and the value has room for those that can be. */
static uint64_t count_staging(const struct recorder *r, uint32_t value)
{
	uint32_t n_placed = r->g->n_placed_rows;

	return graph_value_bytes(r->g, value, r->n_rows < n_placed ? r->n_rows : n_placed);
}

/* Ops in a row have different ones, so that one can fill the next one's. */
static uint64_t get_staging(const struct recorder *r, uint32_t i, uint64_t *ret_bytes)
{
	bool is_few = r->n_rows <= OP_MATVEC_MAX_COLUMNS && i % 2;
	uint32_t value = is_few ? r->g->few_staging : r->g->staging;

	*ret_bytes = r->g->has_staging ? count_staging(r, value) : 0;
	return r->g->has_staging ? value_address(r, value) : 0;
}

/* op_skinny fills no other op's, and wants room. */
static bool take_skinny_staging(const struct recorder *r, struct op_matmul_params *p)
{
	struct op_matmul_params wide = *p;

	if (!r->g->has_staging)
		return false;
	wide.staging = value_address(r, r->g->staging);
	wide.n_staging_bytes = count_staging(r, r->g->staging);
	if (!op_skinny_wants(r->pool, &wide))
		return false;
	*p = wide;
	return true;
}

static void get_matmul(const struct recorder *r, uint32_t i, struct op_matmul_params *ret)
{
	const struct graph_op *op = &r->g->ops[i];

	*ret = (struct op_matmul_params){
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
	for (uint32_t k = 0; k < op->matmul.n_parts; k++)
		ret->w[k] = op->matmul.w[k];
	if (!take_skinny_staging(r, ret))
		ret->staging = get_staging(r, i, &ret->n_staging_bytes);
}

/* Is op i one of this kind, of those that are recorded here? */
static bool is_next(const struct recorder *r, uint32_t i, enum graph_op_kind kind)
{
	return i < r->end && !r->g->ops[i].is_head && r->g->ops[i].kind == kind;
}

/* Does nothing but op i read what the op before it writes? */
static bool is_read_by(const struct recorder *r, uint32_t value, uint32_t i)
{
	const struct graph_value *v = &r->g->values[value];

	return v->first_op == i - 1 && v->last_op == i;
}

/* Lets op i, which is p, stage for the matmul behind it: then that is ret_next. */
static bool chain_matmul(const struct recorder *r, uint32_t i, struct op_matmul_params *p,
	struct op_matmul_params *ret_next)
{
	const struct graph_op *op = &r->g->ops[i];

	if (op->is_head || !is_next(r, i + 1, GRAPH_MATMUL) ||
		r->g->ops[i + 1].matmul.x != op->matmul.y)
		return false;
	get_matmul(r, i + 1, ret_next);
	bool is_skinny = op_skinny_wants(r->pool, p);
	bool is_next_skinny = op_skinny_wants(r->pool, ret_next);
	if (is_skinny || is_next_skinny)
		return is_skinny && is_next_skinny && is_read_by(r, op->matmul.y, i + 1) &&
		       op_skinny_chain(r->pool, p, ret_next);
	if (!op_matvec_wants_chain(r->pool, p, ret_next) || !op_matvec_chain(r->pool, p, ret_next))
		return false;
	if (is_read_by(r, op->matmul.y, i + 1))
		p->y = 0;
	return true;
}

static void get_rope_kv(
	const struct recorder *r, const struct graph_op *op, struct op_rope_kv_params *ret)
{
	*ret = (struct op_rope_kv_params){
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
}

static void get_attention(
	const struct recorder *r, const struct graph_op *op, struct op_attention_params *ret)
{
	*ret = (struct op_attention_params){
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
		.is_exact = r->a->is_exact,
		.is_spread = r->is_spread,
		.tune.kind = r->a->attention,
	};
}

/* Does the attention behind op i, a rope, do what that is there for? */
static bool takes_rope(const struct recorder *r, uint32_t i)
{
	struct op_attention_params p;

	if (!is_next(r, i + 1, GRAPH_ATTENTION) ||
		r->g->ops[i + 1].attention.qkv != r->g->ops[i].rope_kv.qkv)
		return false;
	get_attention(r, &r->g->ops[i + 1], &p);
	return op_attention_takes_rope(r->pool, &p);
}

bool record_may_spread(const struct record_addresses *a, const struct op_pool *pool)
{
	const struct op_attention_params p = {
		.is_spread = true, .is_exact = a->is_exact, .tune.kind = a->attention};

	return op_attention_takes_rope(pool, &p);
}

/* Lets op i, which is p, an attention with its rope, stage for the matmul behind it: ret_next. */
static bool chain_attention(const struct recorder *r, uint32_t i, struct op_attention_params *p,
	struct op_matmul_params *ret_next)
{
	const struct graph_op *op = &r->g->ops[i];

	if (!is_next(r, i + 1, GRAPH_MATMUL) || r->g->ops[i + 1].matmul.x != op->attention.y ||
		!op_attention_has_next(p))
		return false;
	get_matmul(r, i + 1, ret_next);
	if (op_skinny_wants(r->pool, ret_next) ||
		!op_matvec_take_staged(r->pool, ret_next, p->n_head * p->head_dim, &p->next_order))
		return false;
	p->next = ret_next->staging;
	if (is_read_by(r, op->attention.y, i + 1))
		p->y = 0;
	return true;
}

static int record_rope_kv(struct recorder *r, uint32_t i)
{
	struct op_rope_kv_params params;

	if (takes_rope(r, i)) {
		r->rope_op = i;
		return 0;
	}
	get_rope_kv(r, &r->g->ops[i], &params);
	return op_rope_kv_record(r->pool, r->c, &params, r->err);
}

static int record_attention(struct recorder *r, uint32_t i)
{
	struct op_attention_params params;
	struct op_rope_kv_params rope;
	struct op_matmul_params next;

	get_attention(r, &r->g->ops[i], &params);
	if (r->rope_op != GRAPH_NONE && r->rope_op + 1 == i) {
		get_rope_kv(r, &r->g->ops[i - 1], &rope);
		params.rope = &rope;
		if (chain_attention(r, i, &params, &next)) {
			r->matmul = next;
			r->matmul_op = i + 1;
		}
	}
	return op_attention_record(r->pool, r->c, &params, r->err);
}

void record_get_matmul(const struct graph *g, const struct record_addresses *a,
	const struct op_pool *pool, uint32_t i, uint32_t n_rows, struct op_matmul_params *ret)
{
	const struct recorder r = {.g = g,
		.a = a,
		.pool = (struct op_pool *)pool,
		.n_rows = n_rows,
		.end = g->n_ops,
		.is_spread = true};
	struct op_attention_params attention;
	struct op_matmul_params other;
	bool is_staged = false;

	if (i > 0 && g->ops[i - 1].kind == GRAPH_MATMUL) {
		get_matmul(&r, i - 1, &other);
		is_staged = chain_matmul(&r, i - 1, &other, ret);
	} else if (i > 1 && g->ops[i - 2].kind == GRAPH_ROPE_KV && takes_rope(&r, i - 2)) {
		get_attention(&r, &g->ops[i - 1], &attention);
		is_staged = chain_attention(&r, i - 1, &attention, ret);
	}
	if (!is_staged)
		get_matmul(&r, i, ret);
	(void)chain_matmul(&r, i, ret, &other);
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
		.wide_rows = op_group_choose_wide(r->n_rows, route.n_expert, route.n_used),
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

static void get_experts(const struct recorder *r, uint32_t i, struct op_experts_params *ret)
{
	const struct graph_op *op = &r->g->ops[i];
	const struct graph_routing *routing = &op->experts.routing;
	bool is_cached = find_cache(r, routing) != NULL;
	bool is_grouped = op_experts_is_grouped(r->n_rows, r->g->n_expert, r->g->n_expert_used);
	*ret = (struct op_experts_params){
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
		.wide_rows = op_group_choose_wide(r->n_rows, r->g->n_expert, r->g->n_expert_used),
		.is_exact = r->a->is_exact,
		.m = r->a->n_rows,
		.n_used = r->g->n_expert_used,
		.is_plain = !is_cached,
		.is_routed = is_cached,
		.is_staged = r->staged_op == i,
		/* What few rows want has been brought into slots, as far as there are any. */
		.is_far = op->experts.is_far && (is_grouped || !is_cached),
		.eps = r->g->eps,
		.n_rows = r->n_rows,
	};

	ret->staging = get_staging(r, i, &ret->n_staging_bytes);
	for (uint32_t k = 0; k < op->experts.n_parts; k++) {
		ret->w[k] = op->experts.w[k];
		ret->tables[k] = r->a->expert_tables + sizeof(uint64_t) * op->experts.tables[k];
	}
}

/* Is op i the product that rows choose their experts by? */
static bool is_router(const struct recorder *r, uint32_t i)
{
	const struct graph_op *op = &r->g->ops[i];

	return !op->is_head && op->matmul.n_parts == 1 && op->matmul.finish == OP_MATMUL_STORE &&
	       is_next(r, i + 1, GRAPH_ROUTE) && r->g->ops[i + 1].route.logits == op->matmul.y;
}

/* Op i multiplies few rows by a router's matrix: with the bytes for the experts, if they want them.
 */
static bool find_router(const struct recorder *r, uint32_t i, struct op_router_params *ret)
{
	const struct graph_op *op = &r->g->ops[i];
	struct op_experts_params first;

	if (!is_router(r, i) ||
		op_experts_is_grouped(r->n_rows, r->g->n_expert, r->g->n_expert_used))
		return false;
	*ret = (struct op_router_params){
		.w = op->matmul.w[0],
		.x = value_address(r, op->matmul.x),
		.gain = op->matmul.gain.address,
		.logits = value_address(r, op->matmul.y),
		.m = r->a->n_rows,
		.is_exact = r->a->is_exact,
		.eps = r->g->eps,
		.n_rows = r->n_rows,
	};
	if (is_next(r, i + 2, GRAPH_EXPERTS)) {
		get_experts(r, i + 2, &first);
		if (first.x == ret->x && first.gain == ret->gain &&
			op_matvec_experts_fits(r->pool, &first)) {
			ret->staging = first.staging;
			ret->order = op_matvec_experts_get_order(&first);
		}
	}
	return op_router_fits(ret);
}

static int record_matmul(struct recorder *r, uint32_t i)
{
	/* Its matrix is small: up to so many rows more dispatches cost more than they save. */
	enum { MAX_ROUTER_ROWS = 64 };
	struct op_matmul_params params = r->matmul, next;
	struct op_router_params router;

	if (r->matmul_op != i)
		get_matmul(r, i, &params);
	if (!params.is_staged && find_router(r, i, &router)) {
		r->staged_op = router.staging ? i + 2 : GRAPH_NONE;
		return op_router_record(r->pool, r->c, &router, r->err);
	}
	if (is_router(r, i) && r->n_rows <= MAX_ROUTER_ROWS && !params.is_staged)
		params.is_exact = true;
	if (chain_matmul(r, i, &params, &next)) {
		r->matmul = next;
		r->matmul_op = i + 1;
	}
	return op_matmul_record(r->pool, r->c, &params, r->err);
}

/* Lets op i, which is p, stage for the matmul behind it: then that is r->matmul. */
static void chain_experts(struct recorder *r, uint32_t i, struct op_experts_params *p)
{
	struct op_matmul_params after;

	if (!op_matvec_experts_wants_chain(r->pool) || !is_next(r, i + 1, GRAPH_MATMUL) ||
		r->g->ops[i + 1].matmul.x != r->g->ops[i].experts.y)
		return;
	get_matmul(r, i + 1, &after);
	if (op_matvec_experts_chain(r->pool, p, &after)) {
		r->matmul = after;
		r->matmul_op = i + 1;
	}
}

/* Of many rows the first of the two makes x of the second as that one reads it. */
static int record_experts(struct recorder *r, uint32_t i)
{
	struct op_experts_params params = r->experts;

	if (r->experts_op != i)
		get_experts(r, i, &params);
	if (params.finish == OP_EXPERTS_MIX) {
		chain_experts(r, i, &params);
	} else if (is_next(r, i + 1, GRAPH_EXPERTS)) {
		get_experts(r, i + 1, &r->experts);
		if (op_matrix_experts_chain(r->pool, &params, &r->experts))
			r->experts_op = i + 1;
	}
	return op_experts_record(r->pool, r->c, &params, r->err);
}

static int record_best(const struct recorder *r, const struct graph_op *op)
{
	const struct op_best_params params = {
		.logits = value_address(r, op->best.logits),
		.parts = r->a->parts,
		.y = r->a->best,
		.picked = r->a->picked,
		.asked = r->a->asked,
		.m = r->a->n_want,
		.n = r->g->values[op->best.logits].width,
		.n_rows = r->n_rows,
	};

	return op_best_record(r->pool, r->c, &params, r->err);
}

static int record_op(struct recorder *r, uint32_t i)
{
	const struct graph_op *op = &r->g->ops[i];

	switch (op->kind) {
	case GRAPH_EMBED: return record_embed(r, op);
	case GRAPH_MATMUL: return record_matmul(r, i);
	case GRAPH_ROPE_KV: return record_rope_kv(r, i);
	case GRAPH_ATTENTION: return record_attention(r, i);
	case GRAPH_ROUTE: return record_route(r, op);
	case GRAPH_EXPERTS: return record_experts(r, i);
	case GRAPH_BEST: return record_best(r, op);
	}
	return -EINVAL;
}

static int record_all(const struct graph *g, const struct record_addresses *a, struct op_pool *pool,
	uint32_t n_rows, const struct record_range *range, struct err *ret_err,
	struct vk_command *c)
{
	struct recorder recorder = {
		.g = g,
		.a = a,
		.pool = pool,
		.c = c,
		.err = ret_err,
		.n_rows = n_rows,
		.end = range->end < g->n_ops ? range->end : g->n_ops,
		.is_spread = range->is_spread,
		.rope_op = GRAPH_NONE,
		.matmul_op = GRAPH_NONE,
		.experts_op = GRAPH_NONE,
		.staged_op = GRAPH_NONE,
	};

	vk_command_begin(c);
	for (uint32_t i = range->first; i < recorder.end; i++) {
		if (g->ops[i].is_head != range->is_head)
			continue;
		if (range->ret_op)
			*range->ret_op = i;
		uint32_t n_before = vk_command_get_n_dispatches(c);
		int r = record_op(&recorder, i);
		if (r)
			return r;
		if (vk_command_get_n_dispatches(c) > n_before)
			vk_command_barrier(c);
	}
	vk_command_host_barrier(c);
	return vk_command_end(c, ret_err);
}

int record_graph(const struct graph *g, const struct record_addresses *a, struct op_pool *pool,
	uint32_t n_rows, const struct record_range *range, struct err *ret_err,
	struct vk_command *c)
{
	/* What it takes is found out first: the pipelines that are missing are made side by side.
	 */
	op_pool_gather(pool);
	int r = record_all(g, a, pool, n_rows, range, ret_err, c);
	op_pool_make(pool);
	return r ? r : record_all(g, a, pool, n_rows, range, ret_err, c);
}
