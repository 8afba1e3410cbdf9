/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/arch-qwen3.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "proto/util/err.h"
#include "workerd/graph.h"
#include "workerd/weights.h"

struct builder {
	const struct weights *w;
	const struct manifest_hparams *hp;
	struct graph *g;
	struct err *err;
	uint32_t x; /* the residual stream, [m][n_embd] */
};

/* The tensor of that name, which is k numbers a row and n rows. */
__attribute__((format(printf, 5, 6))) static int find(const struct builder *b, uint64_t k,
	uint64_t n, struct weights_tensor *ret_tensor, const char *format, ...)
{
	struct weights_tensor t = {0};
	char name[64];
	va_list args;

	va_start(args, format);
	vsnprintf(name, sizeof(name), format, args);
	va_end(args);
	int r = weights_find(b->w, name, b->err, &t);
	if (r)
		return r;
	if (t.ne[0] != k || t.ne[1] != n || t.ne[2] != 1 || t.ne[3] != 1)
		return err_set(b->err, EINVAL,
			"%s: shape: expected %" PRIu64 " x %" PRIu64 ", found %" PRIu64
			" x %" PRIu64 " x %" PRIu64 " x %" PRIu64,
			name, k, n, t.ne[0], t.ne[1], t.ne[2], t.ne[3]);
	*ret_tensor = t;
	return 0;
}

/* Kernels read gains as aligned f32. */
static int check_gain(const struct builder *b, const struct weights_tensor *t)
{
	if (t->dtype != DTYPE_F32 || t->address % sizeof(float) ||
		t->n_bytes != t->ne[0] * sizeof(float))
		return err_set(b->err, ENOTSUP,
			"norm: expected %" PRIu64 " aligned f32, found block format %u, %" PRIu64
			" bytes",
			t->ne[0], t->dtype, t->n_bytes);
	return 0;
}

/* The gain of layer's norm `what`, k numbers. */
static int find_gain(const struct builder *b, uint32_t layer, const char *what, uint64_t k,
	struct weights_tensor *ret_tensor)
{
	int r = find(b, k, 1, ret_tensor, "blk.%u.%s.weight", layer, what);
	if (r)
		return r;
	r = check_gain(b, ret_tensor);
	if (r)
		err_prefix(b->err, "blk.%u.%s.weight", layer, what);
	return r;
}

static int add_attention(struct builder *b, uint32_t layer)
{
	const struct manifest_hparams *hp = b->hp;
	uint32_t q_width = hp->n_head * hp->head_dim_k;
	uint32_t kv_width = hp->n_head_kv * hp->head_dim_k;
	struct graph_op qkv = {.kind = GRAPH_MATMUL,
		.matmul = {.n_parts = 3, .x = b->x, .r = GRAPH_NONE, .finish = OP_MATMUL_STORE}};
	struct graph_op rope = {.kind = GRAPH_ROPE_KV, .rope_kv = {.layer = layer}};
	struct graph_op attention = {.kind = GRAPH_ATTENTION, .attention = {.layer = layer}};
	struct graph_op out = {.kind = GRAPH_MATMUL,
		.matmul = {.n_parts = 1, .y = b->x, .r = b->x, .finish = OP_MATMUL_ADD}};
	uint32_t qkv_value = GRAPH_NONE; /* [m][q_width + 2 * kv_width] */
	uint32_t y_value = GRAPH_NONE;   /* [m][q_width] */
	struct weights_tensor *w = qkv.matmul.w;
	int r;

	if ((r = find_gain(b, layer, "attn_norm", hp->n_embd, &qkv.matmul.gain)) ||
		(r = find(b, hp->n_embd, q_width, &w[0], "blk.%u.attn_q.weight", layer)) ||
		(r = find(b, hp->n_embd, kv_width, &w[1], "blk.%u.attn_k.weight", layer)) ||
		(r = find(b, hp->n_embd, kv_width, &w[2], "blk.%u.attn_v.weight", layer)) ||
		(r = find_gain(b, layer, "attn_q_norm", hp->head_dim_k, &rope.rope_kv.q_gain)) ||
		(r = find_gain(b, layer, "attn_k_norm", hp->head_dim_k, &rope.rope_kv.k_gain)) ||
		(r = find(b, q_width, hp->n_embd, &out.matmul.w[0], "blk.%u.attn_output.weight",
			 layer)) ||
		(r = graph_add_value(b->g, q_width + 2 * kv_width, false, b->err, &qkv_value)) ||
		(r = graph_add_value(b->g, q_width, false, b->err, &y_value)))
		return r;
	qkv.matmul.y = rope.rope_kv.qkv = attention.attention.qkv = qkv_value;
	attention.attention.y = out.matmul.x = y_value;
	if ((r = graph_add_op(b->g, &qkv, b->err)) || (r = graph_add_op(b->g, &rope, b->err)) ||
		(r = graph_add_op(b->g, &attention, b->err)))
		return r;
	return graph_add_op(b->g, &out, b->err);
}

