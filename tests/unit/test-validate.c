/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/validate.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/util/err.h"
#include "tests/case.h"
#include "tests/ref/gguf-build.h"
#include "tests/unit/validate-build.h"

static struct gguf_build *new_tiny(void)
{
	return gguf_build_new_qwen3(&(struct gguf_build_shape){.type = DTYPE_Q8_0});
}

static void test_valid(void **state)
{
	(void)state;
	struct gguf_build *b = gguf_build_new_qwen3(&(struct gguf_build_shape){.n_layers = 3,
		.n_ctx = 77,
		.n_embd = 96,
		.n_ff = 160,
		.n_head = 4,
		.n_head_kv = 2,
		.head_dim = 8,
		.n_vocab = 300,
		.type = DTYPE_F16,
		.untied = true});
	struct gguf *g;
	struct validate_model m = pass(b, &g);

	assert_memory_equal(m.architecture.data, "qwen3", m.architecture.n_bytes);
	assert_int_equal(m.hparams.n_layers, 3);
	assert_int_equal(m.hparams.n_ctx_train, 77);
	assert_int_equal(m.hparams.n_embd, 96);
	assert_int_equal(m.hparams.n_ff, 160);
	assert_int_equal(m.hparams.n_head, 4);
	assert_int_equal(m.hparams.n_head_kv, 2);
	assert_int_equal(m.hparams.head_dim_k, 8);
	assert_int_equal(m.hparams.head_dim_v, 8);
	assert_int_equal(m.hparams.n_rot, 8);
	assert_int_equal(m.hparams.n_vocab, 300);
	assert_true(m.hparams.rms_eps == 1e-6f && m.hparams.rope_base == 1e6f);
	assert_int_equal(m.hparams.tied_embeddings, 0);
	assert_int_equal(m.hparams.n_expert, 0);
	assert_int_equal(m.hparams.n_parameters,
		2 * 96 * 300 + 96 +
			3 * (2 * 96 + 2 * 8 + 2 * 96 * 32 + 2 * 96 * 16 + 3 * 96 * 160));
	assert_int_equal(m.tokenizer.model, MANIFEST_TOKENIZER_BPE);
	assert_int_equal(m.tokenizer.pre, MANIFEST_PRE_QWEN2);
	assert_int_equal(m.tokenizer.bos, 297);
	assert_int_equal(m.tokenizer.eos, 299);
	assert_int_equal(m.tokenizer.pad, MANIFEST_NONE);
	assert_int_equal(m.tokenizer.n_eog, 2);
	assert_int_equal(m.tokenizer.eog[0], 299);
	assert_int_equal(m.tokenizer.eog[1], 297);
	assert_int_equal(m.tokenizer.n_merges, 300 - 3 - 256);
	assert_int_equal(m.tokens->n_elements, 300);
	assert_non_null(m.merges);
	assert_null(m.scores);
	assert_memory_equal(m.chat_template.data, "{%- for", 7);
	gguf_free(g);
	gguf_build_free(b);
}

static void test_defaults(void **state)
{
	(void)state;
	struct gguf_build *b = gguf_build_new_qwen3(
		&(struct gguf_build_shape){.n_head_kv = 2, .no_tokenizer = true});
	struct gguf *g;

	gguf_build_drop(b, "general.name");
	gguf_build_drop(b, "qwen3.attention.head_count_kv");
	gguf_build_drop(b, "qwen3.attention.key_length");
	gguf_build_drop(b, "qwen3.attention.value_length");
	gguf_build_drop(b, "qwen3.rope.freq_base");
	struct validate_model m = pass(b, &g);
	assert_int_equal(m.name.n_bytes, 0);
	assert_int_equal(m.hparams.n_head_kv, 2);
	assert_int_equal(m.hparams.head_dim_k, 16);
	assert_int_equal(m.hparams.head_dim_v, 16);
	assert_int_equal(m.hparams.n_rot, 16);
	assert_true(m.hparams.rope_base == 10000.0f);
	assert_int_equal(m.hparams.tied_embeddings, 1);
	assert_int_equal(m.tokenizer.model, MANIFEST_TOKENIZER_NONE);
	assert_int_equal(m.tokenizer.eos, MANIFEST_NONE);
	assert_null(m.tokens);
	gguf_free(g);
	gguf_build_drop(b, "qwen3.vocab_size");
	refuse(b, -EINVAL, "key qwen3.vocab_size: expected", "found no such key");
	gguf_build_free(b);

	b = new_tiny();
	gguf_build_drop(b, "qwen3.vocab_size");
	m = pass(b, &g);
	assert_int_equal(m.hparams.n_vocab, 264);
	gguf_free(g);
	gguf_build_set_u32(b, "qwen3.vocab_size", 263);
	refuse(b, -EINVAL, "key qwen3.vocab_size: expected the 264", "found 263");
	gguf_build_free(b);
}

