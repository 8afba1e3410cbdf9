/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama models of random weights against the scalar model: with and without rope factors, heads
 * that are rotated whole and in part, an odd number of rotated pairs; factors wherever the tensor
 * is placed, and those that cannot be.
 */
#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "tests/ref/gguf-build.h"
#include "tests/ref/ref-model.h"
#include "tests/vulkan/against-scalar.h"
#include "tests/vulkan/model-on-device.h"
#include "tests/vulkan/on-device.h"
#include "workerd/kv.h"
#include "workerd/plan.h"
#include "workerd/weights.h"

static const char factors_name[] = "rope_freqs.weight";

/* Three pairs of heads of an odd width, 17 pairs of 20. */
static const struct gguf_build_shape small = {.n_layers = 3,
	.n_embd = 64,
	.n_ff = 96,
	.n_head = 6,
	.n_head_kv = 2,
	.head_dim = 40,
	.n_rot = 34,
	.n_ctx = 512,
	.seed = 7};

static void init(struct model_on_device *m, struct vk_device *d, const struct gguf_build_shape *s)
{
	char path[] = "/tmp/test-llama-XXXXXX";

	against_scalar_write(gguf_build_new_llama(s), path);
	model_on_device_init(m, d, path);
	unlink(path);
}

static void run(const struct gguf_build_shape *s, enum kv_layout_type type, float tolerance)
{
	struct vk_device *d = on_device_new();
	struct model_on_device m;
	float largest = 0.0f;

	init(&m, d, s);
	const struct manifest *manifest = m.weights->manifest;
	assert_int_equal(manifest->hparams->n_rot, s->n_rot ? s->n_rot : s->head_dim);
	assert_true(!manifest_find_tensor(manifest, factors_name) == !s->has_rope_factors);
	float worst = against_scalar_compare(d, &m, type, &largest);
	print_message("# head of %u, %u rotated, %s, %s: logits up to %.3g, off by %.3g\n",
		s->head_dim, manifest->hparams->n_rot, s->has_rope_factors ? "factors" : "plain",
		kv_layout_type_name(type), (double)largest, (double)worst);
	assert_true(worst <= tolerance * largest);
	model_on_device_fini(&m);
	vk_device_free(d);
}

static void test_plain(void **state)
{
	(void)state;
	run(&small, KV_LAYOUT_F16, 1e-3f);
}

static void test_factors(void **state)
{
	struct gguf_build_shape s = small;

	(void)state;
	s.has_rope_factors = true;
	run(&s, KV_LAYOUT_F16, 1e-3f);
	/* As Llama 3.2 1B has it. */
	s.head_dim = 64;
	s.n_rot = 0;
	s.untied = true;
	s.type = DTYPE_Q8_0;
	run(&s, KV_LAYOUT_F16, 1e-3f);
}

/* A number beside the middle of two steps is kept as either. */
static void test_q8_0(void **state)
{
	struct gguf_build_shape s = small;

	(void)state;
	s.has_rope_factors = true;
	run(&s, KV_LAYOUT_Q8_0, 2e-2f);
}

/* Of the same weights. */
static float compare_scalars(const struct model_on_device *a, const struct model_on_device *b)
{
	struct ref_model *x = ref_model_new(a->weights->manifest, a->image);
	struct ref_model *y = ref_model_new(b->weights->manifest, b->image);
	uint32_t n_vocab = a->weights->manifest->hparams->n_vocab;
	float worst = 0.0f;

	for (uint32_t i = 0; i < AGAINST_SCALAR_TOKENS; i++) {
		uint32_t token = against_scalar_token(i, n_vocab);
		const float *of_x = ref_model_step(x, token), *of_y = ref_model_step(y, token);
		for (uint32_t t = 0; t < n_vocab; t++)
			worst = fmaxf(worst, fabsf(of_x[t] - of_y[t]));
	}
	ref_model_free(x);
	ref_model_free(y);
	return worst;
}

/* What the tests above see are the factors and the rotated part: without them it is another model.
 */
static void test_they_matter(void **state)
{
	struct vk_device *d = on_device_new();
	struct gguf_build_shape other = small;
	struct model_on_device a, b;

	(void)state;
	init(&a, d, &small);
	other.has_rope_factors = true;
	init(&b, d, &other);
	float by_factors = compare_scalars(&a, &b);
	model_on_device_fini(&b);
	other.has_rope_factors = false;
	other.n_rot = 36;
	init(&b, d, &other);
	float by_rot = compare_scalars(&a, &b);
	model_on_device_fini(&b);
	model_on_device_fini(&a);
	vk_device_free(d);
	print_message("# without the factors: off by %.3g; of 36 rotated: by %.3g\n",
		(double)by_factors, (double)by_rot);
	assert_true(by_factors > 0.1f);
	assert_true(by_rot > 0.01f);
}

