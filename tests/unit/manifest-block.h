/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_MANIFEST_BLOCK_H
#define TESTS_UNIT_MANIFEST_BLOCK_H

/*
 * A small valid manifest made by hand: six tokens, two merges, three tensors in two allocations.
 *
 *	tokens   0 "a"  1 "b"  2 "c"  3 "ab"  4 "abc"  5 "<|end|>" (control)
 *	merges   a + b = ab, ab + c = abc
 *	tensors  a.norm f32 [32], b.weight q8_0 [64][2], b.weight.2 f16 [8]
 */
#include <string.h>

#include "proto/dtype.h"
#include "proto/manifest.h"

struct manifest_block {
	_Alignas(MANIFEST_ALIGN) uint8_t data[8192];
	uint64_t n_bytes;
	uint32_t n_string_bytes;
	struct manifest_header *header;
	uint8_t *strings;
	struct manifest_hparams *hparams;
	struct manifest_alloc *allocs;
	struct manifest_tensor *tensors;
	struct manifest_tokenizer *tokenizer;
	struct manifest_token *tokens;
	uint32_t *token_hash;
	uint32_t *byte_tokens;
	struct manifest_merge *merges;
	uint32_t *specials;
};

/* The next section, zeroed, with its row in the header. */
static inline void *manifest_block_section(
	struct manifest_block *b, enum manifest_section_kind kind, uint64_t n_bytes)
{
	uint64_t offset = b->n_bytes;

	b->header->sections[kind] = (struct manifest_section){.offset = offset, .n_bytes = n_bytes};
	b->n_bytes = (offset + n_bytes + MANIFEST_ALIGN - 1) & ~(uint64_t)(MANIFEST_ALIGN - 1);
	return b->data + offset;
}

static inline struct manifest_string manifest_block_string(struct manifest_block *b, const char *s)
{
	struct manifest_string ret = {.offset = b->n_string_bytes, .n_bytes = (uint32_t)strlen(s)};

	memcpy(b->strings + ret.offset, s, ret.n_bytes);
	b->n_string_bytes += ret.n_bytes;
	return ret;
}

static inline void manifest_block_fill_tokens(struct manifest_block *b)
{
	static const char *const texts[] = {"a", "b", "c", "ab", "abc", "<|end|>"};
	static const struct manifest_merge merges[] = {{0, 1, 0, 3}, {3, 2, 1, 4}};

	for (uint32_t i = 0; i < 6; i++) {
		uint32_t at = manifest_hash_bytes(texts[i], (uint32_t)strlen(texts[i])) & 7;

		while (b->token_hash[at] != MANIFEST_NONE)
			at = (at + 1) & 7;
		b->token_hash[at] = i;
		b->tokens[i].bytes = manifest_block_string(b, texts[i]);
		b->tokens[i].type = i == 5 ? MANIFEST_TOKEN_CONTROL : MANIFEST_TOKEN_NORMAL;
		if (i < 3)
			b->byte_tokens[(uint8_t)texts[i][0]] = i;
	}
	for (uint32_t i = 0; i < 4; i++)
		b->merges[i].left = MANIFEST_NONE;
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t at = manifest_hash_pair(merges[i].left, merges[i].right) & 3;

		while (b->merges[at].left != MANIFEST_NONE)
			at = (at + 1) & 3;
		b->merges[at] = merges[i];
	}
	b->specials[0] = 5;
	*b->tokenizer = (struct manifest_tokenizer){
		.model = MANIFEST_TOKENIZER_BPE,
		.pre = MANIFEST_PRE_QWEN2,
		.bos = MANIFEST_NONE,
		.eos = 5,
		.pad = MANIFEST_NONE,
		.n_eog = 1,
		.eog = {5},
		.n_merges = 2,
		.chat_template = manifest_block_string(b, "{{ messages }}"),
	};
}

static inline void manifest_block_fill_tensors(struct manifest_block *b)
{
	b->allocs[0] = (struct manifest_alloc){4096, MANIFEST_PLACEMENT_DEVICE, 0};
	b->allocs[1] = (struct manifest_alloc){16, MANIFEST_PLACEMENT_STAGED, 0};
	b->tensors[0] = (struct manifest_tensor){
		.name = manifest_block_string(b, "a.norm"),
		.dtype = DTYPE_F32,
		.n_dims = 1,
		.ne = {32, 1, 1, 1},
		.alloc = 0,
		.offset = 0,
		.n_bytes = 128,
	};
	b->tensors[1] = (struct manifest_tensor){
		.name = manifest_block_string(b, "b.weight"),
		.dtype = DTYPE_Q8_0,
		.n_dims = 2,
		.ne = {64, 2, 1, 1},
		.alloc = 0,
		.offset = 4096 - 4 * 34, /* up to the last byte */
		.n_bytes = 4 * 34,
	};
	b->tensors[2] = (struct manifest_tensor){
		.name = manifest_block_string(b, "b.weight.2"),
		.dtype = DTYPE_F16,
		.n_dims = 1,
		.ne = {8, 1, 1, 1},
		.alloc = 1,
		.offset = 0,
		.n_bytes = 16,
	};
}

static inline void manifest_block_build(struct manifest_block *b)
{
	memset(b, 0, sizeof(*b));
	b->header = (struct manifest_header *)b->data;
	b->n_bytes = sizeof(*b->header);
	b->strings = manifest_block_section(b, MANIFEST_STRINGS, 128);
	b->hparams = manifest_block_section(b, MANIFEST_HPARAMS, sizeof(*b->hparams));
	b->allocs = manifest_block_section(b, MANIFEST_ALLOCS, 2 * sizeof(*b->allocs));
	b->tensors = manifest_block_section(b, MANIFEST_TENSORS, 3 * sizeof(*b->tensors));
	b->tokenizer = manifest_block_section(b, MANIFEST_TOKENIZER, sizeof(*b->tokenizer));
	b->tokens = manifest_block_section(b, MANIFEST_TOKENS, 6 * sizeof(*b->tokens));
	b->token_hash = manifest_block_section(b, MANIFEST_TOKEN_HASH, 8 * sizeof(uint32_t));
	b->byte_tokens = manifest_block_section(b, MANIFEST_BYTE_TOKENS, 256 * sizeof(uint32_t));
	b->merges = manifest_block_section(b, MANIFEST_MERGES, 4 * sizeof(*b->merges));
	b->specials = manifest_block_section(b, MANIFEST_SPECIALS, sizeof(uint32_t));
	memset(b->token_hash, 0xff, 8 * sizeof(uint32_t));
	memset(b->byte_tokens, 0xff, 256 * sizeof(uint32_t));
	b->header->magic = MANIFEST_MAGIC;
	b->header->version = MANIFEST_VERSION;
	b->header->n_sections = MANIFEST_N_SECTIONS;
	b->header->n_bytes = b->n_bytes;
	b->header->generation = 7;
	*b->hparams = (struct manifest_hparams){
		.architecture = manifest_block_string(b, "qwen3"),
		.name = manifest_block_string(b, "tiny"),
		.n_layers = 2,
		.n_ctx_train = 128,
		.n_embd = 64,
		.n_ff = 128,
		.n_head = 4,
		.n_head_kv = 2,
		.head_dim_k = 16,
		.head_dim_v = 16,
		.n_rot = 16,
		.n_vocab = 6,
		.rms_eps = 1e-6f,
		.rope_base = 1e6f,
		.tied_embeddings = 1,
	};
	manifest_block_fill_tokens(b);
	manifest_block_fill_tensors(b);
}

#endif