/* Class 10, and every other count. */
static void test_counts(void **state)
{
	(void)state;
	static const struct {
		const char *key;
		uint32_t good;
		uint32_t bad[3];
	} rows[] = {
		{"qwen3.block_count", 1, {0, 513, UINT32_MAX}},
		{"qwen3.context_length", 128, {0, (1u << 26) + 1, UINT32_MAX}},
		{"qwen3.embedding_length", 32, {0, (1u << 17) + 1, UINT32_MAX}},
		{"qwen3.feed_forward_length", 64, {0, (1u << 20) + 1, UINT32_MAX}},
		{"qwen3.attention.head_count", 2, {0, 1025, UINT32_MAX}},
		{"qwen3.attention.head_count_kv", 1, {0, 3, UINT32_MAX}},
		{"qwen3.attention.key_length", 16, {0, (1u << 17) + 1, UINT32_MAX}},
		{"qwen3.attention.value_length", 16, {0, (1u << 17) + 1, UINT32_MAX}},
		{"qwen3.vocab_size", 264, {0, (1u << 22) + 1, UINT32_MAX}},
	};
	struct gguf_build *b = new_tiny();

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		const char *needed = rows[i].key;
		for (size_t j = 0; j < 3; j++) {
			gguf_build_set_u32(b, rows[i].key, rows[i].bad[j]);
			/* 2 heads of 3: the relation is told at head_count. */
			refuse(b, -EINVAL, rows[i].bad[j] == 3 ? "head_count_kv 3" : needed,
				"expected", "found");
		}
		gguf_build_set_string(b, rows[i].key, "many");
		refuse(b, -EINVAL, rows[i].key, "expected an integer, found string");
		gguf_build_set_u32(b, rows[i].key, rows[i].good);
	}
	for (size_t i = 0; i < 5; i++) {
		gguf_build_drop(b, rows[i].key);
		refuse(b, -EINVAL, rows[i].key, "found no such key");
		gguf_build_set_u32(b, rows[i].key, rows[i].good);
	}
	gguf_build_set_u32(b, "qwen3.block_count", 512);
	refuse(b, -EINVAL, "tensor blk.1.attn_norm.weight: expected [32], found no such tensor");
	gguf_build_free(b);
}

