/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/arch-stack.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "proto/util/err.h"
#include "workerd/graph.h"
#include "workerd/weights.h"

enum { NAME_BYTES = 64 };

static int find(const struct arch_stack *s, const char *name, uint64_t k, uint64_t n,
	uint64_t n_matrices, struct weights_tensor *ret_tensor)
{
	struct weights_tensor t = {0};

	int r = weights_find(s->w, name, s->err, &t);
	if (r)
		return r;
	if (t.ne[0] != k || t.ne[1] != n || t.ne[2] != n_matrices || t.ne[3] != 1)
		return err_set(s->err, EINVAL,
			"%s: shape: expected %" PRIu64 " x %" PRIu64 " x %" PRIu64
			", found %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64,
			name, k, n, n_matrices, t.ne[0], t.ne[1], t.ne[2], t.ne[3]);
	*ret_tensor = t;
	return 0;
}

/* Kernels read gains as aligned f32. */
static int find_gain(
	const struct arch_stack *s, const char *name, uint64_t k, struct weights_tensor *ret_tensor)
{
	struct weights_tensor t = {0};

	int r = find(s, name, k, 1, 1, &t);
	if (r)
		return r;
	if (t.dtype != DTYPE_F32 || t.address % sizeof(float) || t.n_bytes != k * sizeof(float))
		return err_set(s->err, ENOTSUP,
			"%s: norm: expected %" PRIu64
			" aligned f32, found block format %u, %" PRIu64 " bytes",
			name, k, t.dtype, t.n_bytes);
	*ret_tensor = t;
	return 0;
}

/* "blk.<layer>.<what>.weight" */
static void name_tensor(uint32_t layer, const char *what, char ret_name[static NAME_BYTES])
{
	snprintf(ret_name, NAME_BYTES, "blk.%u.%s.weight", layer, what);
}

int arch_stack_find(const struct arch_stack *s, uint32_t layer, const char *what, uint64_t k,
	uint64_t n, uint64_t n_matrices, struct weights_tensor *ret_tensor)
{
	char name[NAME_BYTES];

	name_tensor(layer, what, name);
	return find(s, name, k, n, n_matrices, ret_tensor);
}

int arch_stack_find_gain(const struct arch_stack *s, uint32_t layer, const char *what, uint64_t k,
	struct weights_tensor *ret_tensor)
{
	char name[NAME_BYTES];

	name_tensor(layer, what, name);
	return find_gain(s, name, k, ret_tensor);
}

static int find_head_norms(const struct arch_stack *s, uint32_t layer, struct graph_op *rope)
{
	uint32_t dim = s->hp->head_dim_k;

	if (!s->kind->has_head_norms)
		return 0;
	int r = arch_stack_find_gain(s, layer, "attn_q_norm", dim, &rope->rope_kv.q_gain);
	return r ? r : arch_stack_find_gain(s, layer, "attn_k_norm", dim, &rope->rope_kv.k_gain);
}

static int find_rope(struct arch_stack *s)
{
	static const char factors[] = "rope_freqs.weight";
	struct graph *g = s->g;

	g->n_rot = s->hp->n_rot;
	g->rope_base = s->hp->rope_base;
	g->is_rope_interleaved = s->kind->is_rope_interleaved;
	if (!s->kind->may_have_rope_factors || !manifest_find_tensor(s->w->manifest, factors))
		return 0;
	return find_gain(s, factors, g->n_rot / 2, &g->rope_factors);
}

