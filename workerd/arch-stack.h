/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_ARCH_STACK_H
#define WORKERD_ARCH_STACK_H

/*
 * What the architectures share: all but the feed-forward part of a layer, which each adds itself.
 *
 *	x = token_embd[token]
 *	of each layer:
 *		q, k, v = W h,  h = rms_norm(x) attn_norm
 *		q, k = rms_norm of each head with attn_q_norm, attn_k_norm, where there are any
 *		q, k = rope(q, k)
 *		x = x + attn_output attention(q, keys, values)
 *		x = x + feed-forward of x
 *	logits = output (rms_norm(x) output_norm), output being token_embd where the file has none
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct graph;
struct manifest_hparams;
struct weights;
struct weights_tensor;

struct arch_stack_kind;

/* A graph that is being built. */
struct arch_stack {
	const struct weights *w;
	const struct manifest_hparams *hp;
	const struct arch_stack_kind *kind;
	struct graph *g;
	struct err *err;
	uint32_t x; /* the residual stream, [m][n_embd] */
};

/* Adds a layer's feed-forward ops: x is read and added to. */
typedef int (*arch_stack_add_fn)(struct arch_stack *s, uint32_t layer);

/* What an architecture is beside its hyperparameters. */
struct arch_stack_kind {
	arch_stack_add_fn add_ffn;
	bool has_head_norms;        /* attn_q_norm, attn_k_norm */
	bool is_rope_interleaved;   /* see workerd/ops/rope-kv.h */
	bool may_have_rope_factors; /* rope_freqs.weight */
};

/* -ENOENT for a tensor that is missing, -EINVAL for one of another shape, -ENOTSUP, -ENOMEM. */
int must_check arch_stack_build(const struct weights *w, struct graph *g,
	const struct arch_stack_kind *kind, struct err *ret_err);

/*
 * The dense feed-forward part, an arch_stack_add_fn; errors as above:
 *
 *	h = rms_norm(x) ffn_norm
 *	x = x + ffn_down (silu(ffn_gate h) * (ffn_up h))
 */
int must_check arch_stack_add_dense(struct arch_stack *s, uint32_t layer);

/* "blk.<layer>.<what>.weight", n_matrices of n rows of k numbers. Errors as above. */
int must_check arch_stack_find(const struct arch_stack *s, uint32_t layer, const char *what,
	uint64_t k, uint64_t n, uint64_t n_matrices, struct weights_tensor *ret_tensor);

/* The same of a norm's gain: k numbers that kernels can read, else -ENOTSUP. */
int must_check arch_stack_find_gain(const struct arch_stack *s, uint32_t layer, const char *what,
	uint64_t k, struct weights_tensor *ret_tensor);

#endif
