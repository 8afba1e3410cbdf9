/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ref/gguf-build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "weightd/gguf.h"

struct buffer {
	uint8_t *data;
	uint64_t n_bytes;
	uint64_t n_room;
};

static void *grow(void *p, uint64_t n_bytes)
{
	void *grown = realloc(p, n_bytes + 1);

	if (!grown)
		abort();
	return grown;
}

static void put(struct buffer *b, const void *data, uint64_t n_bytes)
{
	if (b->n_bytes + n_bytes > b->n_room) {
		b->n_room = 2 * (b->n_bytes + n_bytes);
		b->data = grow(b->data, b->n_room);
	}
	if (n_bytes > 0)
		memcpy(b->data + b->n_bytes, data, n_bytes);
	b->n_bytes += n_bytes;
}

static void put_u32(struct buffer *b, uint32_t v)
{
	put(b, &v, sizeof(v));
}

static void put_u64(struct buffer *b, uint64_t v)
{
	put(b, &v, sizeof(v));
}

static void put_string(struct buffer *b, const void *data, uint64_t n_bytes)
{
	put_u64(b, n_bytes);
	put(b, data, n_bytes);
}

static uint64_t align(uint64_t n, uint64_t alignment)
{
	return (n + alignment - 1) / alignment * alignment;
}

struct gguf_build *gguf_build_new(void)
{
	struct gguf_build *b = calloc(1, sizeof(*b));

	if (!b)
		abort();
	memcpy(b->magic, "GGUF", 4);
	b->version = 3;
	b->alignment = 32;
	b->seed = 1;
	return b;
}

struct gguf_build *gguf_build_free(struct gguf_build *b)
{
	if (!b)
		return NULL;
	for (uint32_t i = 0; i < b->n_kv; i++) {
		free(b->kv[i].key);
		free(b->kv[i].value);
	}
	free(b->kv);
	free(b->tensors);
	free(b);
	return NULL;
}

static void *copy(const void *data, uint64_t n_bytes)
{
	void *p = grow(NULL, n_bytes);

	if (n_bytes > 0)
		memcpy(p, data, n_bytes);
	return p;
}

void gguf_build_add(struct gguf_build *b, const void *key, uint64_t n_key_bytes, uint32_t type,
	const void *value, uint64_t n_value_bytes)
{
	b->kv = grow(b->kv, (b->n_kv + 1) * sizeof(*b->kv));
	b->kv[b->n_kv++] = (struct gguf_build_kv){
		.key = copy(key, n_key_bytes),
		.n_key_bytes = n_key_bytes,
		.type = type,
		.value = copy(value, n_value_bytes),
		.n_value_bytes = n_value_bytes,
	};
}

/* n_kv when absent. */
static uint32_t find_kv(const struct gguf_build *b, const char *key)
{
	uint32_t i = 0;

	while (i < b->n_kv && (b->kv[i].n_key_bytes != strlen(key) ||
				      memcmp(b->kv[i].key, key, strlen(key)) != 0))
		i++;
	return i;
}

void gguf_build_set(struct gguf_build *b, const char *key, uint32_t type, const void *value,
	uint64_t n_value_bytes)
{
	uint32_t i = find_kv(b, key);

	if (i == b->n_kv) {
		gguf_build_add(b, key, strlen(key), type, value, n_value_bytes);
		return;
	}
	free(b->kv[i].value);
	b->kv[i].type = type;
	b->kv[i].value = copy(value, n_value_bytes);
	b->kv[i].n_value_bytes = n_value_bytes;
}

void gguf_build_set_u32(struct gguf_build *b, const char *key, uint32_t value)
{
	gguf_build_set(b, key, GGUF_U32, &value, sizeof(value));
}

void gguf_build_set_f32(struct gguf_build *b, const char *key, float value)
{
	gguf_build_set(b, key, GGUF_F32, &value, sizeof(value));
}

void gguf_build_set_bool(struct gguf_build *b, const char *key, bool value)
{
	uint8_t byte = value;

	gguf_build_set(b, key, GGUF_BOOL, &byte, sizeof(byte));
}

void gguf_build_set_string(struct gguf_build *b, const char *key, const char *value)
{
	struct buffer v = {.data = NULL};

	put_string(&v, value, strlen(value));
	gguf_build_set(b, key, GGUF_STRING, v.data, v.n_bytes);
	free(v.data);
}

void gguf_build_set_strings(
	struct gguf_build *b, const char *key, const char *const *values, uint64_t n)
{
	struct buffer v = {.data = NULL};

	put_u32(&v, GGUF_STRING);
	put_u64(&v, n);
	for (uint64_t i = 0; i < n; i++)
		put_string(&v, values[i], strlen(values[i]));
	gguf_build_set(b, key, GGUF_ARRAY, v.data, v.n_bytes);
	free(v.data);
}

