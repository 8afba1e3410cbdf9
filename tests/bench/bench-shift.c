/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context shift costs in accuracy where keys and values are used again instead of computed
 * anew: the scalar model over a conversation of the committed prompts, cut by half several times,
 * with keys rotated to their new places. Logits and greedy choices are compared with those of the
 * same tokens computed anew; the share of the rotation's own rounding is measured apart.
 *
 * bench-shift [NAME]    atlas-dense, what it is without one, or atlas-moe
 */
#include <jansson.h>
#include <math.h>

#include "proto/manifest.h"
#include "tests/ref/ref-model.h"
#include "tests/vulkan/model-on-device.h"
#include "tests/vulkan/on-device.h"
#include "workerd/weights.h"

enum { N_CTX = 160, N_KEEP = 16, N_SHIFTS = 3, N_AFTER = 24 };

static struct model_on_device model;
static uint32_t stream[1024], n_stream;

static void read_stream(const char *name)
{
	char path[4096];
	json_error_t why;
	json_t *prompt, *id;
	size_t i, k;

	snprintf(path, sizeof(path), "%s/ref/%s.json", getenv("WEIGHTD_TEST_DATA"), name);
	json_t *ref = json_load_file(path, 0, &why);
	assert_non_null(ref);
	json_array_foreach(json_object_get(ref, "cases"), i, prompt)
	{
		json_array_foreach(json_object_get(prompt, "tokens"), k, id)
		{
			if (n_stream < ARRAY_SIZE(stream))
				stream[n_stream++] = (uint32_t)json_integer_value(id);
		}
	}
	json_decref(ref);
}

static uint32_t find_largest(const float *x, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		best = x[i] > x[best] ? i : best;
	return best;
}

struct difference {
	float largest;
	double squares;
	uint32_t n_other; /* greedy choices */
	uint32_t n;
};

static void add(struct difference *d, const float *a, const float *b, uint32_t n_vocab)
{
	for (uint32_t i = 0; i < n_vocab; i++) {
		d->largest = fmaxf(d->largest, fabsf(a[i] - b[i]));
		d->squares += (double)(a[i] - b[i]) * (a[i] - b[i]) / n_vocab;
	}
	d->n_other += find_largest(a, n_vocab) != find_largest(b, n_vocab);
	d->n++;
}

static struct ref_model *new_model(bool is_q8_0)
{
	struct ref_model *m = ref_model_new(model.weights->manifest, model.image);

	if (is_q8_0)
		ref_model_use_q8_0_kv(m);
	return m;
}

static void say(const char *type, const char *what, const struct difference *d)
{
	print_message("# %s, %s: logits off by %.3g at most, %.3g rms; %u of %u greedy tokens "
		      "otherwise\n",
		type, what, (double)d->largest, sqrt(d->squares / d->n), d->n_other, d->n);
}

static void measure(bool is_q8_0)
{
	const char *type = is_q8_0 ? "q8_0" : "f16";
	struct ref_model *used = new_model(is_q8_0), *exact = new_model(is_q8_0);
	struct ref_model *anew = new_model(is_q8_0);
	uint32_t n_vocab = model.weights->manifest->hparams->n_vocab;
	struct difference from_anew = {0}, from_exact = {0};
	uint32_t tokens[N_CTX], n = 0, at = 0;

	for (uint32_t shift = 0; shift <= N_SHIFTS; shift++) {
		while (n < N_CTX) {
			uint32_t token = tokens[n++] = stream[at++ % n_stream];
			ref_model_step(used, token);
			ref_model_step(exact, token);
		}
		uint32_t n_gone = (N_CTX - N_KEEP + 1) / 2;
		ref_model_drop(used, N_KEEP, n_gone, false);
		ref_model_drop(exact, N_KEEP, n_gone, true);
		memmove(tokens + N_KEEP, tokens + N_KEEP + n_gone,
			(N_CTX - N_KEEP - n_gone) * sizeof(tokens[0]));
		n = N_CTX - n_gone;
		ref_model_restart(anew);
		for (uint32_t i = 0; i < n; i++)
			ref_model_step(anew, tokens[i]);
		for (uint32_t i = 0; i < N_AFTER; i++) {
			uint32_t token = tokens[n++] = stream[at++ % n_stream];
			const float *a = ref_model_step(used, token);
			add(&from_anew, a, ref_model_step(anew, token), n_vocab);
			add(&from_exact, a, ref_model_step(exact, token), n_vocab);
		}
	}
	say(type, "used again against computed anew", &from_anew);
	say(type, "of that, rotated keys kept once more", &from_exact);
	ref_model_free(used);
	ref_model_free(exact);
	ref_model_free(anew);
}

static void bench_shift(void **state)
{
	(void)state;
	measure(false);
	measure(true);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(bench_shift)};
	const char *name = argc > 1 ? argv[1] : "atlas-dense";
	char path[4096];

	snprintf(path, sizeof(path), "%s/models/%s-q8_0.gguf", getenv("WEIGHTD_TEST_DATA"), name);
	struct vk_device *d = on_device_new();
	model_on_device_init(&model, d, path);
	read_stream(name);
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	model_on_device_fini(&model);
	vk_device_free(d);
	return r;
}