/* Relations between counts; what is valid but beyond the engine. */
static void test_heads(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();

	gguf_build_set_u32(b, "qwen3.attention.head_count", 3);
	gguf_build_set_u32(b, "qwen3.attention.head_count_kv", 2);
	refuse(b, -EINVAL,
		"key qwen3.attention.head_count: expected a multiple of head_count_kv 2, found 3");
	gguf_build_set_u32(b, "qwen3.attention.head_count_kv", 1);
	gguf_build_drop(b, "qwen3.attention.key_length");
	refuse(b, -EINVAL,
		"key qwen3.attention.head_count: expected a divisor of embedding_length 32",
		"found 3");
	gguf_build_set_u32(b, "qwen3.attention.head_count", 2);
	gguf_build_set_u32(b, "qwen3.attention.key_length", 15);
	refuse(b, -ENOTSUP, "key qwen3.attention.key_length: expected an even number up to 256");
	gguf_build_set_u32(b, "qwen3.attention.key_length", 258);
	refuse(b, -ENOTSUP, "key qwen3.attention.key_length: expected an even number up to 256");
	gguf_build_set_u32(b, "qwen3.attention.key_length", 32);
	refuse(b, -ENOTSUP, "key qwen3.attention.value_length: expected key_length 32, found 16");
	gguf_build_set_u32(b, "qwen3.attention.key_length", 16);
	gguf_build_set_u32(b, "qwen3.rope.dimension_count", 8);
	refuse(b, -ENOTSUP, "key qwen3.rope.dimension_count: expected key_length 16, found 8");
	gguf_build_set_u32(b, "qwen3.rope.dimension_count", 16);
	/* Class 10: rows that are no whole blocks, told at the key. */
	gguf_build_set_u32(b, "qwen3.embedding_length", 40);
	refuse(b, -EINVAL,
		"key qwen3.embedding_length: expected rows of whole blocks of 32 for tensor "
		"token_embd.weight (q8_0), found rows of 40");
	gguf_build_set_u32(b, "qwen3.embedding_length", 32);
	gguf_build_set_u32(b, "qwen3.feed_forward_length", 72);
	refuse(b, -EINVAL,
		"tensor blk.0.ffn_gate.weight: shape: expected [32, 72], found [32, 64]");
	gguf_build_free(b);
}

/* Class 23. */
static void test_numbers(void **state)
{
	(void)state;
	static const char *const keys[] = {
		"qwen3.attention.layer_norm_rms_epsilon", "qwen3.rope.freq_base"};
	const float bad[] = {NAN, INFINITY, -INFINITY, -10000, 0, -0.0f};
	struct gguf_build *b = new_tiny();

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		for (size_t j = 0; j < ARRAY_SIZE(bad); j++) {
			gguf_build_set_f32(b, keys[i], bad[j]);
			refuse(b, -EINVAL, "key ", keys[i], "expected a number above 0", "found");
		}
		double tiny = 1e-300, huge = 1e300;
		gguf_build_set(b, keys[i], GGUF_F64, i == 0 ? &tiny : &huge, 8);
		refuse(b, -EINVAL, "key ", keys[i], "expected a number above 0", "found");
		gguf_build_set_u32(b, keys[i], 1);
		refuse(b, -EINVAL, "key ", keys[i], "expected f32 or f64, found u32");
		gguf_build_set_f32(b, keys[i], 0.5f);
	}
	gguf_build_set_f32(b, keys[0], 1);
	refuse(b, -EINVAL, keys[0], "below 1, found 1");
	gguf_build_drop(b, keys[0]);
	refuse(b, -EINVAL, keys[0], "found no such key");
	gguf_build_free(b);
}

static void test_window(void **state)
{
	struct gguf_build *b = gguf_build_new_qwen3(&(struct gguf_build_shape){.n_layers = 7});
	struct gguf *g;

	(void)state;
	struct validate_model m = pass(b, &g);
	assert_int_equal(m.hparams.n_window, 0);
	gguf_free(g);
	gguf_build_set_u32(b, "qwen3.attention.sliding_window", 24);
	m = pass(b, &g);
	for (uint32_t i = 0; i < 7; i++)
		assert_int_equal(manifest_get_window(&m.hparams, i), 24);
	gguf_free(g);
	gguf_build_set_u32(b, "qwen3.attention.sliding_window_pattern", 3);
	m = pass(b, &g);
	for (uint32_t i = 0; i < 7; i++)
		assert_int_equal(manifest_get_window(&m.hparams, i), i == 2 || i == 5 ? 0 : 24);
	gguf_free(g);
	gguf_build_set_u32(b, "qwen3.attention.sliding_window_pattern", 1 << 20);
	refuse(b, -EINVAL, "key qwen3.attention.sliding_window_pattern: expected 0 to",
		"found 1048576");
	gguf_build_set_u32(b, "qwen3.attention.sliding_window_pattern", 0);
	gguf_build_set_u32(b, "qwen3.attention.sliding_window", 1 << 27);
	refuse(b, -EINVAL, "key qwen3.attention.sliding_window: expected 0 to", "found 134217728");
	gguf_build_set_string(b, "qwen3.attention.sliding_window", "wide");
	refuse(b, -EINVAL, "key qwen3.attention.sliding_window", "found");
	gguf_build_free(b);
}