void gguf_build_set_array(struct gguf_build *b, const char *key, uint32_t element_type,
	const void *elements, uint64_t n, uint32_t element_bytes)
{
	struct buffer v = {.data = NULL};

	put_u32(&v, element_type);
	put_u64(&v, n);
	put(&v, elements, n * element_bytes);
	gguf_build_set(b, key, GGUF_ARRAY, v.data, v.n_bytes);
	free(v.data);
}

void gguf_build_drop(struct gguf_build *b, const char *key)
{
	uint32_t i = find_kv(b, key);

	if (i == b->n_kv)
		return;
	free(b->kv[i].key);
	free(b->kv[i].value);
	b->n_kv--;
	memmove(&b->kv[i], &b->kv[i + 1], (b->n_kv - i) * sizeof(*b->kv));
}

struct gguf_build_tensor *gguf_build_add_tensor(
	struct gguf_build *b, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne)
{
	struct gguf_build_tensor t = {.n_dims = n_dims, .type = type};
	const struct dtype *dtype = dtype_find(type);
	uint64_t n_elements;

	snprintf(t.name, sizeof(t.name), "%s", name);
	memcpy(t.ne, ne, n_dims * sizeof(*ne));
	if (!dtype || dtype_tensor_bytes(dtype, n_dims, ne, &n_elements, &t.n_bytes) < 0)
		abort();
	t.offset = align(gguf_build_data_bytes(b), b->alignment);
	b->tensors = grow(b->tensors, (b->n_tensors + 1) * sizeof(*b->tensors));
	b->tensors[b->n_tensors] = t;
	return &b->tensors[b->n_tensors++];
}

struct gguf_build_tensor *gguf_build_find_tensor(struct gguf_build *b, const char *name)
{
	for (uint32_t i = 0; i < b->n_tensors; i++)
		if (strcmp(b->tensors[i].name, name) == 0)
			return &b->tensors[i];
	abort();
}

void gguf_build_drop_tensor(struct gguf_build *b, const char *name)
{
	struct gguf_build_tensor *t = gguf_build_find_tensor(b, name);

	b->n_tensors--;
	memmove(t, t + 1, (size_t)(&b->tensors[b->n_tensors] - t) * sizeof(*t));
}

uint8_t *gguf_build_metadata(const struct gguf_build *b, uint64_t *ret_n_bytes)
{
	static const uint8_t zeroes[1 << 16];
	struct buffer out = {.data = NULL};

	put(&out, b->magic, 4);
	put_u32(&out, b->version);
	put_u64(&out, b->n_tensors_claimed ? b->n_tensors_claimed : b->n_tensors);
	put_u64(&out, b->n_kv_claimed ? b->n_kv_claimed : b->n_kv);
	for (uint32_t i = 0; i < b->n_kv; i++) {
		put_string(&out, b->kv[i].key, b->kv[i].n_key_bytes);
		put_u32(&out, b->kv[i].type);
		put(&out, b->kv[i].value, b->kv[i].n_value_bytes);
	}
	for (uint32_t i = 0; i < b->n_tensors; i++) {
		const struct gguf_build_tensor *t = &b->tensors[i];
		put_string(&out, t->name, strlen(t->name));
		put_u32(&out, t->n_dims);
		put(&out, t->ne, t->n_dims * sizeof(*t->ne));
		put_u32(&out, t->type);
		put_u64(&out, t->offset);
	}
	put(&out, zeroes, align(out.n_bytes, b->alignment) - out.n_bytes);
	*ret_n_bytes = out.n_bytes;
	return out.data;
}

uint64_t gguf_build_data_bytes(const struct gguf_build *b)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < b->n_tensors; i++) {
		/* A tensor put out of reach on purpose has no data. */
		uint64_t end = b->tensors[i].offset + b->tensors[i].n_bytes;
		if (end > n && end < (uint64_t)1 << 40)
			n = end;
	}
	return n;
}

static uint64_t next_random(uint64_t *rng)
{
	/* xorshift64, Marsaglia 2003, shifts 13, 7, 17. */
	*rng ^= *rng << 13;
	*rng ^= *rng >> 7;
	*rng ^= *rng << 17;
	return *rng;
}

/* Uniform in [-1, 1). */
static float next_unit(uint64_t *rng)
{
	return (float)(int32_t)(next_random(rng) >> 32) * 0x1p-31f;
}

/* Rounds toward zero; below the smallest normal number it is 0. */
static uint16_t to_f16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
	if (magnitude < 0x38800000) /* 2^-14 */
		return (uint16_t)sign;
	return (uint16_t)(sign | (magnitude - 0x38000000) >> 13);
}

