/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_TENSORS_H
#define WEIGHTD_TENSORS_H

/*
 * The tensors an architecture needs: one table row a tensor, with its shape in hyperparameters. Any
 * one thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/manifest.h"
#include "proto/util/cleanup.h"

struct err;
struct gguf;

enum tensors_dim {
	TENSORS_DIM_NONE, /* 1, the end of a shape */
	TENSORS_DIM_EMBD,
	TENSORS_DIM_VOCAB,
	TENSORS_DIM_FF,
	TENSORS_DIM_HEAD,  /* head_dim_k */
	TENSORS_DIM_Q,     /* n_head * head_dim_k */
	TENSORS_DIM_K,     /* n_head_kv * head_dim_k */
	TENSORS_DIM_V,     /* n_head_kv * head_dim_v */
	TENSORS_DIM_HEADS, /* n_head * head_dim_v: what attention gives */
	TENSORS_DIM_EXPERTS,
	TENSORS_DIM_FF_EXPERT,
	TENSORS_DIM_ROT_PAIRS, /* n_rot / 2 */
	TENSORS_N_DIMS,
};

enum tensors_kind {
	TENSORS_NORM,    /* f32 */
	TENSORS_MATRIX,  /* any format that the engine has kernels for */
	TENSORS_REFUSED, /* the engine would leave it out; no dims */
};

struct tensors_row {
	const char *name;         /* of a layer's tensor: what follows "blk.N." */
	enum tensors_dim dims[4]; /* GGUF order: the row length first */
	enum tensors_kind kind;
	bool in_layer;
	bool is_optional;
};

/*
 * Every row is there with its shape and format, and none of a refused kind. -EINVAL for a missing
 * tensor or another shape, -ENOTSUP for a format without kernels or a refused tensor; ret_err names
 * the tensor. Further tensors are accepted.
 */
int must_check tensors_check(const struct gguf *g, const char *arch, const struct tensors_row *rows,
	uint32_t n_rows, const struct manifest_hparams *hparams, struct err *ret_err);

#endif
