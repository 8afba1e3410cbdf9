/* SPDX-License-Identifier: Apache-2.0 */
/* Whole models of the architectures that we know, for gguf-build.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "tests/ref/gguf-build.h"
#include "weightd/gguf.h"

static const char rope_factors[] = "rope_freqs.weight";

static void *allocate(uint64_t n_bytes)
{
	void *p = malloc(n_bytes + 1);

	if (!p)
		abort();
	return p;
}

/* https://arxiv.org/abs/2407.21783 with factors of Llama 3.1: from 1 at 4 turns to 8 at 1. */
bool gguf_build_fill_rope_factors(
	const struct gguf_build *b, const struct gguf_build_tensor *t, uint8_t *ret)
{
	const double factor = 8, low = 1, high = 4, n_old_ctx = b->n_ctx / 16.0;

	if (strcmp(t->name, rope_factors) != 0)
		return false;
	for (uint64_t i = 0; i < t->ne[0]; i++) {
		double angle = pow(b->rope_base, -(double)i / (double)t->ne[0]);
		double n_turns = n_old_ctx * angle / (2 * 3.14159265358979324);
		double part = fmin(fmax((n_turns - low) / (high - low), 0), 1);
		float f = (float)(1 / ((1 - part) / factor + part));
		memcpy(ret + i * sizeof(f), &f, sizeof(f));
	}
	return true;
}

/* UTF-8 of the character that stands for a byte in byte-level text. */
static void put_byte_char(uint32_t byte, char ret[static 3])
{
	static const struct {
		uint32_t first, last;
	} own[] = {{'!', '~'}, {0xa1, 0xac}, {0xae, 0xff}};
	uint32_t c = 256, n_own_before = 0;

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
		if (byte >= own[i].first && byte <= own[i].last)
			c = byte;
		if (byte > own[i].last)
			n_own_before += own[i].last - own[i].first + 1;
	}
	if (c != byte)
		c += byte - n_own_before;
	if (c < 0x80)
		snprintf(ret, 3, "%c", (int)c);
	else
		snprintf(ret, 3, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f)));
}

enum { MAX_SPECIALS = 4, TEXT_BYTES = 24 };

/* What tokenizers of one family have. */
struct family {
	const char *pre;
	uint32_t n_specials;
	const char *specials[MAX_SPECIALS]; /* the first is bos, the last eos */
	bool add_bos;
	const char *chat_template;
};

static const struct family qwen = {
	.pre = "qwen2",
	.n_specials = 3,
	.specials = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"},
	.chat_template =
		"{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + "
		"message.content + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt "
		"%}{{- '<|im_start|>assistant\\n' }}{%- endif %}",
};

static const struct family llama3 = {
	.pre = "llama-bpe",
	.n_specials = 4,
	.specials = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
	.add_bos = true,
	.chat_template =
		"{{- bos_token }}{%- for message in messages %}{{- '<|start_header_id|>' + "
		"message.role + '<|end_header_id|>\\n\\n' + message.content | trim + "
		"'<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}{{- "
		"'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}",
};

struct vocabulary {
	uint32_t n_tokens;
	char (*tokens)[TEXT_BYTES];
	uint32_t n_merges;
	char (*merges)[TEXT_BYTES];
};

/*
 * The bytes; then letters and digits in pairs, in threes, and so on, each from one shorter and one
 * letter, so that n - n_specials tokens need n - n_specials - 256 merges; the special ones last.
 */
static void make_vocabulary(uint32_t n, const struct family *f, struct vocabulary *v)
{
	const uint32_t n_normal = n - f->n_specials;
	static const char letters[] =
		"etaoinshrdlucmfwypvbgkqjxz0123456789ETAOINSHRDLUCMFWYPVBGKQJXZ";
	uint32_t n_letters = sizeof(letters) - 1;

	*v = (struct vocabulary){
		.tokens = allocate((uint64_t)n * TEXT_BYTES),
		.merges = allocate((uint64_t)n * TEXT_BYTES),
	};
	for (uint32_t byte = 0; byte < 256; byte++)
		put_byte_char(byte, v->tokens[v->n_tokens++]);
	/* left walks the letters, then every token that was made. */
	for (uint32_t left = 0; v->n_tokens < n_normal; left++) {
		char a[TEXT_BYTES];

		if (left < n_letters)
			snprintf(a, sizeof(a), "%c", letters[left]);
		else
			snprintf(a, sizeof(a), "%s", v->tokens[256 + left - n_letters]);
		for (uint32_t i = 0; i < n_letters && v->n_tokens < n_normal; i++) {
			snprintf(v->tokens[v->n_tokens++], TEXT_BYTES, "%.20s%c", a, letters[i]);
			snprintf(v->merges[v->n_merges++], TEXT_BYTES, "%.20s %c", a, letters[i]);
		}
	}
	for (uint32_t i = 0; i < f->n_specials; i++)
		snprintf(v->tokens[v->n_tokens++], TEXT_BYTES, "%s", f->specials[i]);
}