void gguf_build_fill(
	uint32_t type, float mean, float sigma, uint64_t n_blocks, uint64_t *rng, uint8_t *ret)
{
	const float span = sigma * 1.7320508f; /* sqrt(3): the deviation of a uniform in [-1, 1) */
	const struct dtype *dtype = dtype_find(type);

	for (uint64_t i = 0; i < n_blocks; i++) {
		uint8_t *block = ret + i * dtype->n_bytes;
		float f = mean + span * next_unit(rng);
		uint16_t h = to_f16(f);

		if (type == DTYPE_F32) {
			memcpy(block, &f, sizeof(f));
		} else if (type == DTYPE_F16) {
			memcpy(block, &h, sizeof(h));
		} else if (type == DTYPE_Q8_0) {
			/* Uniform -127 .. 127 has deviation 73.3. */
			h = to_f16(sigma / 73.3f * (1 + 0.25f * next_unit(rng)));
			memcpy(block, &h, sizeof(h));
			for (uint32_t at = 2; at < dtype->n_bytes; at += 8) {
				uint64_t bits = next_random(rng);
				memcpy(block + at, &bits, 8);
			}
			for (uint32_t at = 2; at < dtype->n_bytes; at++)
				if (block[at] == 0x80) /* -128: no quantizer writes it */
					block[at] = 0;
		} else {
			memset(block, 0, dtype->n_bytes);
		}
	}
}

