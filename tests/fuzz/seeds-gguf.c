/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the seeds of fuzz-gguf into the directory given: metadata without data. What it writes is
 * committed; it runs again when the target wants other seeds.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "proto/util/cleanup.h"
#include "tests/ref/gguf-build.h"
#include "weightd/gguf.h"

static const char *seeds_path;

/* Frees b. */
static void write_seed(const char *name, struct gguf_build *b)
{
	char path[4096];
	uint64_t n;
	uint8_t *data = gguf_build_metadata(b, &n);

	snprintf(path, sizeof(path), "%s/%s", seeds_path, name);
	FILE *f = fopen(path, "wbe");
	if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
	free(data);
	gguf_build_free(b);
}

static struct gguf_build *new_plain(uint32_t type)
{
	return gguf_build_new_qwen3(&(struct gguf_build_shape){.type = type, .no_tokenizer = true});
}

/* A vocabulary small enough for a fuzzer to play with. */
static struct gguf_build *new_small(void)
{
	static const char *const tokens[] = {
		"A", "B", "AB", "\304\240", "\304\240A", "<|im_end|>", "<user>", "\303\200", "ABA"};
	static const char *const merges[] = {"A B", "\304\240 A", "AB A"};
	const int32_t types[] = {1, 1, 1, 1, 1, 3, 4, 1, 1};
	const float scores[ARRAY_SIZE(tokens)] = {0};
	struct gguf_build *b = gguf_build_new_qwen3(&(struct gguf_build_shape){
		.type = DTYPE_F16, .n_vocab = ARRAY_SIZE(tokens), .no_tokenizer = true});

	gguf_build_set_string(b, "tokenizer.ggml.model", "gpt2");
	gguf_build_set_string(b, "tokenizer.ggml.pre", "qwen2");
	gguf_build_set_strings(b, "tokenizer.ggml.tokens", tokens, ARRAY_SIZE(tokens));
	gguf_build_set_strings(b, "tokenizer.ggml.merges", merges, ARRAY_SIZE(merges));
	gguf_build_set_array(
		b, "tokenizer.ggml.token_type", GGUF_I32, types, ARRAY_SIZE(tokens), 4);
	gguf_build_set_array(b, "tokenizer.ggml.scores", GGUF_F32, scores, ARRAY_SIZE(tokens), 4);
	gguf_build_set_u32(b, "tokenizer.ggml.eos_token_id", 5);
	gguf_build_set_u32(b, "tokenizer.ggml.bos_token_id", 6);
	gguf_build_set_bool(b, "tokenizer.ggml.add_bos_token", true);
	gguf_build_set_string(b, "tokenizer.chat_template", "{{ messages }}");
	return b;
}

static void write_valid(void)
{
	static const uint8_t nested[24] = {GGUF_U8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, GGUF_STRING};
	struct gguf_build *b;

	write_seed("f32", new_plain(DTYPE_F32));
	write_seed("small-vocabulary", new_small());
	write_seed("q8_0-untied", gguf_build_new_qwen3(&(struct gguf_build_shape){
					  .type = DTYPE_Q8_0, .n_layers = 2, .untied = true}));
	b = new_plain(DTYPE_F32);
	gguf_build_set_u32(b, "qwen3.attention.sliding_window", 8);
	gguf_build_set_u32(b, "qwen3.attention.sliding_window_pattern", 2);
	write_seed("window", b);
	b = gguf_build_new_llama(&(struct gguf_build_shape){
		.no_tokenizer = true, .n_rot = 14, .has_rope_factors = true});
	gguf_build_set_string(b, "llama.rope.scaling.type", "none");
	gguf_build_set_u32(b, "llama.expert_count", 0);
	write_seed("llama", b);
	b = new_plain(DTYPE_F16);
	b->version = 2;
	gguf_build_drop(b, "qwen3.attention.head_count_kv");
	gguf_build_find_tensor(b, "blk.0.attn_k.weight")->ne[1] = 32;
	gguf_build_find_tensor(b, "blk.0.attn_v.weight")->ne[1] = 32;
	gguf_build_find_tensor(b, "blk.0.attn_v.weight")->offset = 1 << 18;
	gguf_build_find_tensor(b, "blk.0.attn_k.weight")->offset = 1 << 17;
	write_seed("defaults-gaps", b);
	b = new_small();
	b->alignment = 64;
	gguf_build_set_u32(b, "general.alignment", 64);
	gguf_build_set_string(b, "a.empty", "");
	gguf_build_set(b, "a.f64", GGUF_F64, "\0\0\0\0\0\0\xe0\x3f", 8);
	gguf_build_set_array(b, "a.bools", GGUF_BOOL, "\0\1", 2, 1);
	gguf_build_set_array(b, "a.nested", GGUF_ARRAY, nested, 2, 12);
	gguf_build_set_string(b, "qwen3.rope.scaling.type", "none");
	for (uint32_t i = 0; i < b->n_tensors; i++)
		b->tensors[i].offset = (b->tensors[i].offset + 63 + i * 64) & ~(uint64_t)63;
	write_seed("odd-keys", b);
}

static void write_refused(void)
{
	struct gguf_build *b = new_plain(DTYPE_F32);
	struct gguf_build_tensor *t = gguf_build_find_tensor(b, "output_norm.weight");

	t->n_dims = 3;
	t->ne[0] = 4;
	t->ne[1] = (1u << 30) - 1;
	t->ne[2] = (1u << 30) + 1;
	write_seed("size-wraps", b);
	b = new_plain(DTYPE_F32);
	gguf_build_find_tensor(b, "output_norm.weight")->offset = UINT64_MAX - 95;
	write_seed("offset-wraps", b);
	b = gguf_build_new();
	b->n_kv_claimed = b->n_tensors_claimed = 1ull << 60;
	write_seed("counts", b);
	b = gguf_build_new();
	gguf_build_set(b, "a", GGUF_STRING, "\xf0\xff\xff\xff\xff\xff\xff\xff", 8);
	write_seed("string-wraps", b);
	b = new_small();
	gguf_build_set_u32(b, "split.count", 2);
	write_seed("split", b);
	b = new_small();
	gguf_build_set_strings(b, "tokenizer.ggml.merges", (const char *const[]){"B A"}, 1);
	write_seed("merge-into-none", b);
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: fuzz-seeds-gguf DIRECTORY\n");
		return 2;
	}
	seeds_path = argv[1];
	if (mkdir(seeds_path, 0777) < 0 && errno != EEXIST) {
		perror(seeds_path);
		return 1;
	}
	write_valid();
	write_refused();
	return 0;
}