static int add_attention(struct arch_stack *s, uint32_t layer)
{
	const struct manifest_hparams *hp = s->hp;
	uint32_t q_width = hp->n_head * hp->head_dim_k;
	uint32_t kv_width = hp->n_head_kv * hp->head_dim_k;
	struct graph_op qkv = {.kind = GRAPH_MATMUL,
		.matmul = {.n_parts = 3, .x = s->x, .r = GRAPH_NONE, .finish = OP_MATMUL_STORE}};
	struct graph_op rope = {.kind = GRAPH_ROPE_KV, .rope_kv = {.layer = layer}};
	struct graph_op attention = {.kind = GRAPH_ATTENTION,
		.attention = {.layer = layer, .window = manifest_get_window(hp, layer)}};
	struct graph_op out = {.kind = GRAPH_MATMUL,
		.matmul = {.n_parts = 1, .y = s->x, .r = s->x, .finish = OP_MATMUL_ADD}};
	uint32_t qkv_value = GRAPH_NONE; /* [m][q_width + 2 * kv_width] */
	uint32_t y_value = GRAPH_NONE;   /* [m][q_width] */
	struct weights_tensor *w = qkv.matmul.w;
	int r;

	if ((r = arch_stack_find_gain(s, layer, "attn_norm", hp->n_embd, &qkv.matmul.gain)) ||
		(r = arch_stack_find(s, layer, "attn_q", hp->n_embd, q_width, 1, &w[0])) ||
		(r = arch_stack_find(s, layer, "attn_k", hp->n_embd, kv_width, 1, &w[1])) ||
		(r = arch_stack_find(s, layer, "attn_v", hp->n_embd, kv_width, 1, &w[2])) ||
		(r = find_head_norms(s, layer, &rope)) ||
		(r = arch_stack_find(
			 s, layer, "attn_output", q_width, hp->n_embd, 1, &out.matmul.w[0])) ||
		(r = graph_add_value(s->g, q_width + 2 * kv_width, false, s->err, &qkv_value)) ||
		(r = graph_add_value(s->g, q_width, false, s->err, &y_value)))
		return r;
	graph_name_value(s->g, qkv_value, "qkv");
	graph_name_value(s->g, y_value, "attention");
	qkv.matmul.y = rope.rope_kv.qkv = attention.attention.qkv = qkv_value;
	attention.attention.y = out.matmul.x = y_value;
	if ((r = graph_add_op(s->g, &qkv, s->err)) || (r = graph_add_op(s->g, &rope, s->err)) ||
		(r = graph_add_op(s->g, &attention, s->err)))
		return r;
	return graph_add_op(s->g, &out, s->err);
}

static int add_head(struct arch_stack *s, const struct weights_tensor *embed)
{
	const struct manifest_hparams *hp = s->hp;
	struct graph_op head = {.kind = GRAPH_MATMUL,
		.is_head = true,
		.matmul = {.n_parts = 1, .x = s->x, .r = GRAPH_NONE, .finish = OP_MATMUL_STORE}};
	int r = 0;

	if (hp->tied_embeddings)
		head.matmul.w[0] = *embed;
	else
		r = find(s, "output.weight", hp->n_embd, hp->n_vocab, 1, &head.matmul.w[0]);
	if (r || (r = find_gain(s, "output_norm.weight", hp->n_embd, &head.matmul.gain)) ||
		(r = graph_add_value(s->g, hp->n_vocab, true, s->err, &head.matmul.y)))
		return r;
	struct graph_op best = {
		.kind = GRAPH_BEST, .is_head = true, .best = {.logits = head.matmul.y}};
	r = graph_add_op(s->g, &head, s->err);
	return r ? r : graph_add_op(s->g, &best, s->err);
}

int arch_stack_add_dense(struct arch_stack *s, uint32_t layer)
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

int arch_stack_build(const struct weights *w, struct graph *g, const struct arch_stack_kind *kind,
	struct err *ret_err)
{
	const struct manifest_hparams *hp = w->manifest->hparams;
	struct arch_stack s = {.w = w, .hp = hp, .kind = kind, .g = g, .err = ret_err};
	struct graph_op embed = {.kind = GRAPH_EMBED};
	int r;

	if (hp->head_dim_k != hp->head_dim_v)
		return err_set(ret_err, ENOTSUP,
			"heads: expected keys and values of one size, found %u and %u",
			hp->head_dim_k, hp->head_dim_v);
	g->n_head = hp->n_head;
	g->n_head_kv = hp->n_head_kv;
	g->head_dim = hp->head_dim_k;
	g->eps = hp->rms_eps;

	if ((r = find_rope(&s)) ||
		(r = find(&s, "token_embd.weight", hp->n_embd, hp->n_vocab, 1, &embed.embed.w)) ||
		(r = graph_add_value(g, hp->n_embd, false, ret_err, &s.x)))
		return r;
	graph_name_value(g, s.x, "residual");
	embed.embed.y = s.x;
	if ((r = graph_add_op(g, &embed, ret_err)))
		return r;
	for (uint32_t layer = 0; layer < hp->n_layers; layer++)
		if ((r = add_attention(&s, layer)) || (r = kind->add_ffn(&s, layer)))
			return r;
	return add_head(&s, &embed.embed.w);
}
