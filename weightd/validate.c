/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/validate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/hparams.h"
#include "weightd/tensors.h"
#include "weightd/vocabulary.h"

struct architecture {
	const char *name;
	const struct tensors_row *rows;
	uint32_t n_rows;
	bool has_experts;
	bool has_unrotated; /* see weightd/hparams.h */
};

/* clang-format off */
#define TENSOR(n, k, ...) {.name = n, .kind = TENSORS_##k, .dims = {__VA_ARGS__}}
#define OPTIONAL(n, k, ...) {.name = n, .kind = TENSORS_##k, .dims = {__VA_ARGS__}, .is_optional = true}
#define LAYER(n, k, ...) {.name = n, .kind = TENSORS_##k, .dims = {__VA_ARGS__}, .in_layer = true}

#define REFUSED(n) {.name = n, .kind = TENSORS_REFUSED, .in_layer = true}

/* What all have. */
#define SHARED_ROWS \
	TENSOR("token_embd.weight", MATRIX, TENSORS_DIM_EMBD, TENSORS_DIM_VOCAB), \
	TENSOR("output_norm.weight", NORM, TENSORS_DIM_EMBD), \
	OPTIONAL("output.weight", MATRIX, TENSORS_DIM_EMBD, TENSORS_DIM_VOCAB), \
	LAYER("attn_norm.weight", NORM, TENSORS_DIM_EMBD), \
	LAYER("attn_q.weight", MATRIX, TENSORS_DIM_EMBD, TENSORS_DIM_Q), \
	LAYER("attn_k.weight", MATRIX, TENSORS_DIM_EMBD, TENSORS_DIM_K), \
	LAYER("attn_v.weight", MATRIX, TENSORS_DIM_EMBD, TENSORS_DIM_V), \
	LAYER("attn_output.weight", MATRIX, TENSORS_DIM_HEADS, TENSORS_DIM_EMBD), \
	LAYER("ffn_norm.weight", NORM, TENSORS_DIM_EMBD)

#define DENSE_ROWS \
	LAYER("ffn_gate.weight", MATRIX, TENSORS_DIM_EMBD, TENSORS_DIM_FF), \
	LAYER("ffn_up.weight", MATRIX, TENSORS_DIM_EMBD, TENSORS_DIM_FF), \
	LAYER("ffn_down.weight", MATRIX, TENSORS_DIM_FF, TENSORS_DIM_EMBD)

/* All but the feed-forward part of a layer. */
#define QWEN3_ROWS \
	SHARED_ROWS, \
	LAYER("attn_q_norm.weight", NORM, TENSORS_DIM_HEAD), \
	LAYER("attn_k_norm.weight", NORM, TENSORS_DIM_HEAD)

/* Some of its relatives have biases, and a model without its biases says something else. */
static const struct tensors_row llama_rows[] = {
	SHARED_ROWS,
	DENSE_ROWS,
	OPTIONAL("rope_freqs.weight", NORM, TENSORS_DIM_ROT_PAIRS),
	REFUSED("attn_q.bias"),
	REFUSED("attn_k.bias"),
	REFUSED("attn_v.bias"),
	REFUSED("attn_output.bias"),
	REFUSED("ffn_gate.bias"),
	REFUSED("ffn_up.bias"),
	REFUSED("ffn_down.bias"),
};

static const struct tensors_row qwen3_rows[] = {
	QWEN3_ROWS,
	DENSE_ROWS,
};

static const struct tensors_row qwen3moe_rows[] = {
	QWEN3_ROWS,
	LAYER("ffn_gate_inp.weight", MATRIX, TENSORS_DIM_EMBD, TENSORS_DIM_EXPERTS),
	LAYER("ffn_gate_exps.weight", MATRIX, TENSORS_DIM_EMBD, TENSORS_DIM_FF_EXPERT, TENSORS_DIM_EXPERTS),
	LAYER("ffn_up_exps.weight", MATRIX, TENSORS_DIM_EMBD, TENSORS_DIM_FF_EXPERT, TENSORS_DIM_EXPERTS),
	LAYER("ffn_down_exps.weight", MATRIX, TENSORS_DIM_FF_EXPERT, TENSORS_DIM_EMBD, TENSORS_DIM_EXPERTS),
};
/* clang-format on */

