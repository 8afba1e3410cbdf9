/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/hparams.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "proto/util/err.h"
#include "weightd/gguf.h"

#define DEFAULT_ROPE_BASE 10000.0 /* what the specification's readers assume */

enum { KEY_BYTES = 96 };

struct reader {
	const struct gguf *g;
	const char *arch;
	bool has_unrotated;
	struct err *err;
};

/* NULL when absent. The key's whole name goes to ret_key for error texts. */
static const struct gguf_kv *find(
	const struct reader *r, const char *suffix, char ret_key[static KEY_BYTES])
{
	snprintf(ret_key, KEY_BYTES, "%s.%s", r->arch, suffix);
	return gguf_find(r->g, ret_key);
}

/* An integer of 1 to max; fallback 0: the key has to be there. */
static int read_count(
	const struct reader *r, const char *suffix, uint32_t max, uint32_t fallback, uint32_t *ret)
{
	char key[KEY_BYTES];
	const struct gguf_kv *kv = find(r, suffix, key);
	uint64_t v = fallback;

	if (!kv && fallback == 0)
		return err_set(r->err, EINVAL,
			"key %s: expected 1 to %" PRIu32 ", found no such key", key, max);
	int rc = kv ? gguf_get_u64(kv, r->err, &v) : 0;
	if (rc < 0)
		return rc;
	if (v < 1 || v > max)
		return err_set(r->err, EINVAL, "key %s: expected 1 to %" PRIu32 ", found %" PRIu64,
			key, max, v);
	*ret = (uint32_t)v;
	return 0;
}

/* A number above 0 and below end; fallback 0: the key has to be there. */
static int read_positive(
	const struct reader *r, const char *suffix, float end, double fallback, float *ret)
{
	char key[KEY_BYTES];
	const struct gguf_kv *kv = find(r, suffix, key);
	double v = fallback;

	if (!kv && fallback == 0)
		return err_set(r->err, EINVAL,
			"key %s: expected a number above 0 and below %g, found no such key", key,
			(double)end);
	int rc = kv ? gguf_get_f64(kv, r->err, &v) : 0;
	if (rc < 0)
		return rc;
	/* The engine computes in f32, where an f64 may be 0 or infinite. Not true for a NaN. */
	float f = (float)v;
	if (!(f > 0 && f < end))
		return err_set(r->err, EINVAL,
			"key %s: expected a number above 0 and below %g, found %g", key,
			(double)end, v);
	*ret = f;
	return 0;
}

/* A scale that must be absent or 1 (0 stands for absent in old files). */
static int check_no_scale(const struct reader *r, const char *suffix)
{
	char key[KEY_BYTES];
	const struct gguf_kv *kv = find(r, suffix, key);
	double v;

	if (!kv)
		return 0;
	int rc = gguf_get_f64(kv, r->err, &v);
	if (rc < 0)
		return rc;
	if (v != 0 && v != 1)
		return err_set(r->err, ENOTSUP,
			"key %s: RoPE scaling is not supported: expected 1, found %g", key, v);
	return 0;
}

static int check_no_rope_scaling(const struct reader *r)
{
	char key[KEY_BYTES];
	const struct gguf_kv *kv = find(r, "rope.scaling.type", key);
	struct gguf_string type;

	if (kv) {
		int rc = gguf_get_string(kv, r->err, &type);
		if (rc < 0)
			return rc;
		if (type.n_bytes != 4 || memcmp(type.data, "none", 4) != 0)
			return err_set(r->err, ENOTSUP,
				"key %s: RoPE scaling is not supported: expected \"none\", found "
				"\"%s\"",
				key, gguf_label(type).text);
		return 0;
	}
	/* Without a type a factor means linear scaling. */
	int rc = check_no_scale(r, "rope.scaling.factor");
	return rc < 0 ? rc : check_no_scale(r, "rope.scale_linear");
}