static int add_ffn(struct builder *b, uint32_t layer)
{
	const struct manifest_hparams *hp = b->hp;
	struct graph_op up = {.kind = GRAPH_MATMUL,
		.matmul = {.n_parts = 2, .x = b->x, .r = GRAPH_NONE, .finish = OP_MATMUL_SWIGLU}};
	struct graph_op down = {.kind = GRAPH_MATMUL,
		.matmul = {.n_parts = 1, .y = b->x, .r = b->x, .finish = OP_MATMUL_ADD}};
	struct weights_tensor *w = up.matmul.w;
	uint32_t h = GRAPH_NONE; /* [m][n_ff] */
	int r;

	if ((r = find_gain(b, layer, "ffn_norm", hp->n_embd, &up.matmul.gain)) ||
		(r = find(b, hp->n_embd, hp->n_ff, &w[0], "blk.%u.ffn_gate.weight", layer)) ||
		(r = find(b, hp->n_embd, hp->n_ff, &w[1], "blk.%u.ffn_up.weight", layer)) ||
		(r = find(b, hp->n_ff, hp->n_embd, &down.matmul.w[0], "blk.%u.ffn_down.weight",
			 layer)) ||
		(r = graph_add_value(b->g, hp->n_ff, false, b->err, &h)))
		return r;
	up.matmul.y = down.matmul.x = h;
	if ((r = graph_add_op(b->g, &up, b->err)))
		return r;
	return graph_add_op(b->g, &down, b->err);
}

static int add_head(struct builder *b, const struct weights_tensor *embed)
{
	const struct manifest_hparams *hp = b->hp;
	struct graph_op head = {.kind = GRAPH_MATMUL,
		.is_head = true,
		.matmul = {.n_parts = 1, .x = b->x, .r = GRAPH_NONE, .finish = OP_MATMUL_STORE}};
	int r = 0;

	if (hp->tied_embeddings)
		head.matmul.w[0] = *embed;
	else
		r = find(b, hp->n_embd, hp->n_vocab, &head.matmul.w[0], "output.weight");
	if (r || (r = find(b, hp->n_embd, 1, &head.matmul.gain, "output_norm.weight")))
		return r;
	r = check_gain(b, &head.matmul.gain);
	if (r) {
		err_prefix(b->err, "output_norm.weight");
		return r;
	}
	r = graph_add_value(b->g, hp->n_vocab, true, b->err, &head.matmul.y);
	return r ? r : graph_add_op(b->g, &head, b->err);
}

int arch_qwen3_build(const struct weights *w, struct graph *g, struct err *ret_err)
{
	const struct manifest_hparams *hp = w->manifest->hparams;
	struct builder b = {.w = w, .hp = hp, .g = g, .err = ret_err};
	struct graph_op embed = {.kind = GRAPH_EMBED};
	int r;

	if (hp->head_dim_k != hp->head_dim_v)
		return err_set(ret_err, ENOTSUP,
			"heads: expected keys and values of one size, found %u and %u",
			hp->head_dim_k, hp->head_dim_v);
	g->n_head = hp->n_head;
	g->n_head_kv = hp->n_head_kv;
	g->head_dim = hp->head_dim_k;
	g->n_rot = hp->n_rot;
	g->rope_base = hp->rope_base;
	g->eps = hp->rms_eps;

	if ((r = find(&b, hp->n_embd, hp->n_vocab, &embed.embed.w, "token_embd.weight")) ||
		(r = graph_add_value(g, hp->n_embd, false, ret_err, &b.x)))
		return r;
	embed.embed.y = b.x;
	if ((r = graph_add_op(g, &embed, ret_err)))
		return r;
	for (uint32_t layer = 0; layer < hp->n_layers; layer++)
		if ((r = add_attention(&b, layer)) || (r = add_ffn(&b, layer)))
			return r;
	return add_head(&b, &embed.embed.w);
}
