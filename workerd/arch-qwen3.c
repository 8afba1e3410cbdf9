/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/arch-qwen3.h"

#include "proto/manifest.h"
#include "workerd/arch-stack.h"
#include "workerd/graph.h"

static int add_ffn(struct arch_stack *s, uint32_t layer)
{
	const struct manifest_hparams *hp = s->hp;
	struct graph_op up = {.kind = GRAPH_MATMUL,
		.matmul = {.n_parts = 2, .x = s->x, .r = GRAPH_NONE, .finish = OP_MATMUL_SWIGLU}};
	struct graph_op down = {.kind = GRAPH_MATMUL,
		.matmul = {.n_parts = 1, .y = s->x, .r = s->x, .finish = OP_MATMUL_ADD}};
	struct weights_tensor *w = up.matmul.w;
	uint32_t h = GRAPH_NONE; /* [m][n_ff] */
	int r;

	if ((r = arch_stack_find_gain(s, layer, "ffn_norm", hp->n_embd, &up.matmul.gain)) ||
		(r = arch_stack_find(s, layer, "ffn_gate", hp->n_embd, hp->n_ff, 1, &w[0])) ||
		(r = arch_stack_find(s, layer, "ffn_up", hp->n_embd, hp->n_ff, 1, &w[1])) ||
		(r = arch_stack_find(
			 s, layer, "ffn_down", hp->n_ff, hp->n_embd, 1, &down.matmul.w[0])) ||
		(r = graph_add_value(s->g, hp->n_ff, false, s->err, &h)))
		return r;
	graph_name_value(s->g, h, "hidden");
	up.matmul.y = down.matmul.x = h;
	if ((r = graph_add_op(s->g, &up, s->err)))
		return r;
	return graph_add_op(s->g, &down, s->err);
}

int arch_qwen3_build(const struct weights *w, struct graph *g, struct err *ret_err)
{
	return arch_stack_build(w, g, add_ffn, ret_err);
}