static void test_rope_scaling(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();
	struct gguf *g;

	gguf_build_set_f32(b, "qwen3.rope.scaling.factor", 4);
	refuse(b, -ENOTSUP, "key qwen3.rope.scaling.factor", "expected 1, found 4");
	gguf_build_set_string(b, "qwen3.rope.scaling.type", "yarn");
	refuse(b, -ENOTSUP, "key qwen3.rope.scaling.type", "expected \"none\", found \"yarn\"");
	gguf_build_set_string(b, "qwen3.rope.scaling.type", "none");
	pass(b, &g);
	gguf_free(g);
	gguf_build_drop(b, "qwen3.rope.scaling.type");
	gguf_build_drop(b, "qwen3.rope.scaling.factor");
	gguf_build_set_f32(b, "qwen3.rope.scale_linear", 2);
	refuse(b, -ENOTSUP, "key qwen3.rope.scale_linear", "expected 1, found 2");
	gguf_build_set_f32(b, "qwen3.rope.scale_linear", 1);
	pass(b, &g);
	gguf_free(g);
	gguf_build_free(b);
}

static void test_architecture(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();

	gguf_build_set_string(b, "general.architecture", "gemma3");
	refuse(b, -ENOTSUP, "key general.architecture",
		"expected \"llama\", \"qwen3\" or \"qwen3moe\", found \"gemma3\"");
	gguf_build_set_string(b, "general.architecture", "qwen");
	refuse(b, -ENOTSUP, "found \"qwen\"");
	gguf_build_set_string(b, "general.architecture", "");
	refuse(b, -ENOTSUP, "found \"\"");
	gguf_build_set_u32(b, "general.architecture", 3);
	refuse(b, -EINVAL, "key general.architecture: expected string, found u32");
	gguf_build_drop(b, "general.architecture");
	refuse(b, -EINVAL, "key general.architecture", "found no such key");
	gguf_build_set_string(b, "general.architecture", "qwen3");
	gguf_build_set_bool(b, "general.name", true);
	refuse(b, -EINVAL, "key general.name: expected string, found bool");
	gguf_build_free(b);
}

static struct gguf_build *new_moe(void)
{
	return gguf_build_new_qwen3(&(struct gguf_build_shape){
		.n_expert = 6, .n_expert_used = 2, .n_ff_expert = 96, .type = DTYPE_Q8_0});
}

static void test_experts(void **state)
{
	(void)state;
	struct gguf_build *b = new_moe();
	struct gguf *g;
	struct validate_model m = pass(b, &g);

	assert_memory_equal(m.architecture.data, "qwen3moe", m.architecture.n_bytes);
	assert_int_equal(m.hparams.n_expert, 6);
	assert_int_equal(m.hparams.n_expert_used, 2);
	assert_int_equal(m.hparams.n_ff_expert, 96);
	assert_int_equal(m.hparams.n_ff, 64);
	gguf_free(g);
	/* Nothing has the size of a dense layer. */
	gguf_build_drop(b, "qwen3moe.feed_forward_length");
	m = pass(b, &g);
	assert_int_equal(m.hparams.n_ff, 96);
	gguf_free(g);
	gguf_build_set_u32(b, "qwen3moe.expert_used_count", 6);
	pass(b, &g);
	gguf_free(g);
	gguf_build_set_u32(b, "qwen3moe.expert_used_count", 7);
	refuse(b, -EINVAL, "key qwen3moe.expert_used_count",
		"expected at most expert_count 6, found 7");
	gguf_build_free(b);
}

