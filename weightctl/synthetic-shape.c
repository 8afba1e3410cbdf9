/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/synthetic-shape.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "weightctl/synthetic-block.h"

/* config.json of the models named; tiny is of no model. */
static const struct synthetic_shape shapes[] = {
	{.name = "llama-8b",
		.arch = "llama",
		.pre = "llama-bpe",
		.n_layers = 32,
		.n_embd = 4096,
		.n_ff = 14336,
		.n_head = 32,
		.n_head_kv = 8,
		.head_dim = 128,
		.n_vocab = 128256,
		.n_ctx = 131072,
		.rope_base = 500000,
		.eps = 1e-5f,
		.rope_factor = 8,
		.n_control = 256,
		.bos = 128000,
		.eos = 128009,
		.adds_bos = true},
	{.name = "llama-1b",
		.arch = "llama",
		.pre = "llama-bpe",
		.n_layers = 16,
		.n_embd = 2048,
		.n_ff = 8192,
		.n_head = 32,
		.n_head_kv = 8,
		.head_dim = 64,
		.n_vocab = 128256,
		.n_ctx = 131072,
		.rope_base = 500000,
		.eps = 1e-5f,
		.rope_factor = 32,
		.is_tied = true,
		.n_control = 256,
		.bos = 128000,
		.eos = 128009,
		.adds_bos = true},
	{.name = "qwen3-0.6b",
		.arch = "qwen3",
		.pre = "qwen2",
		.n_layers = 28,
		.n_embd = 1024,
		.n_ff = 3072,
		.n_head = 16,
		.n_head_kv = 8,
		.head_dim = 128,
		.n_vocab = 151936,
		.n_ctx = 40960,
		.rope_base = 1000000,
		.eps = 1e-6f,
		.is_tied = true,
		.has_qk_norm = true,
		.n_control = 293,
		.bos = 151643,
		.eos = 151645},
	{.name = "qwen3-8b",
		.arch = "qwen3",
		.pre = "qwen2",
		.n_layers = 36,
		.n_embd = 4096,
		.n_ff = 12288,
		.n_head = 32,
		.n_head_kv = 8,
		.head_dim = 128,
		.n_vocab = 151936,
		.n_ctx = 40960,
		.rope_base = 1000000,
		.eps = 1e-6f,
		.has_qk_norm = true,
		.n_control = 293,
		.bos = 151643,
		.eos = 151645},
	{.name = "qwen3moe-30b-a3b",
		.arch = "qwen3moe",
		.pre = "qwen2",
		.n_layers = 48,
		.n_embd = 2048,
		.n_ff = 6144,
		.n_head = 32,
		.n_head_kv = 4,
		.head_dim = 128,
		.n_vocab = 151936,
		.n_ctx = 40960,
		.rope_base = 1000000,
		.eps = 1e-6f,
		.has_qk_norm = true,
		.n_expert = 128,
		.n_expert_used = 8,
		.n_expert_ff = 768,
		.n_control = 293,
		.bos = 151643,
		.eos = 151645},
	{.name = "tiny",
		.arch = "qwen3",
		.pre = "qwen2",
		.n_layers = 4,
		.n_embd = 256,
		.n_ff = 768,
		.n_head = 4,
		.n_head_kv = 2,
		.head_dim = 64,
		.n_vocab = 512,
		.n_ctx = 4096,
		.rope_base = 1000000,
		.eps = 1e-6f,
		.has_qk_norm = true,
		.n_control = 4,
		.bos = 508,
		.eos = 510},
};

/* file_type: llama.h, enum llama_ftype. */
static const struct synthetic_type types[] = {
	{"f16", SYNTHETIC_BLOCK_F16, SYNTHETIC_BLOCK_F16, 1},
	{"q8_0", SYNTHETIC_BLOCK_Q8_0, SYNTHETIC_BLOCK_Q8_0, 7},
	{"q4_0", SYNTHETIC_BLOCK_Q4_0, SYNTHETIC_BLOCK_Q4_0, 2},
	{"q4_k", SYNTHETIC_BLOCK_Q4_K, SYNTHETIC_BLOCK_Q4_K, 14},
	{"q4_k_m", SYNTHETIC_BLOCK_Q4_K, SYNTHETIC_BLOCK_Q6_K, 15},
	{"q6_k", SYNTHETIC_BLOCK_Q6_K, SYNTHETIC_BLOCK_Q6_K, 18},
	{"tq2_0", SYNTHETIC_BLOCK_TQ2_0, SYNTHETIC_BLOCK_TQ2_0, 37},
	{"q2_0", SYNTHETIC_BLOCK_Q2_0, SYNTHETIC_BLOCK_Q2_0, 41},
	{"q1_0", SYNTHETIC_BLOCK_Q1_0, SYNTHETIC_BLOCK_Q1_0, 40},
};

