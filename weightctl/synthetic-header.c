/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/synthetic-header.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weightctl/synthetic-shape.h"

/* GGUF's value types that are used here. */
enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

/* tokenizer.ggml.token_type (llama.h, enum llama_token_type). */
enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_UNUSED = 5 };

enum { N_BYTES = 256, VERSION = 3 };

/* Grows; the first failure is kept. */
struct out {
	char *data;
	size_t n_bytes;
	FILE *file;
	uint64_t n_keys;
};

static void put(struct out *o, const void *data, size_t n_bytes)
{
	fwrite(data, 1, n_bytes, o->file);
}

static void put_u32(struct out *o, uint32_t value)
{
	put(o, &value, sizeof(value));
}

static void put_u64(struct out *o, uint64_t value)
{
	put(o, &value, sizeof(value));
}

static void put_string(struct out *o, const char *text)
{
	put_u64(o, strlen(text));
	put(o, text, strlen(text));
}

static void put_key(struct out *o, const char *key, uint32_t type)
{
	put_string(o, key);
	put_u32(o, type);
	o->n_keys++;
}

/* "ARCH.name", or the name alone. */
static void put_arch_key(struct out *o, const char *arch, const char *name, uint32_t type)
{
	char key[128];

	snprintf(key, sizeof(key), "%s.%s", arch, name);
	put_key(o, key, type);
}

static void add_string(struct out *o, const char *key, const char *value)
{
	put_key(o, key, STRING);
	put_string(o, value);
}

static void add_u32(struct out *o, const char *key, uint32_t value)
{
	put_key(o, key, U32);
	put_u32(o, value);
}

static void add_arch_u32(struct out *o, const char *arch, const char *name, uint32_t value)
{
	put_arch_key(o, arch, name, U32);
	put_u32(o, value);
}

static void add_arch_f32(struct out *o, const char *arch, const char *name, float value)
{
	put_arch_key(o, arch, name, F32);
	put(o, &value, sizeof(value));
}

static void add_hparams(struct out *o, const struct synthetic_shape *s)
{
	add_arch_u32(o, s->arch, "block_count", s->n_layers);
	add_arch_u32(o, s->arch, "context_length", s->n_ctx);
	add_arch_u32(o, s->arch, "embedding_length", s->n_embd);
	add_arch_u32(o, s->arch, "feed_forward_length", s->n_ff);
	add_arch_u32(o, s->arch, "attention.head_count", s->n_head);
	add_arch_u32(o, s->arch, "attention.head_count_kv", s->n_head_kv);
	add_arch_u32(o, s->arch, "attention.key_length", s->head_dim);
	add_arch_u32(o, s->arch, "attention.value_length", s->head_dim);
	add_arch_f32(o, s->arch, "attention.layer_norm_rms_epsilon", s->eps);
	add_arch_f32(o, s->arch, "rope.freq_base", s->rope_base);
	add_arch_u32(o, s->arch, "rope.dimension_count", s->head_dim);
	add_arch_u32(o, s->arch, "vocab_size", s->n_vocab);
	if (s->n_expert == 0)
		return;
	add_arch_u32(o, s->arch, "expert_count", s->n_expert);
	add_arch_u32(o, s->arch, "expert_used_count", s->n_expert_used);
	add_arch_u32(o, s->arch, "expert_feed_forward_length", s->n_expert_ff);
}

/*
 * Byte-level BPE writes a byte as one character: printable Latin-1 as itself, the others, in order,
 * as U+0100 and on.
 */
