/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The committed models on the device against what they should say: 20 prompts, the logits at each
 * position and 48 greedy tokens.
 *
 * test-reference [NAME] [q8_0]    the Q8_0 file of the test data
 * test-reference NAME FORMAT      f16, q6_k, q4_k_m or q4_0: that file of WEIGHTD_SHARED, skipped
 *                                 where there is none
 *
 * NAME is atlas-dense, what it is without one, or atlas-moe. A third argument: exact, what it is
 * without one; kv-q8_0 keeps keys and values as Q8_0, in both computations; fast takes the kernels
 * that round more. A fourth is the kind of attention kernel.
 *
 * Two references. The scalar model reads the same bytes, so that only the order of sums is left: a
 * tight tolerance over the whole vocabulary. The reference file has the five largest logits of the
 * same model in fp32 with matrices rounded to F16; for F16 that is the same model (two right
 * computations with f16 keys and values are within 0.0081), for the others the error of the format
 * shows.
 */
#include <jansson.h>
#include <math.h>

#include "proto/manifest.h"
#include "shaders/kernels.h"
#include "tests/ref/ref-model.h"
#include "tests/vulkan/model-on-device.h"
#include "tests/vulkan/on-device.h"
#include "workerd/kv.h"
#include "workerd/plan.h"
#include "workerd/weights.h"

enum { N_ROWS = 64, N_CTX = 512, N_GREEDY = 48, TOP = 5 };

/*
 * Largest difference of a logit from the scalar model and from the reference file, and what the
 * reference's greedy choice may lack of the largest logit in an answer. Behind the answer's end a
 * model was trained for nothing, and any two logits may be as far off as the file's tolerance.
 */
struct tolerance {
	const char *name, *format, *mode;
	float scalar, file, gap;
};

/*
 * With Q8_0 keys and values: where a number lies beside the middle of two steps of Q8_0, two
 * computations of it may keep it as either, and a step is 2^-7 of the block's largest. In mixtures:
 * where two experts are near, the error of the format chooses another. Fast: x is rounded to 8 bits
 * of the largest of 32 for few rows, and with W to F16 for many.
 */
static const struct tolerance tolerances[] = {
	{"atlas-dense", "f16", "exact", 1e-2f, 2e-2f, 4e-2f},
	{"atlas-moe", "f16", "exact", 1e-2f, 2e-2f, 4e-2f},
	{"atlas-dense", "q8_0", "exact", 1e-2f, 0.2f, 0.1f},
	{"atlas-moe", "q8_0", "exact", 1e-2f, 0.5f, 0.1f},
	{"atlas-dense", "q8_0", "kv-q8_0", 0.05f, 0.25f, 0.1f},
	{"atlas-moe", "q8_0", "kv-q8_0", 0.05f, 0.5f, 0.1f},
	{"atlas-dense", "q8_0", "fast", 0.25f, 0.4f, 0.1f},
	{"atlas-moe", "q8_0", "fast", 0.25f, 0.5f, 0.1f},
	{"atlas-dense", "q6_k", "exact", 1e-2f, 0.5f, 0.2f},
	{"atlas-dense", "q4_k_m", "exact", 1e-2f, 1.5f, 0.2f},
	{"atlas-moe", "q4_k_m", "exact", 1e-2f, 2.0f, 0.2f},
	{"atlas-dense", "q4_0", "exact", 1e-2f, 2.0f, 0.2f},
};

static enum plan_kernels kernels = PLAN_KERNELS_EXACT;
static const struct tolerance *tolerance;
static enum kv_layout_type kv_type;
static enum op_attention_kind attention;
static char model_path[4096];
static json_t *ref;

struct engine {
	struct vk_device *d;
	struct model_on_device model;
	struct kv *kv;
	struct plan *plan;
	uint32_t n_vocab;
};

static void engine_init(struct engine *e)
{
	struct err err = ERR_NULL;

	*e = (struct engine){.d = on_device_new()};
	model_on_device_init(&e->model, e->d, model_path);
	const struct manifest_hparams *hp = e->model.weights->manifest->hparams;
	struct kv_params kv = {.type = kv_type,
		.n_layers = hp->n_layers,
		.n_head_kv = hp->n_head_kv,
		.head_dim = hp->head_dim_k,
		.n_slots = 1,
		.n_ctx = N_CTX,
		.n_tokens = N_CTX};
	struct plan_params params = {.n_rows = N_ROWS,
		.n_logit_rows = N_ROWS,
		.kernels = kernels,
		.attention = attention};
	on_device_check(kv_new(e->d, &kv, &err, &e->kv), &err, "kv");
	on_device_check(
		plan_new(e->d, e->model.weights, e->kv, &params, &err, &e->plan), &err, "plan");
	e->n_vocab = plan_get_n_vocab(e->plan);
}