static const struct architecture architectures[] = {
	{"llama", llama_rows, ARRAY_SIZE(llama_rows), false, true},
	{"qwen3", qwen3_rows, ARRAY_SIZE(qwen3_rows), false, false},
	{"qwen3moe", qwen3moe_rows, ARRAY_SIZE(qwen3moe_rows), true, false},
};

static int read_optional_u64(const struct gguf *g, const char *key, struct err *e, uint64_t *ret)
{
	const struct gguf_kv *kv = gguf_find(g, key);

	return kv ? gguf_get_u64(kv, e, ret) : 0;
}

/* One file of a split set has some of the tensors only. */
static int check_split(const struct gguf *g, struct err *e)
{
	uint64_t no = 0, count = 1;
	int r = read_optional_u64(g, "split.count", e, &count);

	if (r == 0)
		r = read_optional_u64(g, "split.no", e, &no);
	if (r < 0 || count <= 1)
		return r;
	return err_set(e, ENOTSUP,
		"key split.count: split models are not supported: expected 1 file, found file "
		"split.no %" PRIu64 " of a set of %" PRIu64,
		no, count);
}

static int find_architecture(const struct gguf *g, struct err *e, struct validate_model *m,
	const struct architecture **ret)
{
	const struct gguf_kv *kv = gguf_find(g, "general.architecture");

	if (!kv)
		return err_set(
			e, EINVAL, "key general.architecture: expected a name, found no such key");
	int r = gguf_get_string(kv, e, &m->architecture);
	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(architectures); i++) {
		const char *name = architectures[i].name;
		if (m->architecture.n_bytes == strlen(name) &&
			memcmp(m->architecture.data, name, strlen(name)) == 0) {
			*ret = &architectures[i];
			return 0;
		}
	}
	return err_set(e, ENOTSUP,
		"key general.architecture: architecture is not supported: expected \"%s\", \"%s\" "
		"or \"%s\", found \"%s\"",
		architectures[0].name, architectures[1].name, architectures[2].name,
		gguf_label(m->architecture).text);
}

static int read_name(const struct gguf *g, struct err *e, struct gguf_string *ret)
{
	const struct gguf_kv *kv = gguf_find(g, "general.name");

	return kv ? gguf_get_string(kv, e, ret) : 0;
}

static int read_hparams(
	const struct gguf *g, const struct architecture *a, struct err *e, struct validate_model *m)
{
	const struct hparams_params params = {.arch = a->name,
		.has_experts = a->has_experts,
		.has_unrotated = a->has_unrotated,
		.n_tokens = m->tokens ? m->tokens->n_elements : 0};

	return hparams_read(g, &params, e, &m->hparams);
}

int validate_model(const struct gguf *g, struct err *ret_err, struct validate_model *ret_model)
{
	struct validate_model m = {.tokens = NULL};
	const struct architecture *a = NULL;
	int r = check_split(g, ret_err);

	if (r == 0)
		r = find_architecture(g, ret_err, &m, &a);
	if (r == 0)
		r = read_name(g, ret_err, &m.name);
	if (r == 0)
		r = vocabulary_read(g, ret_err, &m);
	if (r == 0)
		r = read_hparams(g, a, ret_err, &m);
	if (r == 0)
		r = tensors_check(g, a->name, a->rows, a->n_rows, &m.hparams, ret_err);
	if (r < 0)
		return r;
	m.hparams.tied_embeddings = !gguf_find_tensor(g, "output.weight");
	for (uint64_t i = 0; i < g->n_tensors; i++)
		m.hparams.n_parameters += g->tensors[i].n_elements;
	*ret_model = m;
	return 0;
}