uint8_t *gguf_build_file(const struct gguf_build *b, uint64_t *ret_n_bytes)
{
	uint64_t n_metadata, n_data = gguf_build_data_bytes(b), rng = b->seed | 1;
	uint8_t *file = gguf_build_metadata(b, &n_metadata);

	file = grow(file, n_metadata + n_data);
	memset(file + n_metadata, 0, n_data);
	for (uint32_t i = 0; i < b->n_tensors; i++) {
		const struct gguf_build_tensor *t = &b->tensors[i];
		const struct dtype *dtype = dtype_find(t->type);
		float sigma = t->n_dims == 1 ? 0.05f : 1 / sqrtf((float)t->ne[0]);

		if (dtype && t->offset <= n_data && t->n_bytes <= n_data - t->offset)
			gguf_build_fill(t->type, t->n_dims == 1 ? 1 : 0, sigma,
				t->n_bytes / dtype->n_bytes, &rng, file + n_metadata + t->offset);
	}
	*ret_n_bytes = n_metadata + n_data;
	return file;
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

enum { N_SPECIALS = 3, TEXT_BYTES = 24 };
static const char *const specials[N_SPECIALS] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

struct vocabulary {
	uint32_t n_tokens;
	char (*tokens)[TEXT_BYTES];
	uint32_t n_merges;
	char (*merges)[TEXT_BYTES];
};

/*
 * The bytes; then letters and digits in pairs, in threes, and so on, each from one shorter and one
 * letter, so that n - N_SPECIALS tokens need n - N_SPECIALS - 256 merges; the special ones last.
 */
static void make_vocabulary(uint32_t n, struct vocabulary *v)
{
	static const char letters[] =
		"etaoinshrdlucmfwypvbgkqjxz0123456789ETAOINSHRDLUCMFWYPVBGKQJXZ";
	uint32_t n_letters = sizeof(letters) - 1;

	*v = (struct vocabulary){
		.tokens = grow(NULL, (uint64_t)n * TEXT_BYTES),
		.merges = grow(NULL, (uint64_t)n * TEXT_BYTES),
	};
	for (uint32_t byte = 0; byte < 256; byte++)
		put_byte_char(byte, v->tokens[v->n_tokens++]);
	/* left walks the letters, then every token that was made. */
	for (uint32_t left = 0; v->n_tokens < n - N_SPECIALS; left++) {
		char a[TEXT_BYTES];

		if (left < n_letters)
			snprintf(a, sizeof(a), "%c", letters[left]);
		else
			snprintf(a, sizeof(a), "%s", v->tokens[256 + left - n_letters]);
		for (uint32_t i = 0; i < n_letters && v->n_tokens < n - N_SPECIALS; i++) {
			snprintf(v->tokens[v->n_tokens++], TEXT_BYTES, "%.20s%c", a, letters[i]);
			snprintf(v->merges[v->n_merges++], TEXT_BYTES, "%.20s %c", a, letters[i]);
		}
	}
	for (uint32_t i = 0; i < N_SPECIALS; i++)
		snprintf(v->tokens[v->n_tokens++], TEXT_BYTES, "%s", specials[i]);
}

static void set_texts(struct gguf_build *b, const char *key, char (*texts)[TEXT_BYTES], uint32_t n)
{
	const char **list = grow(NULL, n * sizeof(*list));

	for (uint32_t i = 0; i < n; i++)
		list[i] = texts[i];
	gguf_build_set_strings(b, key, list, n);
	free(list);
}

static void set_tokenizer(struct gguf_build *b, uint32_t n_vocab)
{
	struct vocabulary v;
	int32_t *types = grow(NULL, n_vocab * sizeof(*types));

	make_vocabulary(n_vocab, &v);
	for (uint32_t i = 0; i < n_vocab; i++)
		types[i] =
			i < n_vocab - N_SPECIALS ? MANIFEST_TOKEN_NORMAL : MANIFEST_TOKEN_CONTROL;
	gguf_build_set_string(b, "tokenizer.ggml.model", "gpt2");
	gguf_build_set_string(b, "tokenizer.ggml.pre", "qwen2");
	set_texts(b, "tokenizer.ggml.tokens", v.tokens, v.n_tokens);
	gguf_build_set_array(
		b, "tokenizer.ggml.token_type", GGUF_I32, types, n_vocab, sizeof(*types));
	set_texts(b, "tokenizer.ggml.merges", v.merges, v.n_merges);
	gguf_build_set_u32(b, "tokenizer.ggml.bos_token_id", n_vocab - 3);
	gguf_build_set_u32(b, "tokenizer.ggml.eos_token_id", n_vocab - 1);
	gguf_build_set_bool(b, "tokenizer.ggml.add_bos_token", false);
	gguf_build_set_string(b, "tokenizer.chat_template",
		"{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + "
		"message.content + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt "
		"%}{{- '<|im_start|>assistant\\n' }}{%- endif %}");
	free(types);
	free(v.tokens);
	free(v.merges);
}

static void set_hparams(struct gguf_build *b, const struct gguf_build_shape *s)
{
	const char *arch = s->n_expert ? "qwen3moe" : "qwen3";
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

static void add_rows(struct gguf_build *b, const struct gguf_build_shape *s, uint32_t layer,
	const struct layer_row *rows, size_t n_rows)
{
	char name[64];

	for (size_t i = 0; i < n_rows; i++) {
		const struct layer_row *r = &rows[i];
		snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, r->name);
		if (r->n_matrices)
			gguf_build_add_tensor(b, name, s->type, 3,
				(uint64_t[]){r->n_in, r->n_out, r->n_matrices});
		else if (r->n_out)
			add_matrix(b, name, r->is_router ? DTYPE_F32 : s->type, r->n_in, r->n_out);
		else
			add_norm(b, name, r->n_in);
	}
}

static void add_layer(struct gguf_build *b, const struct gguf_build_shape *s, uint32_t layer)
{
	const uint64_t n_q = (uint64_t)s->n_head * s->head_dim;
	const uint64_t n_kv = (uint64_t)s->n_head_kv * s->head_dim;
	const struct layer_row rows[] = {
		{"attn_norm", s->n_embd, 0, 0, false},
		{"attn_q", s->n_embd, n_q, 0, false},
		{"attn_k", s->n_embd, n_kv, 0, false},
		{"attn_v", s->n_embd, n_kv, 0, false},
		{"attn_output", n_q, s->n_embd, 0, false},
		{"attn_q_norm", s->head_dim, 0, 0, false},
		{"attn_k_norm", s->head_dim, 0, 0, false},
		{"ffn_norm", s->n_embd, 0, 0, false},
	};
	const struct layer_row dense[] = {
		{"ffn_gate", s->n_embd, s->n_ff, 0, false},
		{"ffn_up", s->n_embd, s->n_ff, 0, false},
		{"ffn_down", s->n_ff, s->n_embd, 0, false},
	};
	const struct layer_row mixture[] = {
		{"ffn_gate_inp", s->n_embd, s->n_expert, 0, true},
		{"ffn_gate_exps", s->n_embd, s->n_ff_expert, s->n_expert, false},
		{"ffn_up_exps", s->n_embd, s->n_ff_expert, s->n_expert, false},
		{"ffn_down_exps", s->n_ff_expert, s->n_embd, s->n_expert, false},
	};

	add_rows(b, s, layer, rows, sizeof(rows) / sizeof(rows[0]));
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
	s.seed = s.seed ? s.seed : 1;
	return s;
}

struct gguf_build *gguf_build_new_qwen3(const struct gguf_build_shape *shape)
{
	struct gguf_build_shape s = gguf_build_complete_shape(shape);
	struct gguf_build *b = gguf_build_new();

	b->seed = s.seed;
	set_hparams(b, &s);
	if (!s.no_tokenizer)
		set_tokenizer(b, s.n_vocab);
	add_matrix(b, "token_embd.weight", s.type, s.n_embd, s.n_vocab);
	add_norm(b, "output_norm.weight", s.n_embd);
	if (s.untied)
		add_matrix(b, "output.weight", s.type, s.n_embd, s.n_vocab);
	for (uint32_t i = 0; i < s.n_layers; i++)
		add_layer(b, &s, i);
	return b;
}