static void engine_fini(struct engine *e)
{
	plan_free(e->plan);
	kv_free(e->kv);
	model_on_device_fini(&e->model);
	vk_device_free(e->d);
}

/* Tokens [first, first + n) of the slot; their logits, [n][n_vocab]. */
static const float *step(
	struct engine *e, uint32_t slot, const uint32_t *tokens, uint32_t first, uint32_t n)
{
	struct plan_row rows[N_ROWS];
	uint32_t want[N_ROWS];
	struct err err = ERR_NULL;
	const float *logits = NULL;

	for (uint32_t i = 0; i < n; i++) {
		rows[i] =
			(struct plan_row){.token = tokens[i], .position = first + i, .slot = slot};
		want[i] = i;
	}
	on_device_check(kv_reserve(e->kv, slot, first + n, &err), &err, "reserve");
	on_device_check(plan_step(e->plan, rows, n, want, n, &err, &logits), &err, "step");
	return logits;
}

static uint32_t find_largest(const float *logits, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

static uint32_t read_tokens(const json_t *list, uint32_t *ret_tokens)
{
	uint32_t n = (uint32_t)json_array_size(list);

	assert_in_range(n, 1, N_CTX - N_GREEDY);
	for (uint32_t i = 0; i < n; i++)
		ret_tokens[i] = (uint32_t)json_integer_value(json_array_get(list, i));
	return n;
}

/* The largest difference of the five that the file has at this position. */
static float compare_file(const float *logits, const json_t *top)
{
	float worst = 0.0f;

	assert_int_equal(json_array_size(top), TOP);
	for (size_t i = 0; i < TOP; i++) {
		const json_t *pair = json_array_get(top, i);
		json_int_t id = json_integer_value(json_array_get(pair, 0));
		double value = json_number_value(json_array_get(pair, 1));
		worst = fmaxf(worst, fabsf(logits[id] - (float)value));
	}
	return worst;
}

static float compare_scalar(const float *logits, const float *expected, uint32_t n)
{
	float worst = 0.0f;

	for (uint32_t i = 0; i < n; i++) {
		if (!isfinite(logits[i]))
			return INFINITY;
		worst = fmaxf(worst, fabsf(logits[i] - expected[i]));
	}
	return worst;
}

/* Every position of every prompt, in chunks of N_ROWS. */
static void test_prompts(void **state)
{
	struct engine e;
	uint32_t tokens[N_CTX], slot = 0, n_positions = 0;
	struct err err = ERR_NULL;
	float worst_scalar = 0.0f, worst_file = 0.0f;
	const json_t *c;
	size_t at;

	(void)state;
	engine_init(&e);
	struct ref_model *scalar = ref_model_new(e.model.weights->manifest, e.model.image);
	if (kv_type == KV_LAYOUT_Q8_0)
		ref_model_use_q8_0_kv(scalar);
	json_array_foreach(json_object_get(ref, "cases"), at, c)
	{
		uint32_t n = read_tokens(json_object_get(c, "tokens"), tokens);
		ref_model_restart(scalar);
		on_device_check(kv_open(e.kv, &err, &slot), &err, "open");
		const float *logits = NULL;
		for (uint32_t i = 0; i < n; i++) {
			uint32_t chunk = n - i < N_ROWS ? n - i : N_ROWS;
			if (i % N_ROWS == 0)
				logits = step(&e, slot, tokens + i, i, chunk);
			const float *row = logits + (uint64_t)(i % N_ROWS) * e.n_vocab;
			float file =
				compare_file(row, json_array_get(json_object_get(c, "top5"), i));
			float same =
				compare_scalar(row, ref_model_step(scalar, tokens[i]), e.n_vocab);
			worst_file = fmaxf(worst_file, file);
			worst_scalar = fmaxf(worst_scalar, same);
			n_positions++;
		}
		kv_close(e.kv, slot);
	}
	ref_model_free(scalar);
	engine_fini(&e);
	print_message("%u positions: largest difference %.2g from the scalar model, %.2g from the "
		      "file\n",
		n_positions, (double)worst_scalar, (double)worst_file);
	assert_true(worst_scalar <= tolerance->scalar);
	assert_true(worst_file <= tolerance->file);
}

/*
 * 48 tokens after each prompt. Another choice than the reference's is right only where two logits
 * are as near as two computations may differ; the reference's is then taken, so that all 48 are
 * looked at.
 */
static void test_greedy(void **state)
{
	struct engine e;
	uint32_t tokens[N_CTX], greedy[N_CTX], slot = 0, n_tokens = 0, n_near = 0;
	struct err err = ERR_NULL;
	float worst = 0.0f;
	const json_t *c;
	size_t at;

	(void)state;
	engine_init(&e);
	json_array_foreach(json_object_get(ref, "cases"), at, c)
	{
		uint32_t n = read_tokens(json_object_get(c, "tokens"), tokens);
		assert_int_equal(read_tokens(json_object_get(c, "greedy"), greedy), N_GREEDY);
		json_int_t ends_at = json_integer_value(json_object_get(c, "greedy_ends_at"));
		on_device_check(kv_open(e.kv, &err, &slot), &err, "open");
		const float *row = NULL;
		for (uint32_t i = 0; i < n; i += N_ROWS) {
			uint32_t chunk = n - i < N_ROWS ? n - i : N_ROWS;
			row = step(&e, slot, tokens + i, i, chunk) +
			      (uint64_t)(chunk - 1) * e.n_vocab;
		}
		for (uint32_t i = 0; i < N_GREEDY; i++, n_tokens++) {
			uint32_t best = find_largest(row, e.n_vocab);
			float gap = row[best] - row[greedy[i]];
			n_near += best != greedy[i];
			if (i <= ends_at)
				worst = fmaxf(worst, gap);
			if (!(gap <= (i <= ends_at ? tolerance->gap : 2 * tolerance->file)))
				fail_msg(
					"prompt %zu, token %u: expected %u, found %u, better by %g",
					at, i, greedy[i], best, (double)gap);
			row = step(&e, slot, &greedy[i], n + i, 1);
		}
		kv_close(e.kv, slot);
	}
	engine_fini(&e);
	print_message("%u tokens, %u chosen otherwise, in an answer better by at most %.2g\n",
		n_tokens, n_near, (double)worst);
}

static void load_reference(const char *name)
{
	const char *data = getenv("WEIGHTD_TEST_DATA");
	char path[4096];
	json_error_t why;

	assert_non_null(data);
	snprintf(path, sizeof(path), "%s/ref/%s.json", data, name);
	ref = json_load_file(path, 0, &why);
	if (!ref) {
		fprintf(stderr, "%s:%d: %s\n", path, why.line, why.text);
		exit(1);
	}
}

/* False: the device has no such kernels. */
static bool find_attention(const char *name)
{
	static const char *const names[] = {[OP_ATTENTION_ROW] = "row",
		[OP_ATTENTION_SPLIT] = "split",
		[OP_ATTENTION_FUSED] = "fused",
		[OP_ATTENTION_TILE] = "tile",
		[OP_ATTENTION_MATRIX] = "matrix"};

	for (unsigned i = OP_ATTENTION_ROW; i < ARRAY_SIZE(names); i++)
		if (!strcmp(name, names[i]))
			attention = i;
	if (attention != OP_ATTENTION_MATRIX)
		return true;
	struct vk_device *d = on_device_new();
	bool has = vk_device_get_info(d)->n_matrices && kernels_has(KERNELS_ATTENTION_MATRIX_F16);
	vk_device_free(d);
	return has;
}

static const struct tolerance *find_tolerance(
	const char *name, const char *format, const char *mode)
{
	for (size_t i = 0; i < ARRAY_SIZE(tolerances); i++) {
		const struct tolerance *t = &tolerances[i];
		if (!strcmp(t->name, name) && !strcmp(t->format, format) && !strcmp(t->mode, mode))
			return t;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_prompts),
		CASE(test_greedy),
	};

	const char *name = argc > 1 ? argv[1] : "atlas-dense";
	const char *format = argc > 2 ? argv[2] : "q8_0";
	const char *mode = argc > 3 ? argv[3] : "exact";
	bool is_committed = !strcmp(format, "q8_0");
	const char *folder = getenv(is_committed ? "WEIGHTD_TEST_DATA" : "WEIGHTD_SHARED");

	tolerance = find_tolerance(name, format, mode);
	if (!tolerance) {
		fprintf(stderr, "%s in %s, %s: there are no tolerances\n", name, format, mode);
		return 2;
	}
	kv_type = strcmp(mode, "kv-q8_0") ? KV_LAYOUT_F16 : KV_LAYOUT_Q8_0;
	kernels = strcmp(mode, "fast") ? PLAN_KERNELS_EXACT : PLAN_KERNELS_FAST;
	if (argc > 4 && !find_attention(argv[4]))
		return CASE_SKIP;
	snprintf(model_path, sizeof(model_path), "%s/models/%s-%s.gguf", folder ? folder : ".",
		name, format);
	if (!is_committed && access(model_path, R_OK)) {
		fprintf(stderr, "skipped: no %s\n", model_path);
		return CASE_SKIP;
	}
	on_device_warm_up();
	load_reference(name);
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	json_decref(ref);
	return r;
}
