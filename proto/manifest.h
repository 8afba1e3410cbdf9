/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_MANIFEST_H
#define PROTO_MANIFEST_H

/*
 * The description of one generation of a model: one flat little-endian block in a sealed memfd that
 * weightd writes (weightd/manifest-writer) and every worker maps and uses in place, so that a large
 * vocabulary costs a worker neither memory nor time.
 *
 *	+--------+----------------+----------------+-----
 *	| header | section | ...  | section data   | ...      every section 16-byte aligned
 *	+--------+----------------+----------------+-----
 *
 * Strings are {offset, length} into MANIFEST_STRINGS, not NUL-terminated, any bytes.
 * All structs here are the format: fields only move with MANIFEST_VERSION.
 *
 * A model without a tokenizer (MANIFEST_TOKENIZER_NONE) has empty TOKENS, TOKEN_HASH, BYTE_TOKENS,
 * MERGES and SPECIALS; with one, TOKENS has hparams.n_vocab rows and each hash table at least one
 * empty slot, which is what ends a probe.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

#define MANIFEST_MAGIC 0x314e414d44455700ull /* "\0WEDMAN1" */
enum {
	MANIFEST_VERSION = 2,
	MANIFEST_ALIGN = 16,
	MANIFEST_MAX_BYTES = 1 << 30,
	MANIFEST_NONE = 0xffffffffu, /* no such id */
};

/* Caps of what a model may ask for, several times what published models do. */
enum {
	MANIFEST_MAX_LAYERS = 1024,
	MANIFEST_MAX_CTX = 1 << 26,
	MANIFEST_MAX_EMBD = 1 << 17,
	MANIFEST_MAX_FF = 1 << 20,
	MANIFEST_MAX_HEADS = 1024,
	MANIFEST_MAX_HEAD_DIM = 1024,
	MANIFEST_MAX_VOCAB = 1 << 22,
	MANIFEST_MAX_EXPERTS = 4096,
	MANIFEST_MAX_ALLOCS = 4096, /* a descriptor each */
};

enum manifest_section_kind {
	MANIFEST_STRINGS,    /* [n_bytes] u8 */
	MANIFEST_HPARAMS,    /* [1] struct manifest_hparams */
	MANIFEST_ALLOCS,     /* [n_allocs] struct manifest_alloc */
	MANIFEST_TENSORS,    /* [n_tensors] struct manifest_tensor, sorted by name (memcmp order) */
	MANIFEST_TOKENIZER,  /* [1] struct manifest_tokenizer */
	MANIFEST_TOKENS,     /* [n_vocab] struct manifest_token */
	MANIFEST_TOKEN_HASH, /* [power of two > n_vocab] u32: token id or MANIFEST_NONE */
	MANIFEST_BYTE_TOKENS, /* [256] u32: the token of a single byte, or MANIFEST_NONE */
	MANIFEST_MERGES,      /* [power of two > n_merges] struct manifest_merge: hash table */
	MANIFEST_SPECIALS,    /* [n_specials] u32: control and user tokens, longest bytes first */
	MANIFEST_N_SECTIONS,
};

struct manifest_string {
	uint32_t offset; /* into MANIFEST_STRINGS */
	uint32_t n_bytes;
};

struct manifest_section {
	uint64_t offset; /* from the start of the block */
	uint64_t n_bytes;
};

struct manifest_header {
	uint64_t magic;
	uint32_t version;
	uint32_t n_sections; /* MANIFEST_N_SECTIONS */
	uint64_t n_bytes;    /* of the whole block */
	uint64_t generation;
	struct manifest_section sections[MANIFEST_N_SECTIONS];
};

/* Hyperparameters, checked by weightd and again by manifest_open for what sizes depend on. */
struct manifest_hparams {
	struct manifest_string architecture; /* "qwen3" */
	struct manifest_string name;
	uint32_t n_layers;
	uint32_t n_ctx_train; /* tokens */
	uint32_t n_embd;
	uint32_t n_ff;
	uint32_t n_head;
	uint32_t n_head_kv;
	uint32_t head_dim_k;
	uint32_t head_dim_v;
	uint32_t n_rot; /* rotated dimensions of a head */
	uint32_t n_vocab;
	float rms_eps;
	float rope_base;
	uint32_t n_expert;
	uint32_t n_expert_used;
	uint32_t n_ff_expert;
	uint32_t tied_embeddings; /* 1: token_embd is the output matrix too */
	uint32_t n_window;        /* keys that a token sees, its own among them; 0: all */
	uint32_t window_period;   /* every such layer sees all the same, see below; 0: none does */
	uint64_t n_parameters;
};

struct manifest_alloc {
	uint64_t n_bytes;
	uint32_t placement; /* enum manifest_placement */
	uint32_t pad;
};

enum manifest_placement {
	MANIFEST_PLACEMENT_DEVICE = 1,
	MANIFEST_PLACEMENT_PINNED = 2,
	MANIFEST_PLACEMENT_STAGED = 3,
	MANIFEST_PLACEMENT_PAGED = 4,
};

enum manifest_layout {
	MANIFEST_LAYOUT_RAW = 0, /* as in the file */
};

