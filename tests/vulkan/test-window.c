/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models of random weights with a sliding window against the scalar model: steps of several rows,
 * contexts longer than the window and than a page, keys and values as f16 and as Q8_0.
 */
#include <math.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "tests/ref/gguf-build.h"
#include "tests/ref/ref-model.h"
#include "tests/vulkan/against-scalar.h"
#include "tests/vulkan/model-on-device.h"
#include "tests/vulkan/on-device.h"
#include "workerd/kv-layout.h"
#include "workerd/weights.h"

enum { N_TOKENS = AGAINST_SCALAR_TOKENS, WINDOW = 40 };

struct kind {
	const char *arch;
	struct gguf_build_shape shape;
	uint32_t window; /* 0: without the key */
	uint32_t pattern;
};

static void write_model(const struct kind *k, char *path)
{
	struct gguf_build *b = gguf_build_new_qwen3(&k->shape);
	char key[64];

	snprintf(key, sizeof(key), "%s.attention.sliding_window", k->arch);
	if (k->window)
		gguf_build_set_u32(b, key, k->window);
	snprintf(key, sizeof(key), "%s.attention.sliding_window_pattern", k->arch);
	if (k->pattern)
		gguf_build_set_u32(b, key, k->pattern);
	against_scalar_write(b, path);
}

/* The same against tokens that a model without the window sees: that the window is there at all. */
static void run(const struct kind *k, enum kv_layout_type type, float tolerance)
{
	char path[] = "/tmp/test-window-XXXXXX";
	struct vk_device *d = on_device_new();
	struct model_on_device m;
	float largest = 0.0f;

	write_model(k, path);
	model_on_device_init(&m, d, path);
	unlink(path);
	const struct manifest_hparams *hp = m.weights->manifest->hparams;
	assert_int_equal(manifest_get_window(hp, 0), k->window);
	float worst = against_scalar_compare(d, &m, type, &largest);
	print_message("# %s, head of %u, window %u, %s: logits up to %.3g, off by %.3g\n", k->arch,
		hp->head_dim_k, k->window, kv_layout_type_name(type), (double)largest,
		(double)worst);
	assert_true(worst <= tolerance * largest);
	model_on_device_fini(&m);
	vk_device_free(d);
}

static const struct kind dense = {.arch = "qwen3",
	.shape = {.n_layers = 3,
		.n_embd = 64,
		.n_ff = 96,
		.n_head = 6,
		.n_head_kv = 2,
		.head_dim = 80,
		.n_ctx = 512,
		.seed = 3},
	.window = WINDOW};
static const struct kind moe = {.arch = "qwen3moe",
	.shape = {.n_layers = 3,
		.n_embd = 64,
		.n_head = 4,
		.n_head_kv = 4,
		.head_dim = 64,
		.n_ctx = 512,
		.n_expert = 4,
		.n_expert_used = 2,
		.n_ff_expert = 64,
		.seed = 5},
	.window = WINDOW,
	.pattern = 3};

static void test_dense(void **state)
{
	(void)state;
	run(&dense, KV_LAYOUT_F16, 1e-3f);
}

static void test_moe_with_pattern(void **state)
{
	(void)state;
	run(&moe, KV_LAYOUT_F16, 1e-3f);
}

/* A number beside the middle of two steps is kept as either. */
static void test_q8_0(void **state)
{
	(void)state;
	run(&dense, KV_LAYOUT_Q8_0, 2e-2f);
}

/* Without it the same weights say something else: what the tests above see is the window. */
static void test_window_matters(void **state)
{
	struct kind wide = dense;
	char narrow_path[] = "/tmp/test-window-XXXXXX", wide_path[] = "/tmp/test-window-XXXXXX";
	struct vk_device *d = on_device_new();
	struct model_on_device a, b;
	float worst = 0.0f;

	(void)state;
	wide.window = 0;
	write_model(&dense, narrow_path);
	write_model(&wide, wide_path);
	model_on_device_init(&a, d, narrow_path);
	model_on_device_init(&b, d, wide_path);
	unlink(narrow_path);
	unlink(wide_path);
	struct ref_model *narrow = ref_model_new(a.weights->manifest, a.image);
	struct ref_model *all = ref_model_new(b.weights->manifest, b.image);
	uint32_t n_vocab = a.weights->manifest->hparams->n_vocab;
	for (uint32_t i = 0; i < N_TOKENS; i++) {
		const float *x = ref_model_step(narrow, against_scalar_token(i, n_vocab));
		const float *y = ref_model_step(all, against_scalar_token(i, n_vocab));
		float same = 0.0f;
		for (uint32_t t = 0; t < n_vocab; t++)
			same = fmaxf(same, fabsf(x[t] - y[t]));
		if (i < WINDOW)
			assert_true(same == 0.0f);
		worst = fmaxf(worst, same);
	}
	print_message("# without the window: off by %.3g\n", (double)worst);
	assert_true(worst > 0.1f);
	ref_model_free(narrow);
	ref_model_free(all);
	model_on_device_fini(&a);
	model_on_device_fini(&b);
	vk_device_free(d);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_dense),
		CASE(test_moe_with_pattern),
		CASE(test_q8_0),
		CASE(test_window_matters),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
