/* SPDX-License-Identifier: Apache-2.0 */
/* What a llama model may be, and what the engine would leave out of one and is refused. */
#include <errno.h>

#include "proto/dtype.h"
#include "tests/unit/validate-build.h"

static const struct gguf_build_shape shape = {.n_layers = 2,
	.n_embd = 96,
	.n_head = 4,
	.n_head_kv = 2,
	.head_dim = 24,
	.type = DTYPE_Q8_0};

static struct gguf_build *new_llama(bool has_rope_factors)
{
	struct gguf_build_shape s = shape;

	s.has_rope_factors = has_rope_factors;
	return gguf_build_new_llama(&s);
}

static void test_valid(void **state)
{
	(void)state;
	for (int has_factors = 0; has_factors < 2; has_factors++) {
		struct gguf_build *b = new_llama(has_factors);
		struct gguf *g;
		struct validate_model m = pass(b, &g);

		assert_memory_equal(m.architecture.data, "llama", m.architecture.n_bytes);
		assert_int_equal(m.hparams.head_dim_k, 24);
		assert_int_equal(m.hparams.n_rot, 24);
		assert_int_equal(m.hparams.n_expert, 0);
		assert_int_equal(m.hparams.tied_embeddings, 1);
		assert_int_equal(m.tokenizer.pre, MANIFEST_PRE_LLAMA3);
		assert_int_equal(m.tokenizer.add_bos, 1);
		assert_int_equal(m.tokenizer.bos, 260);
		assert_int_equal(m.tokenizer.n_eog, 1);
		assert_int_equal(m.tokenizer.eog[0], 263);
		gguf_free(g);
		/* Older files have neither length: the heads share the row. */
		gguf_build_drop(b, "llama.attention.key_length");
		gguf_build_drop(b, "llama.attention.value_length");
		m = pass(b, &g);
		assert_int_equal(m.hparams.head_dim_k, 24);
		gguf_free(g);
		gguf_build_drop(b, "llama.rope.dimension_count");
		m = pass(b, &g);
		assert_int_equal(m.hparams.n_rot, 24);
		gguf_free(g);
		gguf_build_free(b);
	}
}

static void test_tensors(void **state)
{
	(void)state;
	struct gguf_build *b = new_llama(false);
	uint32_t n_tensors = b->n_tensors;

	gguf_build_free(b);
	for (uint32_t i = 0; i < n_tensors; i++) {
		char name[80];

		b = new_llama(false);
		snprintf(name, sizeof(name), "%s", b->tensors[i].name);
		gguf_build_drop_tensor(b, name);
		refuse(b, -EINVAL, "tensor ", name, "found no such tensor");
		gguf_build_free(b);
	}
}

static void test_rope_factors(void **state)
{
	(void)state;
	struct gguf_build *b = new_llama(true);

	gguf_build_find_tensor(b, "rope_freqs.weight")->ne[0] = 11;
	refuse(b, -EINVAL, "tensor rope_freqs.weight: shape: expected [12], found [11]");
	gguf_build_drop_tensor(b, "rope_freqs.weight");
	gguf_build_add_tensor(b, "rope_freqs.weight", DTYPE_F16, 1, (uint64_t[]){12});
	refuse(b, -ENOTSUP, "tensor rope_freqs.weight", "expected f32, found f16");
	gguf_build_free(b);
}

/* A part of a head may stay as it is. */
static void test_rotated(void **state)
{
	(void)state;
	struct gguf_build *b = new_llama(false);
	struct gguf *g;

	gguf_build_set_u32(b, "llama.rope.dimension_count", 18);
	struct validate_model m = pass(b, &g);
	assert_int_equal(m.hparams.n_rot, 18);
	gguf_free(g);
	for (uint32_t n = 17; n <= 25; n += 8) {
		gguf_build_set_u32(b, "llama.rope.dimension_count", n);
		refuse(b, -ENOTSUP, "key llama.rope.dimension_count",
			"expected an even number up to key_length 24, found",
			n == 17 ? "17" : "25");
	}
	gguf_build_set_u32(b, "llama.rope.dimension_count", 26);
	refuse(b, -ENOTSUP, "key llama.rope.dimension_count", "up to key_length 24, found 26");
	gguf_build_set_u32(b, "llama.rope.dimension_count", 0);
	refuse(b, -EINVAL, "key llama.rope.dimension_count: expected 1 to", "found 0");
	gguf_build_free(b);
}