struct manifest_tensor {
	struct manifest_string name;
	uint32_t dtype; /* enum dtype_id */
	uint32_t n_dims;
	uint64_t ne[4]; /* GGUF order: ne[0] is the row length; unused are 1 */
	uint32_t alloc; /* index into MANIFEST_ALLOCS */
	uint32_t layout;
	uint64_t offset; /* into the allocation */
	uint64_t n_bytes;
};

enum manifest_tokenizer_model {
	MANIFEST_TOKENIZER_NONE = 0,
	MANIFEST_TOKENIZER_BPE = 1, /* "gpt2": byte-level BPE */
};

enum manifest_pre_tokenizer {
	MANIFEST_PRE_QWEN2 = 1,
	MANIFEST_PRE_LLAMA3 = 2,
};

struct manifest_tokenizer {
	uint32_t model; /* enum manifest_tokenizer_model */
	uint32_t pre;   /* enum manifest_pre_tokenizer */
	uint32_t bos;   /* token ids or MANIFEST_NONE */
	uint32_t eos;
	uint32_t pad;
	uint32_t n_eog; /* tokens that end a generation: eos, and those known by name */
	uint32_t eog[8];
	uint32_t add_bos;
	uint32_t n_merges;
	struct manifest_string chat_template; /* empty: none */
};

enum manifest_token_type { /* the values of tokenizer.ggml.token_type */
	MANIFEST_TOKEN_NORMAL = 1,
	MANIFEST_TOKEN_UNKNOWN = 2,
	MANIFEST_TOKEN_CONTROL = 3,
	MANIFEST_TOKEN_USER = 4,
	MANIFEST_TOKEN_UNUSED = 5,
	MANIFEST_TOKEN_BYTE = 6,
};

/* bytes: what the token stands for in text (byte-level characters already turned into bytes). */
struct manifest_token {
	struct manifest_string bytes;
	uint32_t type; /* enum manifest_token_type */
	float score;
};

/* (left, right) merge into `result` with `rank` (0 first). left == MANIFEST_NONE: empty slot. */
struct manifest_merge {
	uint32_t left;
	uint32_t right;
	uint32_t rank;
	uint32_t result;
};

/* A mapped and checked manifest; all pointers are into the mapping, read-only. */
struct manifest {
	atomic_uint n_refs; /* beside the first */
	void *map;
	uint64_t n_bytes;
	const struct manifest_header *header;
	const uint8_t *strings;
	uint64_t n_string_bytes;
	const struct manifest_hparams *hparams;
	const struct manifest_alloc *allocs;
	uint32_t n_allocs;
	const struct manifest_tensor *tensors;
	uint32_t n_tensors;
	const struct manifest_tokenizer *tokenizer;
	const struct manifest_token *tokens;
	uint32_t n_vocab;
	const uint32_t *token_hash;
	uint32_t token_hash_mask;
	const uint32_t *byte_tokens;
	const struct manifest_merge *merges;
	uint32_t merge_mask;
	const uint32_t *specials;
	uint32_t n_specials;
};

/*
 * Maps the memfd and checks every offset, count, id and string against it. fd is borrowed: the
 * mapping does not need it afterwards. It must be sealed SHRINK, GROW and WRITE, so that nothing
 * changes after the check. Errors: -EINVAL with ret_err, -errno of mmap. Any thread.
 */
int must_check manifest_open(int fd, struct err *ret_err, struct manifest **ret_manifest);

/* The same over borrowed bytes, 16-byte aligned; for tests and fuzzing. */
int must_check manifest_open_bytes(
	const void *data, uint64_t n_bytes, struct err *ret_err, struct manifest **ret_manifest);

/* One more owner, who frees it too. Any thread. */
struct manifest *manifest_ref(struct manifest *m);

/* Do token ids mean the same in both: as many tokens, each of the same kind and bytes? */
bool manifest_has_same_tokens(const struct manifest *a, const struct manifest *b);

/* The last owner's call frees it. Accepts NULL; returns NULL. */
struct manifest *manifest_free(struct manifest *m);

static inline const uint8_t *manifest_get_string(const struct manifest *m, struct manifest_string s)
{
	return m->strings + s.offset;
}

/* By name, NUL-terminated; NULL when there is none. Binary search. */
const struct manifest_tensor *manifest_find_tensor(const struct manifest *m, const char *name);

/* Keys that a token of the layer sees, its own among them; 0: all. The last of each period does. */
static inline uint32_t manifest_get_window(const struct manifest_hparams *h, uint32_t layer)
{
	bool is_full = h->window_period > 0 && layer % h->window_period == h->window_period - 1;

	return is_full ? 0 : h->n_window;
}

/* The token with exactly these bytes, or MANIFEST_NONE. */
uint32_t manifest_find_token(const struct manifest *m, const void *data, uint32_t n_bytes);

/* The merge of two tokens, or NULL. */
const struct manifest_merge *manifest_find_merge(
	const struct manifest *m, uint32_t left, uint32_t right);

/* Does the token end a generation? */
bool manifest_is_eog(const struct manifest *m, uint32_t token);

/*
 * The hashes of the two tables, shared by writer and reader; linear probing from hash & mask.
 * FNV-1a, 64 bit, folded (http://www.isthe.com/chongo/tech/comp/fnv/).
 */
uint32_t manifest_hash_bytes(const void *data, uint32_t n_bytes);
uint32_t manifest_hash_pair(uint32_t left, uint32_t right);

#endif