static void set_texts(struct gguf_build *b, const char *key, char (*texts)[TEXT_BYTES], uint32_t n)
{
	const char **list = allocate(n * sizeof(*list));

	for (uint32_t i = 0; i < n; i++)
		list[i] = texts[i];
	gguf_build_set_strings(b, key, list, n);
	free(list);
}

static void set_tokenizer(struct gguf_build *b, uint32_t n_vocab, const struct family *f)
{
	struct vocabulary v;
	int32_t *types = allocate(n_vocab * sizeof(*types));

	make_vocabulary(n_vocab, f, &v);
	for (uint32_t i = 0; i < n_vocab; i++)
		types[i] = i < n_vocab - f->n_specials ? MANIFEST_TOKEN_NORMAL
						       : MANIFEST_TOKEN_CONTROL;
	gguf_build_set_string(b, "tokenizer.ggml.model", "gpt2");
	gguf_build_set_string(b, "tokenizer.ggml.pre", f->pre);
	set_texts(b, "tokenizer.ggml.tokens", v.tokens, v.n_tokens);
	gguf_build_set_array(
		b, "tokenizer.ggml.token_type", GGUF_I32, types, n_vocab, sizeof(*types));
	set_texts(b, "tokenizer.ggml.merges", v.merges, v.n_merges);
	gguf_build_set_u32(b, "tokenizer.ggml.bos_token_id", n_vocab - f->n_specials);
	gguf_build_set_u32(b, "tokenizer.ggml.eos_token_id", n_vocab - 1);
	gguf_build_set_bool(b, "tokenizer.ggml.add_bos_token", f->add_bos);
	gguf_build_set_string(b, "tokenizer.chat_template", f->chat_template);
	free(types);
	free(v.tokens);
	free(v.merges);
}

static void set_hparams(struct gguf_build *b, const char *arch, const struct gguf_build_shape *s)
{
	const struct {
		const char *name;
		uint32_t value;
	} counts[] = {
		{"block_count", s->n_layers},
		{"context_length", s->n_ctx},
		{"embedding_length", s->n_embd},
		{"feed_forward_length", s->n_ff},
		{"attention.head_count", s->n_head},
		{"attention.head_count_kv", s->n_head_kv},
		{"attention.key_length", s->head_dim},
		{"attention.value_length", s->head_dim},
		{"vocab_size", s->n_vocab},
		{"expert_count", s->n_expert},
		{"expert_used_count", s->n_expert_used},
		{"expert_feed_forward_length", s->n_ff_expert},
	};
	const size_t n_dense = sizeof(counts) / sizeof(counts[0]) - 3;
	char key[64];

	gguf_build_set_string(b, "general.architecture", arch);
	gguf_build_set_string(b, "general.name", "random weights");
	for (size_t i = 0; i < n_dense + (s->n_expert ? 3 : 0); i++) {
		snprintf(key, sizeof(key), "%s.%s", arch, counts[i].name);
		gguf_build_set_u32(b, key, counts[i].value);
	}
	snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", arch);
	gguf_build_set_f32(b, key, 1e-6f);
	snprintf(key, sizeof(key), "%s.rope.freq_base", arch);
	gguf_build_set_f32(b, key, 1e6f);
	b->rope_base = 1e6f;
	b->n_ctx = s->n_ctx;
}

static void add_matrix(
	struct gguf_build *b, const char *name, uint32_t type, uint64_t n_in, uint64_t n_out)
{
	gguf_build_add_tensor(b, name, type, 2, (uint64_t[]){n_in, n_out});
}

static void add_norm(struct gguf_build *b, const char *name, uint64_t n)
{
	gguf_build_add_tensor(b, name, DTYPE_F32, 1, &n);
}

/* A tensor of a layer; n_out 0: a norm, n_matrices 0: one matrix. */
struct layer_row {
	const char *name;
	uint64_t n_in, n_out, n_matrices;
	bool is_router; /* F32 always */
};

/*
 * Whether a layer's v and down are of type_more: the first and the last eighth of the layers, and
 * of those between every third (llama-quant.cpp, use_more_bits).
 */
static bool has_more_bits(uint32_t layer, uint32_t n_layers)
{
	return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2;
}

static uint32_t get_type(const struct gguf_build_shape *s, uint32_t layer, const char *name)
{
	bool is_one = strcmp(name, "attn_v") == 0 || strncmp(name, "ffn_down", 8) == 0;

	return is_one && has_more_bits(layer, s->n_layers) ? s->type_more : s->type;
}

static void add_rows(struct gguf_build *b, const struct gguf_build_shape *s, uint32_t layer,
	const struct layer_row *rows, size_t n_rows)
{
	char name[64];

	for (size_t i = 0; i < n_rows; i++) {
		const struct layer_row *r = &rows[i];
		uint32_t type = get_type(s, layer, r->name);
		snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, r->name);
		if (r->n_matrices)
			gguf_build_add_tensor(
				b, name, type, 3, (uint64_t[]){r->n_in, r->n_out, r->n_matrices});
		else if (r->n_out)
			add_matrix(b, name, r->is_router ? DTYPE_F32 : type, r->n_in, r->n_out);
		else
			add_norm(b, name, r->n_in);
	}
}