static int read_experts(const struct reader *r, struct manifest_hparams *h)
{
	int rc = read_count(r, "expert_count", HPARAMS_MAX_EXPERTS, 0, &h->n_expert);

	if (rc == 0)
		rc = read_count(
			r, "expert_used_count", HPARAMS_MAX_EXPERTS_USED, 0, &h->n_expert_used);
	if (rc == 0)
		rc = read_count(
			r, "expert_feed_forward_length", MANIFEST_MAX_FF, 0, &h->n_ff_expert);
	if (rc == 0 && h->n_expert_used > h->n_expert)
		return err_set(r->err, EINVAL,
			"key %s.expert_used_count: expected at most expert_count %" PRIu32
			", found %" PRIu32,
			r->arch, h->n_expert, h->n_expert_used);
	return rc;
}

/* Of an architecture that we know without them alone; 0 stands for absent. */
static int check_no_experts(const struct reader *r)
{
	char key[KEY_BYTES];
	const struct gguf_kv *kv = find(r, "expert_count", key);
	uint64_t n = 0;
	int rc = kv ? gguf_get_u64(kv, r->err, &n) : 0;

	if (rc < 0)
		return rc;
	if (n > 0)
		return err_set(r->err, ENOTSUP,
			"key %s: a mixture of experts is not supported in this architecture: "
			"expected 0, found %" PRIu64,
			key, n);
	return 0;
}

static int read_sizes(const struct reader *r, struct manifest_hparams *h)
{
	int rc = read_count(r, "block_count", HPARAMS_MAX_LAYERS, 0, &h->n_layers);

	if (rc == 0)
		rc = read_count(r, "context_length", MANIFEST_MAX_CTX, 0, &h->n_ctx_train);
	if (rc == 0)
		rc = read_count(r, "embedding_length", MANIFEST_MAX_EMBD, 0, &h->n_embd);
	if (rc == 0)
		/* With experts nothing has this size. */
		rc = read_count(
			r, "feed_forward_length", MANIFEST_MAX_FF, h->n_ff_expert, &h->n_ff);
	if (rc == 0)
		rc = read_positive(r, "attention.layer_norm_rms_epsilon", 1, 0, &h->rms_eps);
	if (rc == 0)
		rc = read_positive(r, "rope.freq_base", INFINITY, DEFAULT_ROPE_BASE, &h->rope_base);
	return rc;
}

static int read_heads(const struct reader *r, struct manifest_hparams *h)
{
	char key[KEY_BYTES];
	int rc = read_count(r, "attention.head_count", MANIFEST_MAX_HEADS, 0, &h->n_head);

	if (rc == 0)
		rc = read_count(
			r, "attention.head_count_kv", MANIFEST_MAX_HEADS, h->n_head, &h->n_head_kv);
	if (rc < 0)
		return rc;
	if (h->n_head % h->n_head_kv != 0)
		return err_set(r->err, EINVAL,
			"key %s.attention.head_count: expected a multiple of head_count_kv %" PRIu32
			", found %" PRIu32,
			r->arch, h->n_head_kv, h->n_head);

	/* A default is only a size where the heads divide the row. */
	uint32_t size = h->n_embd % h->n_head == 0 ? h->n_embd / h->n_head : 0;
	if (size == 0 && !find(r, "attention.key_length", key))
		return err_set(r->err, EINVAL,
			"key %s.attention.head_count: expected a divisor of embedding_length "
			"%" PRIu32 " (there is no key_length), found %" PRIu32,
			r->arch, h->n_embd, h->n_head);
	rc = read_count(r, "attention.key_length", MANIFEST_MAX_EMBD, size, &h->head_dim_k);
	if (rc == 0)
		rc = read_count(
			r, "attention.value_length", MANIFEST_MAX_EMBD, size, &h->head_dim_v);
	if (rc == 0)
		rc = read_count(
			r, "rope.dimension_count", MANIFEST_MAX_EMBD, h->head_dim_k, &h->n_rot);
	return rc;
}

