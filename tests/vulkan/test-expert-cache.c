/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan with its experts in host memory and a cache of them in device memory: the logits are the
 * same bits as without one at any budget, and the counters say what was found.
 */
#include <inttypes.h>

#include "proto/manifest.h"
#include "tests/vulkan/model-on-device.h"
#include "tests/vulkan/on-device.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "workerd/expert-cache.h"
#include "workerd/kv.h"
#include "workerd/plan.h"
#include "workerd/weights.h"

enum { N_ROWS = 16, N_CTX = 128, N_TOKENS = 96 };

static struct vk_device *device;
static struct model_on_device model;
static uint32_t n_vocab;
static uint32_t tokens[N_TOKENS];

static int init(void **state)
{
	char path[4096];

	(void)state;
	snprintf(path, sizeof(path), "%s/models/atlas-moe-q8_0.gguf", getenv("WEIGHTD_TEST_DATA"));
	device = on_device_new();
	model_on_device_init_host_experts(&model, device, path);
	n_vocab = model.weights->manifest->hparams->n_vocab;
	for (uint32_t i = 0; i < N_TOKENS; i++)
		tokens[i] = (i * 2654435761u >> 7) % n_vocab; /* any; Knuth's multiplier */
	return 0;
}

static int fini(void **state)
{
	(void)state;
	model_on_device_fini(&model);
	vk_device_free(device);
	return 0;
}

/* Bytes of one expert with its slot's alignment; the model's parts are multiples of 256. */
static uint64_t count_expert_bytes(void)
{
	static const char *const names[] = {"blk.0.ffn_gate_exps.weight",
		"blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight"};
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < ARRAY_SIZE(names); i++) {
		const struct manifest_tensor *t =
			manifest_find_tensor(model.weights->manifest, names[i]);
		assert_int_equal(t->n_bytes / t->ne[2] % 256, 0);
		n_bytes += t->n_bytes / t->ne[2];
	}
	return n_bytes;
}

static uint64_t count_scratch(void)
{
	struct vk_memory_counter bytes[VK_MEMORY_N_ROLES];

	vk_memory_get_counters(device, bytes);
	return bytes[VK_MEMORY_SCRATCH].requested_bytes;
}

/* What a plan counts before its first step, and the scratch it takes. */
static void make_plan(uint64_t n_cache_bytes, uint32_t stream_rows,
	struct expert_cache_counters *ret_counters, uint64_t *ret_scratch_bytes)
{
	const struct manifest_hparams *hp = model.weights->manifest->hparams;
	struct kv_params kv_params = {.n_layers = hp->n_layers,
		.n_head_kv = hp->n_head_kv,
		.head_dim = hp->head_dim_k,
		.n_slots = 1,
		.n_ctx = N_CTX,
		.n_tokens = N_CTX};
	struct plan_params params = {.n_rows = 1,
		.n_logit_rows = 1,
		.stream_rows = stream_rows,
		.n_expert_cache_bytes = n_cache_bytes,
		.kernels = PLAN_KERNELS_EXACT};
	struct plan_counters counters;
	struct kv *kv = NULL;
	struct plan *plan = NULL;
	struct err e = ERR_NULL;

	on_device_check(kv_new(device, &kv_params, &e, &kv), &e, "kv");
	uint64_t n_before = count_scratch();
	on_device_check(plan_new(device, model.weights, kv, &params, &e, &plan), &e, "plan");
	*ret_scratch_bytes = count_scratch() - n_before;
	plan_get_counters(plan, &counters);
	*ret_counters = counters.experts;
	plan_free(plan);
	assert_int_equal(count_scratch(), n_before);
	kv_free(kv);
}

/* Prefill of a chunk, then token by token; all logits of the tokens, [N_TOKENS][n_vocab]. */
static float *run(uint64_t n_cache_bytes, struct plan_counters *ret_counters)
{
	const struct manifest_hparams *hp = model.weights->manifest->hparams;
	struct kv_params kv_params = {.n_layers = hp->n_layers,
		.n_head_kv = hp->n_head_kv,
		.head_dim = hp->head_dim_k,
		.n_slots = 1,
		.n_ctx = N_CTX,
		.n_tokens = N_CTX};
	struct plan_params params = {.n_rows = N_ROWS,
		.n_logit_rows = 1,
		.stream_rows = PLAN_NEVER_STREAM,
		.n_expert_cache_bytes = n_cache_bytes,
		.kernels = PLAN_KERNELS_EXACT};
	struct plan_row rows[N_ROWS];
	struct kv *kv = NULL;
	struct plan *plan = NULL;
	struct err e = ERR_NULL;
	uint32_t slot = 0;
	float *all = malloc(sizeof(float) * n_vocab * N_TOKENS);

	assert_non_null(all);
	on_device_check(kv_new(device, &kv_params, &e, &kv), &e, "kv");
	on_device_check(plan_new(device, model.weights, kv, &params, &e, &plan), &e, "plan");
	on_device_check(kv_open(kv, &e, &slot), &e, "open");
	on_device_check(kv_reserve(kv, slot, N_TOKENS, &e), &e, "reserve");
	for (uint32_t i = 0, n; i < N_TOKENS; i += n) {
		const float *logits = NULL;
		/* Chunks among single tokens and pairs. */
		n = i % 32 == 0 ? N_ROWS : i % 32 < 24 ? 1 : 2;
		uint32_t want = n - 1;
		for (uint32_t j = 0; j < n; j++)
			rows[j] = (struct plan_row){
				.token = tokens[i + j], .position = i + j, .slot = slot};
		on_device_check(plan_step(plan, rows, n, &want, 1, &e, &logits), &e, "step");
		memset(all + (uint64_t)i * n_vocab, 0, sizeof(float) * n_vocab * n);
		memcpy(all + (uint64_t)i * n_vocab, logits, sizeof(float) * n_vocab);
	}
	plan_get_counters(plan, ret_counters);
	plan_free(plan);
	kv_free(kv);
	return all;
}