/* Keys and tensors of models that say something else without them. */
static void test_refused(void **state)
{
	(void)state;
	static const char *const scalings[] = {"linear", "yarn", "longrope", ""};
	static const char *const biases[] = {
		"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"};
	struct gguf_build *b = new_llama(false);
	struct gguf *g;
	char text[96];

	for (size_t i = 0; i < ARRAY_SIZE(scalings); i++) {
		gguf_build_set_string(b, "llama.rope.scaling.type", scalings[i]);
		snprintf(text, sizeof(text), "expected \"none\", found \"%s\"", scalings[i]);
		refuse(b, -ENOTSUP, "key llama.rope.scaling.type", text);
	}
	gguf_build_set_string(b, "llama.rope.scaling.type", "none");
	gguf_build_set_f32(b, "llama.rope.scaling.factor", 8);
	gguf_build_set_u32(b, "llama.rope.scaling.original_context_length", 8192);
	pass(b, &g);
	gguf_free(g);
	gguf_build_drop(b, "llama.rope.scaling.type");
	refuse(b, -ENOTSUP, "key llama.rope.scaling.factor", "expected 1, found 8");
	gguf_build_drop(b, "llama.rope.scaling.factor");
	gguf_build_set_u32(b, "llama.expert_count", 8);
	refuse(b, -ENOTSUP, "key llama.expert_count: a mixture of experts", "found 8");
	gguf_build_set_string(b, "llama.expert_count", "8");
	refuse(b, -EINVAL, "key llama.expert_count: expected an integer, found string");
	gguf_build_set_u32(b, "llama.expert_count", 0);
	pass(b, &g);
	gguf_free(g);
	for (size_t i = 0; i < ARRAY_SIZE(biases); i++) {
		snprintf(text, sizeof(text), "blk.1.%s.bias", biases[i]);
		gguf_build_add_tensor(b, text, DTYPE_F32, 1, (uint64_t[]){96});
		refuse(b, -ENOTSUP, "tensor ", text, "expected no such tensor");
		gguf_build_drop_tensor(b, text);
	}
	gguf_build_free(b);
}

/* Files of before the key existed mean a BOS where they have one. */
static void test_bos(void **state)
{
	(void)state;
	static const char *const names[] = {"llama-bpe", "llama3", "llama-v3"};
	struct gguf_build *b = new_llama(false);
	struct gguf *g;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		gguf_build_drop(b, "tokenizer.ggml.add_bos_token");
		gguf_build_set_string(b, "tokenizer.ggml.pre", names[i]);
		struct validate_model m = pass(b, &g);
		assert_int_equal(m.tokenizer.pre, MANIFEST_PRE_LLAMA3);
		assert_int_equal(m.tokenizer.add_bos, 1);
		gguf_free(g);
		gguf_build_set_bool(b, "tokenizer.ggml.add_bos_token", false);
		m = pass(b, &g);
		assert_int_equal(m.tokenizer.add_bos, 0);
		gguf_free(g);
	}
	gguf_build_drop(b, "tokenizer.ggml.bos_token_id");
	gguf_build_drop(b, "tokenizer.ggml.add_bos_token");
	struct validate_model m = pass(b, &g);
	assert_int_equal(m.tokenizer.add_bos, 0);
	gguf_free(g);
	gguf_build_set_bool(b, "tokenizer.ggml.add_bos_token", true);
	refuse(b, -EINVAL, "key tokenizer.ggml.add_bos_token: expected a bos_token_id");
	gguf_build_free(b);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_valid),
		CASE(test_tensors),
		CASE(test_rope_factors),
		CASE(test_rotated),
		CASE(test_refused),
		CASE(test_bos),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