static void test_expert_counts(void **state)
{
	(void)state;
	static const struct {
		const char *key;
		uint32_t max;
	} rows[] = {
		{"qwen3moe.expert_count", 512},
		{"qwen3moe.expert_used_count", 32},
		{"qwen3moe.expert_feed_forward_length", MANIFEST_MAX_FF},
	};
	char expected[64];

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct gguf_build *b = new_moe();
		snprintf(expected, sizeof(expected), "expected 1 to %u, found ", rows[i].max);
		gguf_build_set_u32(b, rows[i].key, 0);
		refuse(b, -EINVAL, rows[i].key, expected, "found 0");
		gguf_build_set_u32(b, rows[i].key, rows[i].max + 1);
		refuse(b, -EINVAL, rows[i].key, expected);
		gguf_build_set_string(b, rows[i].key, "2");
		refuse(b, -EINVAL, rows[i].key, "expected an integer, found string");
		gguf_build_drop(b, rows[i].key);
		refuse(b, -EINVAL, rows[i].key, expected, "found no such key");
		gguf_build_free(b);
	}
}

static void test_expert_tensors(void **state)
{
	(void)state;
	struct gguf_build *b = new_moe();
	uint32_t n_tensors = b->n_tensors;

	gguf_build_free(b);
	for (uint32_t i = 0; i < n_tensors; i++) {
		/* Each one alone is missed. */
		char name[80];
		b = new_moe();
		snprintf(name, sizeof(name), "%s", b->tensors[i].name);
		gguf_build_drop_tensor(b, name);
		refuse(b, -EINVAL, "tensor ", name, "expected [", "found no such tensor");
		gguf_build_free(b);
	}
	b = new_moe();
	gguf_build_find_tensor(b, "blk.0.ffn_down_exps.weight")->ne[2] = 5;
	refuse(b, -EINVAL,
		"tensor blk.0.ffn_down_exps.weight: shape: expected [96, 32, 6], found "
		"[96, 32, 5]");
	/* Transposed it has as many bytes. */
	struct gguf_build_tensor *t = gguf_build_find_tensor(b, "blk.0.ffn_down_exps.weight");
	t->ne[0] = 32;
	t->ne[1] = 96;
	t->ne[2] = 6;
	refuse(b, -EINVAL, "shape: expected [96, 32, 6], found [32, 96, 6]");
	gguf_build_free(b);
	b = new_moe();
	gguf_build_find_tensor(b, "blk.0.ffn_up_exps.weight")->type = 3;
	refuse(b, -ENOTSUP,
		"tensor blk.0.ffn_up_exps.weight: block format q4_1 is not supported: expected ");
	gguf_build_free(b);
	b = new_moe();
	gguf_build_set_u32(b, "qwen3moe.expert_feed_forward_length", 40);
	refuse(b, -EINVAL, "tensor blk.0.ffn_gate_exps.weight: shape: expected [32, 40, 6]");
	/* A dense model with experts' tensors only. */
	gguf_build_set_string(b, "general.architecture", "qwen3");
	refuse(b, -EINVAL, "key qwen3.block_count", "found no such key");
	gguf_build_free(b);
}

/* Class 22: one file is not the set. */
static void test_split(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();
	uint16_t two = 2, one = 1;
	struct gguf *g;

	gguf_build_set(b, "split.no", GGUF_U16, &one, 2);
	gguf_build_set(b, "split.count", GGUF_U16, &two, 2);
	refuse(b, -ENOTSUP, "key split.count", "expected 1 file, found", "split.no 1", "set of 2");
	gguf_build_set_string(b, "split.count", "2");
	refuse(b, -EINVAL, "key split.count: expected an integer, found string");
	gguf_build_set(b, "split.count", GGUF_U16, &one, 2);
	pass(b, &g);
	gguf_free(g);
	gguf_build_free(b);
}

