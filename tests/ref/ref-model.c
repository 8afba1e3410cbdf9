/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ref/ref-model.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/manifest.h"
#include "tests/ref/ref-ops.h"

enum { MAX_EXPERTS_USED = 32 };

struct layer {
	float *attn_norm;   /* [n_embd] */
	float *attn_q;      /* [n_head * head_dim][n_embd] */
	float *attn_k;      /* [n_head_kv * head_dim][n_embd] */
	float *attn_v;      /* [n_head_kv * head_dim][n_embd] */
	float *attn_q_norm; /* [head_dim]; NULL: none */
	float *attn_k_norm; /* [head_dim]; NULL: none */
	float *attn_output; /* [n_embd][n_head * head_dim] */
	float *ffn_norm;    /* [n_embd] */
	float *router;      /* [n_expert][n_embd], NULL without experts */
	float *ffn_gate;    /* [n_expert or 1][n_ff][n_embd] */
	float *ffn_up;      /* [n_expert or 1][n_ff][n_embd] */
	float *ffn_down;    /* [n_expert or 1][n_embd][n_ff] */
	float *keys;        /* [n_ctx][n_head_kv * head_dim], as the cache has them */
	float *values;      /* [n_ctx][n_head_kv * head_dim] */
};

struct ref_model {
	struct manifest_hparams hp;
	bool is_llama;
	bool has_q8_0_kv;
	struct ref_ops_rope rope;
	float *rope_factors; /* [n_rot / 2]; NULL: none */
	uint32_t n_ff;       /* of an expert, where there are any */
	struct layer *layers;
	float *token_embd;  /* [n_vocab][n_embd] */
	float *output;      /* [n_vocab][n_embd], may be token_embd */
	float *output_norm; /* [n_embd] */
	uint32_t n_tokens;
	float *x;        /* [n_embd] */
	float *h;        /* [n_embd] */
	float *q;        /* [n_head * head_dim] */
	float *attended; /* [n_head * head_dim] */
	float *gate;     /* [n_ff] */
	float *up;       /* [n_ff] */
	float *mixed;    /* [n_embd] */
	float *scores;   /* [n_expert] */
	float *logits;   /* [n_vocab] */
};

static float *floats(uint64_t n)
{
	float *y = calloc(n, sizeof(float));

	if (!y)
		abort();
	return y;
}

__attribute__((format(printf, 3, 4))) static float *load(
	const struct manifest *m, const uint8_t *image, const char *format, ...)
{
	char name[80];
	va_list args;

	va_start(args, format);
	vsnprintf(name, sizeof(name), format, args);
	va_end(args);
	const struct manifest_tensor *t = manifest_find_tensor(m, name);
	assert(t && t->alloc == 0);
	uint64_t n = t->ne[1] * t->ne[2] * t->ne[3];
	float *y = floats(n * t->ne[0]);
	for (uint64_t j = 0; j < n; j++)
		ref_ops_dequantize(t->dtype, image + t->offset + j * (t->n_bytes / n),
			(uint32_t)t->ne[0], y + j * t->ne[0]);
	return y;
}

static void load_layer(struct ref_model *r, const struct manifest *m, const uint8_t *image,
	uint32_t i, struct layer *l)
{
	uint64_t n_kept = (uint64_t)r->hp.n_ctx_train * r->hp.n_head_kv * r->hp.head_dim_k;

	l->attn_norm = load(m, image, "blk.%u.attn_norm.weight", i);
	l->attn_q = load(m, image, "blk.%u.attn_q.weight", i);
	l->attn_k = load(m, image, "blk.%u.attn_k.weight", i);
	l->attn_v = load(m, image, "blk.%u.attn_v.weight", i);
	if (!r->is_llama) {
		l->attn_q_norm = load(m, image, "blk.%u.attn_q_norm.weight", i);
		l->attn_k_norm = load(m, image, "blk.%u.attn_k_norm.weight", i);
	}
	l->attn_output = load(m, image, "blk.%u.attn_output.weight", i);
	l->ffn_norm = load(m, image, "blk.%u.ffn_norm.weight", i);
	const char *suffix = r->hp.n_expert ? "_exps" : "";
	if (r->hp.n_expert)
		l->router = load(m, image, "blk.%u.ffn_gate_inp.weight", i);
	l->ffn_gate = load(m, image, "blk.%u.ffn_gate%s.weight", i, suffix);
	l->ffn_up = load(m, image, "blk.%u.ffn_up%s.weight", i, suffix);
	l->ffn_down = load(m, image, "blk.%u.ffn_down%s.weight", i, suffix);
	l->keys = floats(n_kept);
	l->values = floats(n_kept);
}