static void add_layer(
	struct gguf_build *b, const struct gguf_build_shape *s, bool has_head_norms, uint32_t layer)
{
	const uint64_t n_q = (uint64_t)s->n_head * s->head_dim;
	const uint64_t n_kv = (uint64_t)s->n_head_kv * s->head_dim;
	const struct layer_row rows[] = {
		{"attn_norm", s->n_embd, 0, 0, false},
		{"attn_q", s->n_embd, n_q, 0, false},
		{"attn_k", s->n_embd, n_kv, 0, false},
		{"attn_v", s->n_embd, n_kv, 0, false},
		{"attn_output", n_q, s->n_embd, 0, false},
	};
	const struct layer_row head_norms[] = {
		{"attn_q_norm", s->head_dim, 0, 0, false},
		{"attn_k_norm", s->head_dim, 0, 0, false},
	};
	const struct layer_row dense[] = {
		{"ffn_norm", s->n_embd, 0, 0, false},
		{"ffn_gate", s->n_embd, s->n_ff, 0, false},
		{"ffn_up", s->n_embd, s->n_ff, 0, false},
		{"ffn_down", s->n_ff, s->n_embd, 0, false},
	};
	const struct layer_row mixture[] = {
		{"ffn_norm", s->n_embd, 0, 0, false},
		{"ffn_gate_inp", s->n_embd, s->n_expert, 0, true},
		{"ffn_gate_exps", s->n_embd, s->n_ff_expert, s->n_expert, false},
		{"ffn_up_exps", s->n_embd, s->n_ff_expert, s->n_expert, false},
		{"ffn_down_exps", s->n_ff_expert, s->n_embd, s->n_expert, false},
	};

	add_rows(b, s, layer, rows, sizeof(rows) / sizeof(rows[0]));
	if (has_head_norms)
		add_rows(b, s, layer, head_norms, sizeof(head_norms) / sizeof(head_norms[0]));
	if (s->n_expert)
		add_rows(b, s, layer, mixture, sizeof(mixture) / sizeof(mixture[0]));
	else
		add_rows(b, s, layer, dense, sizeof(dense) / sizeof(dense[0]));
}

static uint32_t or_default(uint32_t v, uint32_t fallback)
{
	return v ? v : fallback;
}

struct gguf_build_shape gguf_build_complete_shape(const struct gguf_build_shape *shape)
{
	struct gguf_build_shape s = *shape;

	s.n_layers = or_default(s.n_layers, 1);
	s.n_ctx = or_default(s.n_ctx, 128);
	s.n_embd = or_default(s.n_embd, 32);
	s.n_ff = or_default(s.n_ff, 64);
	s.n_head = or_default(s.n_head, 2);
	s.n_head_kv = or_default(s.n_head_kv, 1);
	s.head_dim = or_default(s.head_dim, 16);
	s.n_vocab = or_default(s.n_vocab, s.no_tokenizer ? 4 : 264);
	if (s.n_expert) {
		s.n_expert_used = or_default(s.n_expert_used, 1);
		s.n_ff_expert = or_default(s.n_ff_expert, 32);
	}
	s.type_more = or_default(s.type_more, s.type);
	s.seed = s.seed ? s.seed : 1;
	return s;
}

static struct gguf_build *new_model(
	const char *arch, const struct family *f, const struct gguf_build_shape *s)
{
	struct gguf_build *b = gguf_build_new();

	b->seed = s->seed;
	set_hparams(b, arch, s);
	if (!s->no_tokenizer)
		set_tokenizer(b, s->n_vocab, f);
	add_matrix(
		b, "token_embd.weight", s->untied ? s->type : s->type_more, s->n_embd, s->n_vocab);
	add_norm(b, "output_norm.weight", s->n_embd);
	if (s->untied)
		add_matrix(b, "output.weight", s->type_more, s->n_embd, s->n_vocab);
	for (uint32_t i = 0; i < s->n_layers; i++)
		add_layer(b, s, f == &qwen, i);
	return b;
}

struct gguf_build *gguf_build_new_qwen3(const struct gguf_build_shape *shape)
{
	struct gguf_build_shape s = gguf_build_complete_shape(shape);

	return new_model(s.n_expert ? "qwen3moe" : "qwen3", &qwen, &s);
}

struct gguf_build *gguf_build_new_llama(const struct gguf_build_shape *shape)
{
	struct gguf_build_shape s = gguf_build_complete_shape(shape);
	uint32_t n_rot = or_default(s.n_rot, s.head_dim);
	struct gguf_build *b = new_model("llama", &llama3, &s);

	gguf_build_set_u32(b, "llama.rope.dimension_count", n_rot);
	if (s.has_rope_factors)
		add_norm(b, rope_factors, n_rot / 2);
	return b;
}
