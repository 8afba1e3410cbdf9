/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/arch-qwen3moe.h"

#include <errno.h>

#include "proto/manifest.h"
#include "proto/util/err.h"
#include "workerd/arch-stack.h"
#include "workerd/graph.h"

static int add_routing_values(const struct arch_stack *s, struct graph_routing *ret)
{
	const uint32_t n_expert = s->hp->n_expert, n_used = s->hp->n_expert_used;
	const uint32_t group_words = sizeof(struct abi_group) / 4;
	struct graph_routing v = {.cache = GRAPH_NONE, .wide = GRAPH_NONE};
	int r;

	if ((r = graph_add_value(s->g, n_expert, false, s->err, &v.logits)) ||
		(r = graph_add_value(
			 s->g, sizeof(struct abi_choice) / 4 * n_used, false, s->err, &v.choice)) ||
		(r = graph_add_value(s->g, n_used, false, s->err, &v.pairs)) ||
		(r = graph_add_value(s->g,
			 (group_words * n_used + ABI_GROUP_ROWS - 1) / ABI_GROUP_ROWS, false,
			 s->err, &v.groups)))
		return r;
	graph_extend_value(s->g, v.groups, group_words * n_expert);
	if (s->g->wants_staging) {
		r = graph_add_value(s->g,
			(group_words * n_used + ABI_MIN_WIDE_ROWS - 1) / ABI_MIN_WIDE_ROWS, false,
			s->err, &v.wide);
		if (r)
			return r;
		graph_extend_value(s->g, v.wide, group_words * n_expert);
		graph_name_value(s->g, v.wide, "wide groups");
	}
	graph_name_value(s->g, v.logits, "router");
	graph_name_value(s->g, v.choice, "choice");
	graph_name_value(s->g, v.pairs, "pairs");
	graph_name_value(s->g, v.groups, "groups");
	*ret = v;
	return 0;
}

/* The router, and what becomes of its logits. */
static int add_router(struct arch_stack *s, uint32_t layer, struct graph_routing *ret)
{
	struct graph_op router = {.kind = GRAPH_MATMUL,
		.matmul = {.n_parts = 1, .x = s->x, .r = GRAPH_NONE, .finish = OP_MATMUL_STORE}};
	struct graph_op route = {.kind = GRAPH_ROUTE};
	int r;

	if ((r = arch_stack_find_gain(s, layer, "ffn_norm", s->hp->n_embd, &router.matmul.gain)) ||
		(r = arch_stack_find(s, layer, "ffn_gate_inp", s->hp->n_embd, s->hp->n_expert, 1,
			 &router.matmul.w[0])) ||
		(r = add_routing_values(s, &route.route)))
		return r;
	router.matmul.y = route.route.logits;
	if ((r = graph_add_op(s->g, &router, s->err)) || (r = graph_add_op(s->g, &route, s->err)))
		return r;
	*ret = route.route;
	return 0;
}

static int find_experts(struct arch_stack *s, uint32_t layer, const char *what, uint64_t k,
	uint64_t n, struct graph_op *op)
{
	uint32_t i = op->experts.n_parts++;

	int r = arch_stack_find(s, layer, what, k, n, s->hp->n_expert, &op->experts.w[i]);
	if (r)
		return r;
	op->experts.tables[i] = graph_add_table(s->g, &op->experts.w[i]);
	return 0;
}

static int add_ffn(struct arch_stack *s, uint32_t layer)
{
	const struct manifest_hparams *hp = s->hp;
	struct graph_op up = {.kind = GRAPH_EXPERTS,
		.experts = {.x = s->x, .z = GRAPH_NONE, .finish = OP_EXPERTS_SWIGLU}};
	struct graph_op down = {
		.kind = GRAPH_EXPERTS, .experts = {.y = s->x, .finish = OP_EXPERTS_MIX}};
	uint32_t h = GRAPH_NONE; /* [m][n_expert_used * n_ff_expert] */
	uint32_t n_ff = hp->n_ff_expert;
	int r;

	if ((r = add_router(s, layer, &up.experts.routing)) ||
		(r = arch_stack_find_gain(s, layer, "ffn_norm", hp->n_embd, &up.experts.gain)) ||
		(r = find_experts(s, layer, "ffn_gate_exps", hp->n_embd, n_ff, &up)) ||
		(r = find_experts(s, layer, "ffn_up_exps", hp->n_embd, n_ff, &up)) ||
		(r = find_experts(s, layer, "ffn_down_exps", n_ff, hp->n_embd, &down)) ||
		(r = graph_add_value(s->g, hp->n_expert_used * n_ff, false, s->err, &h)) ||
		(r = graph_add_value(
			 s->g, hp->n_expert_used * hp->n_embd, false, s->err, &down.experts.z)))
		return r;
	down.experts.routing = up.experts.routing;
	graph_name_value(s->g, h, "hidden");
	graph_name_value(s->g, down.experts.z, "mixed");
	up.experts.y = down.experts.x = h;
	if ((r = graph_add_op(s->g, &up, s->err)))
		return r;
	return graph_add_op(s->g, &down, s->err);
}

int arch_qwen3moe_build(const struct weights *w, struct graph *g, struct err *ret_err)
{
	static const struct arch_stack_kind kind = {.add_ffn = add_ffn, .has_head_norms = true};
	const struct manifest_hparams *hp = w->manifest->hparams;

	if (hp->n_expert == 0 || hp->n_expert > ABI_MAX_EXPERTS || hp->n_expert_used == 0 ||
		hp->n_expert_used > hp->n_expert || hp->n_expert_used > ABI_MAX_EXPERTS_USED)
		return err_set(ret_err, EINVAL, "experts: expected up to %d of %d, found %u of %u",
			ABI_MAX_EXPERTS_USED, ABI_MAX_EXPERTS, hp->n_expert_used, hp->n_expert);
	/* Rows of the values are counted in 32 bits. */
	if (hp->n_ff_expert == 0 || hp->n_ff_expert > MANIFEST_MAX_FF)
		return err_set(ret_err, EINVAL, "experts: width: expected 1 to %d, found %u",
			MANIFEST_MAX_FF, hp->n_ff_expert);
	g->n_expert = hp->n_expert;
	g->n_expert_used = hp->n_expert_used;
	return arch_stack_build(w, g, &kind, ret_err);
}
