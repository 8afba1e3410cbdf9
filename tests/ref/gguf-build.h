/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_REF_GGUF_BUILD_H
#define TESTS_REF_GGUF_BUILD_H

/*
 * Builds GGUF files for tests: a list of keys and a list of tensors that a test may change as it
 * likes, valid or not, before they are written out. Running out of memory aborts.
 */
#include <stdbool.h>
#include <stdint.h>

enum { GGUF_BUILD_MAX_DIMS = 5 }; /* one more than valid */

struct gguf_build_kv {
	char *key; /* [n_key_bytes] */
	uint64_t n_key_bytes;
	uint32_t type;
	uint8_t *value; /* [n_value_bytes] as in the file, an array with its header */
	uint64_t n_value_bytes;
};

struct gguf_build_tensor {
	char name[80];
	uint32_t n_dims;
	uint64_t ne[GGUF_BUILD_MAX_DIMS];
	uint32_t type;
	uint64_t offset;  /* from the start of the data */
	uint64_t n_bytes; /* of random weights that gguf_build_file puts there */
};

struct gguf_build {
	char magic[4];
	uint32_t version;
	uint32_t alignment;    /* of the data; the key general.alignment is set apart */
	uint64_t n_kv_claimed; /* in the header; 0: as many as there are */
	uint64_t n_tensors_claimed;
	uint32_t n_kv;
	struct gguf_build_kv *kv;
	uint32_t n_tensors;
	struct gguf_build_tensor *tensors;
	uint64_t seed; /* of the weights */
	/* What rope_freqs.weight is made of, see gguf_build_fill_rope_factors. */
	float rope_base;
	uint32_t n_ctx;
};

/* Of a model; members that are 0 take a tiny value, see gguf-build-model.c. */
struct gguf_build_shape {
	uint32_t n_layers;
	uint32_t n_ctx;
	uint32_t n_embd;
	uint32_t n_ff;
	uint32_t n_head;
	uint32_t n_head_kv;
	uint32_t head_dim;
	uint32_t n_vocab;  /* at least 259 with a tokenizer: bytes and special tokens */
	uint32_t n_expert; /* 0 stays 0: none */
	uint32_t n_expert_used;
	uint32_t n_ff_expert;
	uint32_t type; /* dtype id of the matrices but the router's; F32 is 0 */
	/* of the output matrix (token_embd where tied), some layers' v and down; 0: type */
	uint32_t type_more;
	bool untied;
	bool no_tokenizer;
	uint32_t n_rot;        /* of llama, even; 0: head_dim */
	bool has_rope_factors; /* of llama: rope_freqs.weight as Llama 3.1 has it */
	uint64_t seed;
};

/* Heap; empty, version 3, alignment 32. */
struct gguf_build *gguf_build_new(void);
/* A qwen3 model, or with n_expert a qwen3moe one. */
struct gguf_build *gguf_build_new_qwen3(const struct gguf_build_shape *shape);
/* A llama model with the tokens and the template of Llama 3. */
struct gguf_build *gguf_build_new_llama(const struct gguf_build_shape *shape);
struct gguf_build *gguf_build_free(struct gguf_build *b); /* NULL */

/* The shape with the tiny values filled in. */
struct gguf_build_shape gguf_build_complete_shape(const struct gguf_build_shape *shape);

/* Appends a key, present or not. type: enum gguf_type. */
void gguf_build_add(struct gguf_build *b, const void *key, uint64_t n_key_bytes, uint32_t type,
	const void *value, uint64_t n_value_bytes);

/* These replace the key's value, or append it. */
void gguf_build_set(struct gguf_build *b, const char *key, uint32_t type, const void *value,
	uint64_t n_value_bytes);
void gguf_build_set_u32(struct gguf_build *b, const char *key, uint32_t value);
void gguf_build_set_f32(struct gguf_build *b, const char *key, float value);
void gguf_build_set_bool(struct gguf_build *b, const char *key, bool value);
void gguf_build_set_string(struct gguf_build *b, const char *key, const char *value);
void gguf_build_set_strings(
	struct gguf_build *b, const char *key, const char *const *values, uint64_t n);
/* elements: [n] of element_bytes each, of an array of numbers. */
void gguf_build_set_array(struct gguf_build *b, const char *key, uint32_t element_type,
	const void *elements, uint64_t n, uint32_t element_bytes);
void gguf_build_drop(struct gguf_build *b, const char *key);

/* Appends a tensor behind the others, aligned. The pointer is good until the next one is added. */
struct gguf_build_tensor *gguf_build_add_tensor(
	struct gguf_build *b, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne);
struct gguf_build_tensor *gguf_build_find_tensor(struct gguf_build *b, const char *name);
void gguf_build_drop_tensor(struct gguf_build *b, const char *name);

/* Header, keys and tensor table, padded to where the data begin. Free it. */
uint8_t *gguf_build_metadata(const struct gguf_build *b, uint64_t *ret_n_bytes);

/*
 * The factors of Llama 3.1 for a model that was trained with a 16th of b's context and stretched to
 * it: 1 for pairs that turn often in the old context, 8 for those that do not turn once, and
 * between them what joins the two. False where t is another tensor.
 */
bool gguf_build_fill_rope_factors(
	const struct gguf_build *b, const struct gguf_build_tensor *t, uint8_t *ret);

/* The whole file with random weights. Free it. */
uint8_t *gguf_build_file(const struct gguf_build *b, uint64_t *ret_n_bytes);

/* Bytes of the data behind the metadata. */
uint64_t gguf_build_data_bytes(const struct gguf_build *b);

/*
 * n blocks of random weights around 0 with deviation sigma; zeroes for formats that the engine does
 * not have. *rng is the state, not 0.
 */
void gguf_build_fill(
	uint32_t type, float mean, float sigma, uint64_t n_blocks, uint64_t *rng, uint8_t *ret);

#endif