/* The factors in a file that is read, as --place NAME=paged leaves them; the rest stays. */
static void page_factors(struct model_on_device *m, struct manifest *manifest,
	struct manifest_tensor *tensors, struct weights *ret_weights,
	struct weights_alloc ret_allocs[2])
{
	const struct manifest *from = m->weights->manifest;
	int fd = memfd_create("test-llama", MFD_CLOEXEC);

	assert_true(fd >= 0);
	*manifest = *from;
	memcpy(tensors, from->tensors, sizeof(*tensors) * from->n_tensors);
	manifest->tensors = tensors;
	ret_allocs[0] = m->weights->allocs[0];
	ret_allocs[1] = (struct weights_alloc){
		.placement = MANIFEST_PLACEMENT_PAGED, .fd = fd, .file_offset = 4, .kept_fd = -1};
	for (uint32_t i = 0; i < from->n_tensors; i++) {
		struct manifest_tensor *t = &tensors[i];
		if (t->name.n_bytes != strlen(factors_name) ||
			memcmp(manifest_get_string(from, t->name), factors_name, t->name.n_bytes))
			continue;
		assert_int_equal(pwrite(fd, m->image + t->offset, t->n_bytes, 4 + 8), t->n_bytes);
		t->alloc = 1;
		t->offset = 8;
	}
	*ret_weights = *m->weights;
	ret_weights->manifest = manifest;
	ret_weights->allocs = ret_allocs;
	ret_weights->n_allocs = 2;
}

static void test_paged_factors(void **state)
{
	struct vk_device *d = on_device_new();
	struct gguf_build_shape s = small;
	struct model_on_device m, paged;
	struct manifest manifest;
	struct manifest_tensor tensors[64];
	struct weights weights;
	struct weights_alloc allocs[2];
	float largest = 0.0f;

	(void)state;
	s.has_rope_factors = true;
	init(&m, d, &s);
	assert_true(m.weights->manifest->n_tensors <= ARRAY_SIZE(tensors));
	page_factors(&m, &manifest, tensors, &weights, allocs);
	/* The scalar model has all in one allocation: there only the plan's is another. */
	paged = m;
	paged.weights = &weights;
	float worst = against_scalar_compare_with(d, &paged, m.weights->manifest, &largest);
	assert_true(worst <= 1e-3f * largest);
	close(allocs[1].fd);
	model_on_device_fini(&m);
	vk_device_free(d);
}

/* One line says which number; nothing is computed with it. */
static void test_bad_factors(void **state)
{
	static const float bad[] = {0.0f, -1.0f, INFINITY, NAN};
	struct gguf_build_shape s = small;
	const struct plan_params params = {.n_rows = 4, .n_logit_rows = 1};
	struct vk_device *d = on_device_new();

	(void)state;
	s.has_rope_factors = true;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		char path[] = "/tmp/test-llama-XXXXXX";
		struct model_on_device m;
		struct err e = ERR_NULL;
		struct plan *plan = NULL;
		struct kv *kv = NULL;

		/* The last tensor of the file. */
		against_scalar_write(gguf_build_new_llama(&s), path);
		int fd = open(path, O_WRONLY | O_CLOEXEC);
		off_t end = lseek(fd, 0, SEEK_END);
		assert_true(fd >= 0 && end > 0);
		assert_int_equal(pwrite(fd, &bad[i], 4, end - 4), 4);
		close(fd);
		model_on_device_init(&m, d, path);
		unlink(path);
		const struct manifest_hparams *hp = m.weights->manifest->hparams;
		const struct kv_params kv_params = {.type = KV_LAYOUT_F16,
			.n_layers = hp->n_layers,
			.n_head_kv = hp->n_head_kv,
			.head_dim = hp->head_dim_k,
			.n_slots = 1,
			.n_ctx = 32,
			.n_tokens = 32};
		on_device_check(kv_new(d, &kv_params, &e, &kv), &e, "kv");
		assert_int_equal(plan_new(d, m.weights, kv, &params, &e, &plan), -EINVAL);
		assert_non_null(
			strstr(e.text, "rope_freqs.weight: number 16: expected one above 0"));
		assert_null(plan);
		kv_free(kv);
		model_on_device_fini(&m);
	}
	vk_device_free(d);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_plain),
		CASE(test_factors),
		CASE(test_q8_0),
		CASE(test_they_matter),
		CASE(test_paged_factors),
		CASE(test_bad_factors),
	};

	on_device_warm_up();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
