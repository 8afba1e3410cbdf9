/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/vulkan/against-scalar.h"

#include <math.h>

#include "proto/manifest.h"
#include "tests/ref/gguf-build.h"
#include "tests/ref/ref-model.h"
#include "tests/vulkan/model-on-device.h"
#include "tests/vulkan/on-device.h"
#include "workerd/kv.h"
#include "workerd/plan.h"
#include "workerd/weights.h"

enum { N_ROWS = 16 };

void against_scalar_write(struct gguf_build *b, char *path)
{
	uint64_t n_bytes = 0;
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	uint8_t *file = gguf_build_file(b, &n_bytes);
	assert_int_equal(write(fd, file, n_bytes), (ssize_t)n_bytes);
	close(fd);
	free(file);
	gguf_build_free(b);
}

uint32_t against_scalar_token(uint32_t i, uint32_t n_vocab)
{
	return i * 7919u % n_vocab;
}

static float compare(struct vk_device *d, const struct model_on_device *m,
	const struct manifest *of_image, enum kv_layout_type type, float *ret_largest)
{
	const struct manifest_hparams *hp = m->weights->manifest->hparams;
	const struct kv_params kv_params = {.type = type,
		.n_layers = hp->n_layers,
		.n_head_kv = hp->n_head_kv,
		.head_dim = hp->head_dim_k,
		.n_slots = 1,
		.n_ctx = AGAINST_SCALAR_TOKENS,
		.n_tokens = AGAINST_SCALAR_TOKENS};
	const struct plan_params plan_params = {
		.n_rows = N_ROWS, .n_logit_rows = N_ROWS, .kernels = PLAN_KERNELS_EXACT};
	struct ref_model *scalar = ref_model_new(of_image, m->image);
	struct plan_row rows[N_ROWS];
	uint32_t want[N_ROWS], slot = 0;
	struct kv *kv = NULL;
	struct plan *plan = NULL;
	struct err e = ERR_NULL;
	const float *logits = NULL;
	float worst = 0.0f;

	if (type == KV_LAYOUT_Q8_0)
		ref_model_use_q8_0_kv(scalar);
	on_device_check(kv_new(d, &kv_params, &e, &kv), &e, "kv");
	on_device_check(plan_new(d, m->weights, kv, &plan_params, &e, &plan), &e, "plan");
	on_device_check(kv_open(kv, &e, &slot), &e, "open");
	on_device_check(kv_reserve(kv, slot, AGAINST_SCALAR_TOKENS, &e), &e, "reserve");
	for (uint32_t at = 0; at < AGAINST_SCALAR_TOKENS; at += N_ROWS) {
		uint32_t n =
			AGAINST_SCALAR_TOKENS - at < N_ROWS ? AGAINST_SCALAR_TOKENS - at : N_ROWS;
		for (uint32_t i = 0; i < n; i++) {
			want[i] = i;
			rows[i] = (struct plan_row){
				.token = against_scalar_token(at + i, hp->n_vocab),
				.position = at + i,
				.slot = slot};
		}
		on_device_check(plan_step(plan, rows, n, want, n, &e, &logits), &e, "step");
		for (uint32_t i = 0; i < n; i++) {
			const float *expected = ref_model_step(scalar, rows[i].token);
			const float *found = logits + (uint64_t)i * hp->n_vocab;
			for (uint32_t t = 0; t < hp->n_vocab; t++) {
				assert_true(isfinite(found[t]));
				worst = fmaxf(worst, fabsf(found[t] - expected[t]));
				*ret_largest = fmaxf(*ret_largest, fabsf(expected[t]));
			}
		}
	}
	plan_free(plan);
	kv_free(kv);
	ref_model_free(scalar);
	return worst;
}

float against_scalar_compare(struct vk_device *d, const struct model_on_device *m,
	enum kv_layout_type type, float *ret_largest)
{
	return compare(d, m, m->weights->manifest, type, ret_largest);
}

float against_scalar_compare_with(struct vk_device *d, const struct model_on_device *m,
	const struct manifest *of_image, float *ret_largest)
{
	return compare(d, m, of_image, KV_LAYOUT_F16, ret_largest);
}