static void test_tensors(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();
	struct gguf *g;

	while (b->n_tensors > 0) {
		/* Each one alone is missed. */
		struct gguf_build *c = new_tiny();
		char name[80];
		b->n_tensors--;
		snprintf(name, sizeof(name), "%s", c->tensors[b->n_tensors].name);
		gguf_build_drop_tensor(c, name);
		refuse(c, -EINVAL, "tensor ", name, "expected [", "found no such tensor");
		gguf_build_free(c);
	}
	gguf_build_free(b);

	b = new_tiny();
	struct gguf_build_tensor *t = gguf_build_find_tensor(b, "blk.0.attn_q.weight");
	t->ne[1] = 31;
	refuse(b, -EINVAL, "tensor blk.0.attn_q.weight: shape: expected [32, 32], found [32, 31]");
	t->n_dims = 3;
	t->ne[1] = 8;
	t->ne[2] = 4;
	refuse(b, -EINVAL, "blk.0.attn_q.weight: shape: expected [32, 32], found [32, 8, 4]");
	t->n_dims = 2;
	t->ne[1] = 32;
	t = gguf_build_find_tensor(b, "blk.0.attn_q_norm.weight");
	t->type = DTYPE_F16;
	refuse(b, -ENOTSUP,
		"tensor blk.0.attn_q_norm.weight: block format f16 is not supported: expected f32");
	t->type = DTYPE_F32;
	t = gguf_build_find_tensor(b, "blk.0.ffn_down.weight");
	t->type = 3;
	refuse(b, -ENOTSUP,
		"tensor blk.0.ffn_down.weight: block format q4_1 is not supported: expected f32, "
		"f16, q4_0, q8_0, q4_K, q5_K, q6_K, bf16, tq2_0, q1_0 or q2_0, found q4_1");
	t->type = DTYPE_Q8_0;
	/* More tensors than are needed, of any known format. */
	gguf_build_add_tensor(b, "extra.weight", DTYPE_Q4_0, 2, (uint64_t[]){64, 3});
	struct validate_model m = pass(b, &g);
	assert_int_equal(m.hparams.tied_embeddings, 1);
	gguf_free(g);
	gguf_build_add_tensor(b, "output.weight", DTYPE_F32, 2, (uint64_t[]){32, 263});
	refuse(b, -EINVAL, "tensor output.weight: shape: expected [32, 264], found [32, 263]");
	gguf_build_free(b);
}

/* Class 14: ids and lengths. */
static void test_vocabulary(void **state)
{
	(void)state;
	static const char *const ids[] = {"tokenizer.ggml.bos_token_id",
		"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
		"tokenizer.ggml.padding_token_id"};
	struct gguf_build *b = new_tiny();
	float scores[264] = {0};
	int32_t types[264];
	struct gguf *g;

	for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
		gguf_build_set_u32(b, ids[i], 264);
		refuse(b, -EINVAL, "key ", ids[i], "expected a token below 264, found 264");
		gguf_build_set_u32(b, ids[i], 263);
	}
	gguf_build_set_array(b, "tokenizer.ggml.scores", GGUF_F32, scores, 263, 4);
	refuse(b, -EINVAL, "key tokenizer.ggml.scores: expected 264 elements", "found 263");
	gguf_build_set_array(b, "tokenizer.ggml.scores", GGUF_I32, scores, 264, 4);
	refuse(b, -EINVAL, "key tokenizer.ggml.scores: expected array of f32, found array of i32");
	gguf_build_set_array(b, "tokenizer.ggml.scores", GGUF_F32, scores, 264, 4);
	for (int i = 0; i < 264; i++)
		types[i] = i < 261 ? MANIFEST_TOKEN_NORMAL : MANIFEST_TOKEN_CONTROL;
	gguf_build_set_array(b, "tokenizer.ggml.token_type", GGUF_I32, types, 263, 4);
	refuse(b, -EINVAL, "key tokenizer.ggml.token_type: expected 264 elements", "found 263");
	for (size_t i = 0; i < 2; i++) {
		types[9] = i == 0 ? 0 : 7;
		gguf_build_set_array(b, "tokenizer.ggml.token_type", GGUF_I32, types, 264, 4);
		refuse(b, -EINVAL, "key tokenizer.ggml.token_type: token 9: expected 1 to 6");
	}
	types[9] = 1;
	gguf_build_set_array(b, "tokenizer.ggml.token_type", GGUF_U32, types, 264, 4);
	gguf_build_set_bool(b, "tokenizer.ggml.add_bos_token", true);
	struct validate_model m = pass(b, &g);
	assert_int_equal(m.tokenizer.add_bos, 1);
	assert_int_equal(m.tokenizer.pad, 263);
	assert_non_null(m.scores);
	gguf_free(g);
	gguf_build_drop(b, "tokenizer.ggml.bos_token_id");
	refuse(b, -EINVAL, "key tokenizer.ggml.add_bos_token: expected a bos_token_id");
	gguf_build_set_u32(b, "tokenizer.ggml.add_bos_token", 1);
	refuse(b, -EINVAL, "key tokenizer.ggml.add_bos_token: expected bool, found u32");
	gguf_build_set_bool(b, "tokenizer.ggml.add_bos_token", false);
	gguf_build_set_u32(b, "tokenizer.ggml.merges", 1);
	refuse(b, -EINVAL, "key tokenizer.ggml.merges: expected array of string, found u32");
	gguf_build_free(b);
}