static int refuse_name(const char *name, struct err *ret_err)
{
	char text[384];
	int n = snprintf(text, sizeof(text), "SHAPE:TYPE, a shape of");

	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %s", shapes[i].name);
	n += snprintf(text + n, sizeof(text) - (size_t)n, " and a type of");
	for (size_t i = 0; i < ARRAY_SIZE(types); i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %s", types[i].name);
	return err_set(ret_err, EINVAL, "--synthetic: expected %s, found %.60s", text, name);
}

int synthetic_shape_find(const char *name, struct err *ret_err,
	const struct synthetic_shape **ret_shape, const struct synthetic_type **ret_type)
{
	const char *colon = strchr(name, ':');
	const struct synthetic_shape *shape = NULL;
	const struct synthetic_type *type = NULL;

	for (size_t i = 0; colon && i < ARRAY_SIZE(shapes); i++)
		if (strlen(shapes[i].name) == (size_t)(colon - name) &&
			!memcmp(shapes[i].name, name, (size_t)(colon - name)))
			shape = &shapes[i];
	for (size_t i = 0; colon && i < ARRAY_SIZE(types); i++)
		if (!strcmp(types[i].name, colon + 1))
			type = &types[i];
	if (!shape || !type)
		return refuse_name(name, ret_err);
	*ret_shape = shape;
	*ret_type = type;
	return 0;
}

/* ---- tensors ---- */

enum { LAYER_TENSORS = 12, OTHER_TENSORS = 4 };

struct list {
	const struct synthetic_shape *shape;
	const struct synthetic_type *type;
	uint64_t align;
	struct err *err;
	struct synthetic_tensor *tensors;
	uint32_t n;
	uint64_t n_bytes;
	int error;
};

static void add(struct list *l, const struct synthetic_tensor *from)
{
	struct synthetic_tensor *t = &l->tensors[l->n];
	const struct synthetic_block *block = synthetic_block_find(from->dtype);
	uint64_t n = 1;

	if (l->error)
		return;
	*t = *from;
	for (uint32_t i = 0; i < t->n_dims; i++)
		n *= t->ne[i];
	if (t->ne[0] % block->n_block) {
		l->error = err_set(l->err, EINVAL,
			"%s:%s: %s: expected rows of whole blocks of %u, found %" PRIu64,
			l->shape->name, l->type->name, t->name, block->n_block, t->ne[0]);
		return;
	}
	t->n_bytes = n / block->n_block * block->n_bytes;
	t->offset = l->n_bytes;
	l->n_bytes += (t->n_bytes + l->align - 1) & ~(l->align - 1);
	l->n++;
}

static void add_gains(struct list *l, const char *name, uint64_t n)
{
	struct synthetic_tensor t = {
		.n_dims = 1, .ne = {n, 1, 1}, .dtype = SYNTHETIC_BLOCK_F32, .fill = SYNTHETIC_ONES};

	snprintf(t.name, sizeof(t.name), "%s", name);
	add(l, &t);
}

static void add_matrix(
	struct list *l, const char *name, uint64_t k, uint64_t n, uint64_t n_expert, uint32_t dtype)
{
	struct synthetic_tensor t = {.n_dims = n_expert ? 3 : 2,
		.ne = {k, n, n_expert ? n_expert : 1},
		.dtype = dtype,
		.fill = SYNTHETIC_WEIGHTS};

	snprintf(t.name, sizeof(t.name), "%s", name);
	add(l, &t);
}

static void add_layer_gains(struct list *l, uint32_t layer, const char *what, uint64_t n)
{
	char name[SYNTHETIC_NAME_BYTES];

	snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, what);
	add_gains(l, name, n);
}

