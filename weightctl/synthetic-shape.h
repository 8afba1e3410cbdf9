/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_SYNTHETIC_SHAPE_H
#define WEIGHTCTL_SYNTHETIC_SHAPE_H

/*
 * The shapes that synthetic models have, as the published models' GGUF files say them, and the
 * tensors of each.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

struct synthetic_shape {
	const char *name;
	const char *arch; /* general.architecture */
	const char *pre;  /* tokenizer.ggml.pre */
	uint32_t n_layers;
	uint32_t n_embd;
	uint32_t n_ff;
	uint32_t n_head;
	uint32_t n_head_kv;
	uint32_t head_dim;
	uint32_t n_vocab;
	uint32_t n_ctx;
	float rope_base;
	float eps;
	bool is_tied; /* no output.weight */
	bool has_qk_norm;
	float rope_factor; /* of Llama 3's long contexts; 0: none */
	uint32_t n_expert; /* 0: none */
	uint32_t n_expert_used;
	uint32_t n_expert_ff;
	uint32_t n_control; /* tokens, the last of the vocabulary */
	uint32_t bos, eos;
	bool adds_bos;
};

/* What a matrix's block format is called, and those of a mix's matrices. */
struct synthetic_type {
	const char *name;
	uint32_t dtype;      /* of matrices: GGUF's id */
	uint32_t dtype_more; /* of those that the mix gives more bits to */
	uint32_t file_type;  /* general.file_type */
};

enum synthetic_fill {
	SYNTHETIC_WEIGHTS, /* a matrix */
	SYNTHETIC_ONES,    /* a norm's gains, f32 near 1 */
	SYNTHETIC_ROPE,    /* Llama 3's rope_freqs */
};

enum { SYNTHETIC_NAME_BYTES = 64 };

struct synthetic_tensor {
	char name[SYNTHETIC_NAME_BYTES];
	uint32_t n_dims;
	uint64_t ne[3];
	uint32_t dtype;
	enum synthetic_fill fill;
	uint64_t n_bytes;
	uint64_t offset; /* in the data; after synthetic_shape_list */
};

/* Of "SHAPE:TYPE"; -EINVAL with what there is. Borrowed, static. */
int must_check synthetic_shape_find(const char *name, struct err *ret_err,
	const struct synthetic_shape **ret_shape, const struct synthetic_type **ret_type);

/*
 * Its tensors in file order, offsets aligned to `align`, a power of two; n_data_bytes: of all of
 * them. The caller frees the array. -EINVAL where a row is no whole blocks; -ENOMEM.
 */
int must_check synthetic_shape_list(const struct synthetic_shape *shape,
	const struct synthetic_type *type, uint64_t align, struct err *ret_err,
	struct synthetic_tensor **ret_tensors, uint32_t *ret_n, uint64_t *ret_n_data_bytes);

#endif