static void test_tokenizers(void **state)
{
	(void)state;
	struct gguf_build *b = new_tiny();

	gguf_build_set_string(b, "tokenizer.ggml.pre", "tekken");
	refuse(b, -ENOTSUP, "key tokenizer.ggml.pre",
		"expected \"qwen2\" or \"llama-bpe\", found \"tekken\"");
	gguf_build_drop(b, "tokenizer.ggml.pre");
	refuse(b, -ENOTSUP, "key tokenizer.ggml.pre",
		"expected \"qwen2\" or \"llama-bpe\", found no such key");
	gguf_build_set_string(b, "tokenizer.ggml.pre", "qwen2");
	gguf_build_set_string(b, "tokenizer.ggml.model", "llama");
	refuse(b, -ENOTSUP, "key tokenizer.ggml.model", "expected \"gpt2\", found \"llama\"");
	gguf_build_drop(b, "tokenizer.ggml.model");
	refuse(b, -ENOTSUP, "key tokenizer.ggml.model", "expected \"gpt2\", found no such key");
	gguf_build_set_string(b, "tokenizer.ggml.model", "gpt2");
	gguf_build_set_strings(b, "tokenizer.ggml.tokens", NULL, 0);
	refuse(b, -EINVAL, "key tokenizer.ggml.tokens: expected at least 1 token, found none");
	gguf_build_set_u32(b, "tokenizer.ggml.tokens", 264);
	refuse(b, -EINVAL, "key tokenizer.ggml.tokens: expected array of string, found u32");
	gguf_build_drop(b, "tokenizer.ggml.tokens");
	refuse(b, -EINVAL, "key tokenizer.ggml.tokens: expected at least 1 token, found none");
	gguf_build_set_strings(b, "tokenizer.ggml.tokens", (const char *const[]){"a", ""}, 2);
	gguf_build_drop(b, "tokenizer.ggml.token_type");
	gguf_build_drop(b, "tokenizer.ggml.bos_token_id");
	gguf_build_drop(b, "tokenizer.ggml.eos_token_id");
	refuse(b, -EINVAL, "key tokenizer.ggml.tokens: token 1: expected at least 1 byte");
	gguf_build_set_u32(b, "tokenizer.chat_template", 1);
	refuse(b, -EINVAL, "key tokenizer.chat_template: expected string, found u32");
	gguf_build_free(b);
}