static bool is_printable(uint32_t byte)
{
	return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static void name_byte(uint32_t byte, uint32_t n_others, char *ret_text)
{
	uint32_t c = is_printable(byte) ? byte : 0x100 + n_others;

	if (c < 0x80) {
		ret_text[0] = (char)c;
		ret_text[1] = '\0';
		return;
	}
	ret_text[0] = (char)(0xc0 | c >> 6);
	ret_text[1] = (char)(0x80 | (c & 0x3f));
	ret_text[2] = '\0';
}

static void name_control(
	const struct synthetic_shape *s, uint32_t id, char *ret_text, size_t n_room)
{
	bool is_llama = !strcmp(s->pre, "llama-bpe");

	if (id == s->bos)
		snprintf(ret_text, n_room, is_llama ? "<|begin_of_text|>" : "<|endoftext|>");
	else if (id == s->eos)
		snprintf(ret_text, n_room, is_llama ? "<|eot_id|>" : "<|im_end|>");
	else if (!is_llama && id == s->bos + 1)
		snprintf(ret_text, n_room, "<|im_start|>");
	else
		snprintf(ret_text, n_room, "<|control_%u|>", id);
}

static void add_tokens(struct out *o, const struct synthetic_shape *s)
{
	uint32_t first_control = s->n_vocab - s->n_control, n_others = 0;
	char text[32];

	put_key(o, "tokenizer.ggml.tokens", ARRAY);
	put_u32(o, STRING);
	put_u64(o, s->n_vocab);
	for (uint32_t id = 0; id < s->n_vocab; id++) {
		if (id < N_BYTES) {
			name_byte(id, n_others, text);
			n_others += !is_printable(id);
		} else if (id < first_control) {
			snprintf(text, sizeof(text), "<|fill_%u|>", id);
		} else {
			name_control(s, id, text, sizeof(text));
		}
		put_string(o, text);
	}
	put_key(o, "tokenizer.ggml.token_type", ARRAY);
	put_u32(o, I32);
	put_u64(o, s->n_vocab);
	for (uint32_t id = 0; id < s->n_vocab; id++)
		put_u32(o, id < N_BYTES         ? TOKEN_NORMAL
			   : id < first_control ? TOKEN_UNUSED
						: TOKEN_CONTROL);
}

static void add_tokenizer(struct out *o, const struct synthetic_shape *s)
{
	add_string(o, "tokenizer.ggml.model", "gpt2");
	add_string(o, "tokenizer.ggml.pre", s->pre);
	add_tokens(o, s);
	/* Every text is its bytes. */
	put_key(o, "tokenizer.ggml.merges", ARRAY);
	put_u32(o, STRING);
	put_u64(o, 0);
	add_u32(o, "tokenizer.ggml.bos_token_id", s->bos);
	add_u32(o, "tokenizer.ggml.eos_token_id", s->eos);
	put_key(o, "tokenizer.ggml.add_bos_token", BOOL);
	put(o, &(uint8_t){s->adds_bos}, 1);
}

static void add_keys(
	struct out *o, const struct synthetic_shape *s, const struct synthetic_type *type)
{
	char name[64];

	snprintf(name, sizeof(name), "synthetic %s %s", s->name, type->name);
	add_string(o, "general.architecture", s->arch);
	add_string(o, "general.name", name);
	add_u32(o, "general.file_type", type->file_type);
	add_u32(o, "general.quantization_version", 2);
	add_hparams(o, s);
	add_tokenizer(o, s);
}

static void add_table(struct out *o, const struct synthetic_tensor *tensors, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct synthetic_tensor *t = &tensors[i];

		put_string(o, t->name);
		put_u32(o, t->n_dims);
		for (uint32_t k = 0; k < t->n_dims; k++)
			put_u64(o, t->ne[k]);
		put_u32(o, t->dtype);
		put_u64(o, t->offset);
	}
}

int synthetic_header_make(const struct synthetic_shape *shape, const struct synthetic_type *type,
	const struct synthetic_tensor *tensors, uint32_t n_tensors, uint8_t **ret_bytes,
	uint64_t *ret_n_bytes)
{
	static const uint8_t zeroes[SYNTHETIC_ALIGN];
	struct out o = {0};

	o.file = open_memstream(&o.data, &o.n_bytes);
	if (!o.file)
		return -ENOMEM;
	put(&o, "GGUF", 4);
	put_u32(&o, VERSION);
	put_u64(&o, n_tensors);
	put_u64(&o, 0); /* how many keys, when they are counted */
	add_keys(&o, shape, type);
	add_table(&o, tensors, n_tensors);
	fflush(o.file);
	put(&o, zeroes, -o.n_bytes % SYNTHETIC_ALIGN);
	bool failed = ferror(o.file);
	if (fclose(o.file) || failed) {
		free(o.data);
		return -ENOMEM;
	}
	memcpy(o.data + 16, &o.n_keys, sizeof(o.n_keys));
	*ret_bytes = (uint8_t *)o.data;
	*ret_n_bytes = o.n_bytes;
	return 0;
}