static void init_rope(struct ref_model *r, const struct manifest *m, const uint8_t *image)
{
	const struct manifest_string name = r->hp.architecture;

	r->is_llama = name.n_bytes == 5 && !memcmp(manifest_get_string(m, name), "llama", 5);
	if (r->is_llama && manifest_find_tensor(m, "rope_freqs.weight"))
		r->rope_factors = load(m, image, "rope_freqs.weight");
	r->rope = (struct ref_ops_rope){.n_rot = r->hp.n_rot,
		.base = r->hp.rope_base,
		.is_interleaved = r->is_llama,
		.factors = r->rope_factors};
}

struct ref_model *ref_model_new(const struct manifest *m, const uint8_t *image)
{
	struct ref_model *r = calloc(1, sizeof(*r));
	const struct manifest_hparams *hp = m->hparams;

	if (!r)
		abort();
	r->hp = *hp;
	r->n_ff = hp->n_expert ? hp->n_ff_expert : hp->n_ff;
	init_rope(r, m, image);
	r->token_embd = load(m, image, "token_embd.weight");
	r->output = hp->tied_embeddings ? r->token_embd : load(m, image, "output.weight");
	r->output_norm = load(m, image, "output_norm.weight");
	r->layers = calloc(hp->n_layers, sizeof(struct layer));
	if (!r->layers)
		abort();
	for (uint32_t i = 0; i < hp->n_layers; i++)
		load_layer(r, m, image, i, &r->layers[i]);
	r->x = floats(hp->n_embd);
	r->h = floats(hp->n_embd);
	r->q = floats(hp->n_head * hp->head_dim_k);
	r->attended = floats(hp->n_head * hp->head_dim_k);
	r->gate = floats(r->n_ff);
	r->up = floats(r->n_ff);
	r->mixed = floats(hp->n_embd);
	r->scores = floats(hp->n_expert);
	r->logits = floats(hp->n_vocab);
	return r;
}

static void free_layer(struct layer *l)
{
	float *const all[] = {l->attn_norm, l->attn_q, l->attn_k, l->attn_v, l->attn_q_norm,
		l->attn_k_norm, l->attn_output, l->ffn_norm, l->router, l->ffn_gate, l->ffn_up,
		l->ffn_down, l->keys, l->values};

	for (unsigned i = 0; i < ARRAY_SIZE(all); i++)
		free(all[i]);
}

struct ref_model *ref_model_free(struct ref_model *r)
{
	if (!r)
		return NULL;
	for (uint32_t i = 0; i < r->hp.n_layers; i++)
		free_layer(&r->layers[i]);
	free(r->layers);
	if (r->output != r->token_embd)
		free(r->output);
	float *const all[] = {r->token_embd, r->output_norm, r->x, r->h, r->q, r->attended, r->gate,
		r->up, r->mixed, r->scores, r->logits, r->rope_factors};
	for (unsigned i = 0; i < ARRAY_SIZE(all); i++)
		free(all[i]);
	free(r);
	return NULL;
}

void ref_model_use_q8_0_kv(struct ref_model *r)
{
	r->has_q8_0_kv = true;
}

void ref_model_restart(struct ref_model *r)
{
	r->n_tokens = 0;
}