static void test_bits_and_counters(void **state)
{
	const struct manifest_hparams *hp = model.weights->manifest->hparams;
	const uint64_t n_expert_bytes = count_expert_bytes();
	static const uint32_t n_slots[] = {1, 2, 3, 5, 8, 9};
	struct plan_counters counters;
	uint64_t n_before = 0;

	(void)state;
	float *expected = run(0, &counters);
	assert_int_equal(counters.experts.n_slots, 0);
	for (uint32_t i = 0; i < ARRAY_SIZE(n_slots); i++) {
		uint64_t n_bytes = n_expert_bytes * hp->n_layers * n_slots[i];
		uint32_t n = n_slots[i] < hp->n_expert ? n_slots[i] : hp->n_expert;
		float *found = run(n_bytes + n_expert_bytes / 2, &counters);
		const struct expert_cache_counters *c = &counters.experts;
		assert_memory_equal(found, expected, sizeof(float) * n_vocab * N_TOKENS);
		free(found);
		print_message("%u slots a layer: %" PRIu64 " found, %" PRIu64 " fetched, %" PRIu64
			      " direct\n",
			n, c->n_found, c->n_fetched, c->n_direct);
		assert_int_equal(c->n_slots, n * hp->n_layers);
		assert_int_equal(c->n_bytes, n_expert_bytes * n * hp->n_layers);
		/* One slot is not enough for the two of a row, four are for the two of two. */
		assert_true(n >= 4 ? c->n_direct == 0 : n > 1 || c->n_direct > 0);
		assert_true(c->n_found >= n_before);
		n_before = c->n_found;
		if (n == hp->n_expert)
			assert_true(c->n_fetched <= c->n_slots);
	}
	free(expected);

	/* Less than a slot for each layer. */
	free(run(n_expert_bytes * hp->n_layers - 1, &counters));
	assert_int_equal(counters.experts.n_slots, 0);
	/* Nothing crosses the bus. */
	model.weights->allocs[1].placement = MANIFEST_PLACEMENT_DEVICE;
	free(run(n_expert_bytes * hp->n_layers * 8, &counters));
	assert_int_equal(counters.experts.n_slots, 0);
}

static void test_bytes(void **state)
{
	const struct manifest_hparams *hp = model.weights->manifest->hparams;
	const uint64_t n_all_bytes = count_expert_bytes() * hp->n_layers * hp->n_expert;
	struct expert_cache_counters c;
	uint64_t n_scratch, n_without;

	(void)state;
	make_plan(0, PLAN_NEVER_STREAM, &c, &n_without);
	assert_int_equal(c.n_slots + c.n_bytes, 0);
	/* All that was asked for is scratch, and no more than the experts is taken. */
	make_plan(n_all_bytes / 2, PLAN_NEVER_STREAM, &c, &n_scratch);
	assert_int_equal(c.n_bytes, n_all_bytes / 2);
	assert_true(n_scratch >= n_without + c.n_bytes);
	make_plan(2 * n_all_bytes, PLAN_NEVER_STREAM, &c, &n_scratch);
	assert_int_equal(c.n_bytes, n_all_bytes);
	assert_int_equal(c.n_found + c.n_fetched + c.n_direct, 0);
	/* More than any device has. */
	make_plan(EXPERT_CACHE_AUTO - 1, PLAN_NEVER_STREAM, &c, &n_scratch);
	assert_int_equal(c.n_bytes, n_all_bytes);
	/* What is left is enough for a model of this size, where that is not host memory. */
	make_plan(EXPERT_CACHE_AUTO, PLAN_NEVER_STREAM, &c, &n_scratch);
	assert_int_equal(c.n_bytes, vk_device_get_info(device)->is_software ? 0 : n_all_bytes);
	/* Steps that copy all weights would never look into it. */
	make_plan(n_all_bytes, 1, &c, &n_scratch);
	assert_int_equal(c.n_slots, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_bytes), CASE(test_bits_and_counters), /* the last: it moves the experts */
	};

	if (!getenv("WEIGHTD_TEST_DATA"))
		return CASE_SKIP;
	on_device_warm_up();
	return cmocka_run_group_tests(tests, init, fini);
}