/* A whole number of 0 to max, 0 where there is no such key. */
static int read_optional(const struct reader *r, const char *suffix, uint32_t max, uint32_t *ret)
{
	char key[KEY_BYTES];
	const struct gguf_kv *kv = find(r, suffix, key);
	uint64_t v = 0;
	int rc = kv ? gguf_get_u64(kv, r->err, &v) : 0;

	if (rc < 0)
		return rc;
	if (v > max)
		return err_set(r->err, EINVAL, "key %s: expected 0 to %" PRIu32 ", found %" PRIu64,
			key, max, v);
	*ret = (uint32_t)v;
	return 0;
}

/*
 * A sliding window, as llama.cpp has it: of all layers, but with a pattern of n > 0 for those i
 * with i % n == n - 1.
 */
static int read_window(const struct reader *r, struct manifest_hparams *h)
{
	int rc = read_optional(r, "attention.sliding_window", MANIFEST_MAX_CTX, &h->n_window);

	if (rc == 0)
		rc = read_optional(r, "attention.sliding_window_pattern", HPARAMS_MAX_LAYERS,
			&h->window_period);
	return rc;
}

/* Valid models that the kernels cannot run. */
static int check_engine(const struct reader *r, const struct manifest_hparams *h)
{
	if (h->head_dim_k > HPARAMS_MAX_HEAD_DIM || h->head_dim_k % 2 != 0)
		return err_set(r->err, ENOTSUP,
			"key %s.attention.key_length: expected an even number up to %d, found "
			"%" PRIu32,
			r->arch, HPARAMS_MAX_HEAD_DIM, h->head_dim_k);
	if (h->head_dim_v != h->head_dim_k)
		return err_set(r->err, ENOTSUP,
			"key %s.attention.value_length: expected key_length %" PRIu32
			", found %" PRIu32,
			r->arch, h->head_dim_k, h->head_dim_v);
	if (r->has_unrotated && h->n_rot <= h->head_dim_k && h->n_rot % 2 == 0)
		return check_no_rope_scaling(r);
	if (r->has_unrotated)
		return err_set(r->err, ENOTSUP,
			"key %s.rope.dimension_count: expected an even number up to key_length "
			"%" PRIu32 ", found %" PRIu32,
			r->arch, h->head_dim_k, h->n_rot);
	if (h->n_rot != h->head_dim_k)
		return err_set(r->err, ENOTSUP,
			"key %s.rope.dimension_count: expected key_length %" PRIu32
			", found %" PRIu32,
			r->arch, h->head_dim_k, h->n_rot);
	return check_no_rope_scaling(r);
}

static int read_vocab(const struct reader *r, uint64_t n_tokens, struct manifest_hparams *h)
{
	if (n_tokens > MANIFEST_MAX_VOCAB)
		return err_set(r->err, EINVAL,
			"key tokenizer.ggml.tokens: expected at most %d tokens, found %" PRIu64,
			MANIFEST_MAX_VOCAB, n_tokens);
	int rc = read_count(r, "vocab_size", MANIFEST_MAX_VOCAB, (uint32_t)n_tokens, &h->n_vocab);
	if (rc == 0 && n_tokens != 0 && h->n_vocab != n_tokens)
		return err_set(r->err, EINVAL,
			"key %s.vocab_size: expected the %" PRIu64
			" of tokenizer.ggml.tokens, found %" PRIu32,
			r->arch, n_tokens, h->n_vocab);
	return rc;
}

int hparams_read(const struct gguf *g, const struct hparams_params *params, struct err *ret_err,
	struct manifest_hparams *ret_hparams)
{
	struct reader r = {.g = g,
		.arch = params->arch,
		.has_unrotated = params->has_unrotated,
		.err = ret_err};
	struct manifest_hparams h = *ret_hparams;
	int rc = params->has_experts ? read_experts(&r, &h) : check_no_experts(&r);

	if (rc == 0)
		rc = read_sizes(&r, &h);
	if (rc == 0)
		rc = read_heads(&r, &h);
	if (rc == 0)
		rc = read_window(&r, &h);
	if (rc == 0)
		rc = read_vocab(&r, params->n_tokens, &h);
	if (rc == 0)
		rc = check_engine(&r, &h);
	if (rc == 0)
		*ret_hparams = h;
	return rc;
}