/* However often a file says that a token ends a text, the list holds; one more is refused. */
static void test_ends(void **state)
{
	(void)state;
	const char *tokens[] = {"a", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>",
		"<|end|>", "</s>", "c", "d", "b"};
	int32_t types[ARRAY_SIZE(tokens)];
	struct gguf_build *b = gguf_build_new_qwen3(&(struct gguf_build_shape){
		.type = DTYPE_F32, .n_vocab = ARRAY_SIZE(tokens), .no_tokenizer = true});
	struct gguf *g;

	for (size_t i = 0; i < ARRAY_SIZE(tokens); i++)
		types[i] = i == 0 || i == 9 ? MANIFEST_TOKEN_NORMAL : MANIFEST_TOKEN_CONTROL;
	gguf_build_set_string(b, "tokenizer.ggml.model", "gpt2");
	gguf_build_set_string(b, "tokenizer.ggml.pre", "qwen2");
	gguf_build_set_strings(b, "tokenizer.ggml.tokens", tokens, ARRAY_SIZE(tokens));
	gguf_build_set_array(
		b, "tokenizer.ggml.token_type", GGUF_I32, types, ARRAY_SIZE(tokens), 4);
	gguf_build_set_u32(b, "tokenizer.ggml.eos_token_id", 9);
	gguf_build_set_u32(b, "tokenizer.ggml.eot_token_id", 0);
	struct validate_model m = pass(b, &g);
	assert_int_equal(m.tokenizer.n_eog, 8);
	assert_int_equal(m.tokenizer.eog[0], 9);
	assert_int_equal(m.tokenizer.eog[1], 0);
	gguf_free(g);
	/* A name a second time, and one more name. */
	for (size_t i = 0; i < 2; i++) {
		tokens[7] = i ? "<|eom_id|>" : "</s>";
		gguf_build_set_strings(b, "tokenizer.ggml.tokens", tokens, ARRAY_SIZE(tokens));
		refuse(b, -ENOTSUP,
			"key tokenizer.ggml.tokens: token 7: expected at most 8 that end");
	}
	gguf_build_free(b);
}

/* A file of the shared models; NULL without them. */
static struct gguf *open_shared(const char *name)
{
	const char *shared = getenv("WEIGHTD_SHARED");
	struct err e = ERR_NULL;
	struct gguf *g = NULL;
	char path[4096];

	snprintf(path, sizeof(path), "%s/models/%s", shared ? shared : "", name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	int r = gguf_read(fd, &e, &g);
	close(fd);
	if (r != 0)
		fail_msg("%s: %d: %s", name, r, e.text);
	return g;
}

static void test_shared(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		uint32_t dtype; /* of token_embd */
		uint64_t n_parameters;
	} rows[] = {
		{"atlas-dense-f16.gguf", DTYPE_F16, 5771264},
		{"atlas-dense-q8_0.gguf", DTYPE_Q8_0, 5771264},
		{"atlas-dense-q4_0.gguf", DTYPE_Q6_K, 5771264},
		{"atlas-dense-q6_k.gguf", DTYPE_Q6_K, 5771264},
		{"atlas-dense-q4_k_m.gguf", DTYPE_Q6_K, 5771264},
		{"atlas-moe-f16.gguf", DTYPE_F16, 8137472},
		{"atlas-moe-q8_0.gguf", DTYPE_Q8_0, 8137472},
		{"atlas-moe-q4_k_m.gguf", DTYPE_Q6_K, 8137472},
	};
	uint32_t n_open = 0;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct err e = ERR_NULL;
		struct validate_model m;
		struct gguf *g = open_shared(rows[i].name);
		if (!g)
			continue;
		n_open++;
		const struct gguf_tensor *t = gguf_find_tensor(g, "token_embd.weight");
		assert_int_equal(t->dtype->id, rows[i].dtype);
		int r = validate_model(g, &e, &m);
		if (r != 0)
			fail_msg("%s: %d: %s", rows[i].name, r, e.text);
		assert_int_equal(m.hparams.n_parameters, rows[i].n_parameters);
		gguf_free(g);
	}
	if (n_open == 0)
		skip();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_valid),
		CASE(test_defaults),
		CASE(test_counts),
		CASE(test_heads),
		CASE(test_numbers),
		CASE(test_window),
		CASE(test_rope_scaling),
		CASE(test_architecture),
		CASE(test_experts),
		CASE(test_expert_counts),
		CASE(test_expert_tensors),
		CASE(test_split),
		CASE(test_tensors),
		CASE(test_vocabulary),
		CASE(test_tokenizers),
		CASE(test_ends),
		CASE(test_shared),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