/* A head of a key or value becomes what is left of it in the cache. */
static void keep(const struct ref_model *r, float *x, uint32_t n)
{
	if (r->has_q8_0_kv) {
		ref_ops_round_to_q8_0(x, n);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		x[i] = ref_ops_from_half(ref_ops_to_half(x[i]));
}

void ref_model_drop(struct ref_model *r, uint32_t n_keep, uint32_t n_gone, bool is_exact)
{
	uint32_t dim = r->hp.head_dim_k, kv_width = r->hp.n_head_kv * dim;

	assert(n_keep + n_gone <= r->n_tokens);
	for (uint32_t i = 0; i < r->hp.n_layers; i++) {
		for (uint32_t j = n_keep; j + n_gone < r->n_tokens; j++) {
			float *k = r->layers[i].keys + (uint64_t)j * kv_width;
			float *v = r->layers[i].values + (uint64_t)j * kv_width;

			memcpy(v, v + (uint64_t)n_gone * kv_width, sizeof(float) * kv_width);
			memcpy(k, k + (uint64_t)n_gone * kv_width, sizeof(float) * kv_width);
			for (uint32_t h = 0; h < r->hp.n_head_kv; h++) {
				ref_ops_rope_back(k + h * dim, &r->rope, n_gone);
				if (!is_exact)
					keep(r, k + h * dim, dim);
			}
		}
	}
	r->n_tokens -= n_gone;
}

/* x += y of the matrix [n_embd][k] with in. */
static void add_matvec(struct ref_model *r, const float *w, const float *in, uint32_t k)
{
	ref_ops_matvec(w, in, r->hp.n_embd, k, r->h, NULL);
	for (uint32_t i = 0; i < r->hp.n_embd; i++)
		r->x[i] += r->h[i];
}

static void attend(struct ref_model *r, const struct layer *l, uint32_t window)
{
	const struct manifest_hparams *hp = &r->hp;
	uint32_t dim = hp->head_dim_k, kv_width = hp->n_head_kv * dim;
	float *k = l->keys + (uint64_t)r->n_tokens * kv_width;
	float *v = l->values + (uint64_t)r->n_tokens * kv_width;

	ref_ops_rms_norm(r->x, l->attn_norm, hp->n_embd, hp->rms_eps, r->h);
	ref_ops_matvec(l->attn_q, r->h, hp->n_head * dim, hp->n_embd, r->q, NULL);
	ref_ops_matvec(l->attn_k, r->h, kv_width, hp->n_embd, k, NULL);
	ref_ops_matvec(l->attn_v, r->h, kv_width, hp->n_embd, v, NULL);
	for (uint32_t h = 0; h < hp->n_head + hp->n_head_kv; h++) {
		bool is_q = h < hp->n_head;
		float *head = is_q ? r->q + h * dim : k + (h - hp->n_head) * dim;
		const float *gain = is_q ? l->attn_q_norm : l->attn_k_norm;
		if (gain)
			ref_ops_rms_norm(head, gain, dim, hp->rms_eps, head);
		ref_ops_rope(head, &r->rope, r->n_tokens);
	}
	for (uint32_t h = 0; h < hp->n_head_kv; h++) {
		keep(r, k + h * dim, dim);
		keep(r, v + h * dim, dim);
	}
	uint32_t n_keys = r->n_tokens + 1, first = 0;
	if (window > 0 && n_keys > window)
		first = n_keys - window;
	for (uint32_t h = 0; h < hp->n_head; h++) {
		uint64_t at = (uint64_t)first * kv_width + h / (hp->n_head / hp->n_head_kv) * dim;
		ref_ops_attention(r->q + h * dim, l->keys + at, l->values + at, n_keys - first, dim,
			kv_width, r->attended + h * dim);
	}
	add_matvec(r, l->attn_output, r->attended, hp->n_head * dim);
}

/* y += weight down (silu(gate h) * (up h)) of expert e. */
static void add_expert(
	struct ref_model *r, const struct layer *l, uint32_t e, float weight, float *y)
{
	uint64_t at = (uint64_t)e * r->n_ff * r->hp.n_embd;
	uint32_t n_embd = r->hp.n_embd;

	ref_ops_matvec(l->ffn_gate + at, r->h, r->n_ff, n_embd, r->gate, NULL);
	ref_ops_matvec(l->ffn_up + at, r->h, r->n_ff, n_embd, r->up, NULL);
	for (uint32_t i = 0; i < r->n_ff; i++)
		r->gate[i] = ref_ops_silu(r->gate[i]) * r->up[i];
	ref_ops_matvec(l->ffn_down + at, r->gate, n_embd, r->n_ff, r->mixed, NULL);
	for (uint32_t i = 0; i < n_embd; i++)
		y[i] += weight * r->mixed[i];
}

static void feed_forward(struct ref_model *r, const struct layer *l)
{
	const struct manifest_hparams *hp = &r->hp;
	uint32_t ids[MAX_EXPERTS_USED];
	float weights[MAX_EXPERTS_USED];

	ref_ops_rms_norm(r->x, l->ffn_norm, hp->n_embd, hp->rms_eps, r->h);
	if (hp->n_expert == 0) {
		add_expert(r, l, 0, 1.0f, r->x);
		return;
	}
	assert(hp->n_expert_used <= MAX_EXPERTS_USED);
	ref_ops_matvec(l->router, r->h, hp->n_expert, hp->n_embd, r->scores, NULL);
	ref_ops_route(r->scores, hp->n_expert, hp->n_expert_used, ids, weights);
	for (uint32_t i = 0; i < hp->n_expert_used; i++)
		add_expert(r, l, ids[i], weights[i], r->x);
}

const float *ref_model_step(struct ref_model *r, uint32_t token)
{
	const struct manifest_hparams *hp = &r->hp;

	assert(token < hp->n_vocab && r->n_tokens < hp->n_ctx_train);
	memcpy(r->x, r->token_embd + (uint64_t)token * hp->n_embd, sizeof(float) * hp->n_embd);
	for (uint32_t i = 0; i < hp->n_layers; i++) {
		attend(r, &r->layers[i], manifest_get_window(hp, i));
		feed_forward(r, &r->layers[i]);
	}
	r->n_tokens++;
	ref_ops_rms_norm(r->x, r->output_norm, hp->n_embd, hp->rms_eps, r->h);
	ref_ops_matvec(r->output, r->h, hp->n_vocab, hp->n_embd, r->logits, NULL);
	return r->logits;
}