static void add_layer_matrix(struct list *l, uint32_t layer, const char *what, uint64_t k,
	uint64_t n, uint64_t n_expert, uint32_t dtype)
{
	char name[SYNTHETIC_NAME_BYTES];

	snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, what);
	add_matrix(l, name, k, n, n_expert, dtype);
}

/*
 * Where llama-quantize's Q4_K_M spends more bits on v and down: the first and last eighth of the
 * layers and every third between them.
 */
static bool has_more(const struct synthetic_shape *s, uint32_t layer)
{
	uint32_t eighth = s->n_layers / 8;

	return layer < eighth || layer >= 7 * s->n_layers / 8 || (layer - eighth) % 3 == 2;
}

static void add_layer(struct list *l, uint32_t i)
{
	const struct synthetic_shape *s = l->shape;
	uint32_t dtype = l->type->dtype, more = has_more(s, i) ? l->type->dtype_more : dtype;
	uint64_t q = (uint64_t)s->n_head * s->head_dim, kv = (uint64_t)s->n_head_kv * s->head_dim;

	add_layer_gains(l, i, "attn_norm", s->n_embd);
	add_layer_matrix(l, i, "attn_q", s->n_embd, q, 0, dtype);
	add_layer_matrix(l, i, "attn_k", s->n_embd, kv, 0, dtype);
	add_layer_matrix(l, i, "attn_v", s->n_embd, kv, 0, more);
	add_layer_matrix(l, i, "attn_output", q, s->n_embd, 0, dtype);
	if (s->has_qk_norm) {
		add_layer_gains(l, i, "attn_q_norm", s->head_dim);
		add_layer_gains(l, i, "attn_k_norm", s->head_dim);
	}
	add_layer_gains(l, i, "ffn_norm", s->n_embd);
	if (s->n_expert == 0) {
		add_layer_matrix(l, i, "ffn_gate", s->n_embd, s->n_ff, 0, dtype);
		add_layer_matrix(l, i, "ffn_up", s->n_embd, s->n_ff, 0, dtype);
		add_layer_matrix(l, i, "ffn_down", s->n_ff, s->n_embd, 0, more);
		return;
	}
	add_layer_matrix(l, i, "ffn_gate_inp", s->n_embd, s->n_expert, 0, SYNTHETIC_BLOCK_F32);
	add_layer_matrix(l, i, "ffn_gate_exps", s->n_embd, s->n_expert_ff, s->n_expert, dtype);
	add_layer_matrix(l, i, "ffn_up_exps", s->n_embd, s->n_expert_ff, s->n_expert, dtype);
	add_layer_matrix(l, i, "ffn_down_exps", s->n_expert_ff, s->n_embd, s->n_expert, more);
}

static void add_all(struct list *l)
{
	const struct synthetic_shape *s = l->shape;

	add_matrix(l, "token_embd.weight", s->n_embd, s->n_vocab, 0,
		s->is_tied ? l->type->dtype_more : l->type->dtype);
	add_gains(l, "output_norm.weight", s->n_embd);
	if (!s->is_tied)
		add_matrix(l, "output.weight", s->n_embd, s->n_vocab, 0, l->type->dtype_more);
	if (s->rope_factor > 0) {
		const struct synthetic_tensor rope = {.name = "rope_freqs.weight",
			.n_dims = 1,
			.ne = {s->head_dim / 2, 1, 1},
			.dtype = SYNTHETIC_BLOCK_F32,
			.fill = SYNTHETIC_ROPE};
		add(l, &rope);
	}
	for (uint32_t i = 0; i < s->n_layers; i++)
		add_layer(l, i);
}

int synthetic_shape_list(const struct synthetic_shape *shape, const struct synthetic_type *type,
	uint64_t align, struct err *ret_err, struct synthetic_tensor **ret_tensors, uint32_t *ret_n,
	uint64_t *ret_n_data_bytes)
{
	struct list l = {.shape = shape, .type = type, .align = align, .err = ret_err};

	l.tensors =
		calloc(OTHER_TENSORS + (size_t)LAYER_TENSORS * shape->n_layers, sizeof(*l.tensors));
	if (!l.tensors)
		return -ENOMEM;
	add_all(&l);
	if (l.error) {
		free(l.tensors);
		return l.error;
	}
	*ret_tensors = l.tensors;
	*ret_n = l.n;
	*ret_n_data_bytes = l.n_bytes;
	return 0;
}
