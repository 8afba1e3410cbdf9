/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a plan: a row's logits are the same bits however its session is cut into steps, whoever
 * is computed beside it and whether the step was submitted before its tokens were known; sessions
 * do not meet, and what cannot be is refused.
 *
 * test-plan [NAME [kv-q8_0]]    atlas-dense, what it is without one, or atlas-moe
 */
#include <math.h>

#include "proto/manifest.h"
#include "shaders/abi.h"
#include "tests/vulkan/model-on-device.h"
#include "tests/vulkan/on-device.h"
#include "vk/slice.h"
#include "workerd/arch.h"
#include "workerd/graph.h"
#include "workerd/kv.h"
#include "workerd/plan-layout.h"
#include "workerd/plan.h"
#include "workerd/tuning.h"
#include "workerd/weights.h"

enum { N_ROWS = 70, N_LOGIT_ROWS = 4, N_CTX = 256, N_SLOTS = 3, N_TOKENS = 131 };

static const char *model_name = "atlas-dense";
static enum kv_layout_type kv_type;
static struct vk_device *device;
static struct model_on_device model;
static struct kv *kv;
static struct plan *plan;
static uint32_t n_vocab;
static uint32_t tokens[N_TOKENS];

static int init(void **state)
{
	struct err e = ERR_NULL;
	char path[4096];

	(void)state;
	snprintf(path, sizeof(path), "%s/models/%s-q8_0.gguf", getenv("WEIGHTD_TEST_DATA"),
		model_name);
	device = on_device_new();
	model_on_device_init(&model, device, path);
	const struct manifest_hparams *hp = model.weights->manifest->hparams;
	struct kv_params kv_params = {.type = kv_type,
		.n_layers = hp->n_layers,
		.n_head_kv = hp->n_head_kv,
		.head_dim = hp->head_dim_k,
		.n_slots = N_SLOTS,
		.n_ctx = N_CTX,
		.n_tokens = N_CTX * N_SLOTS};
	struct plan_params params = {
		.n_rows = N_ROWS, .n_logit_rows = N_LOGIT_ROWS, .kernels = PLAN_KERNELS_EXACT};
	on_device_check(kv_new(device, &kv_params, &e, &kv), &e, "kv");
	on_device_check(plan_new(device, model.weights, kv, &params, &e, &plan), &e, "plan");
	n_vocab = plan_get_n_vocab(plan);
	for (uint32_t i = 0; i < N_TOKENS; i++)
		tokens[i] = (i * 2654435761u >> 7) % n_vocab; /* any; Knuth's multiplier */
	return 0;
}

static int fini(void **state)
{
	(void)state;
	plan_free(plan);
	kv_free(kv);
	model_on_device_fini(&model);
	vk_device_free(device);
	return 0;
}

static uint32_t open_slot(uint32_t n_tokens)
{
	struct err e = ERR_NULL;
	uint32_t slot = 0;

	on_device_check(kv_open(kv, &e, &slot), &e, "open");
	on_device_check(kv_reserve(kv, slot, n_tokens, &e), &e, "reserve");
	return slot;
}

/* Word by word into all that a step leaves of its values. */
static void fill_values(uint32_t word)
{
	struct vk_command *c = on_device_command(device, 0);
	struct vk_slice values = {0};

	plan_get_values(plan, &values);
	assert_true(values.n_bytes > 0);
	vk_command_begin(c);
	vk_command_fill(c, &values, word);
	on_device_run(device, c);
	vk_command_free(c);
}

static bool is_poisoned; /* before each step, with poison */
static uint32_t poison;

static const float *step(
	const struct plan_row *rows, uint32_t n_rows, const uint32_t *want, uint32_t n_want)
{
	struct err e = ERR_NULL;
	const float *logits = NULL;

	if (is_poisoned)
		fill_values(poison);
	on_device_check(plan_step(plan, rows, n_rows, want, n_want, &e, &logits), &e, "step");
	return logits;
}

/* All tokens in steps of chunk rows; the last one's logits. */
static float *run_in_chunks(uint32_t chunk)
{
	struct plan_row rows[N_ROWS];
	uint32_t slot = open_slot(N_TOKENS);
	float *last = malloc(sizeof(float) * n_vocab);

	assert_non_null(last);
	for (uint32_t i = 0; i < N_TOKENS; i += chunk) {
		uint32_t n = N_TOKENS - i < chunk ? N_TOKENS - i : chunk;
		uint32_t want = n - 1;
		for (uint32_t j = 0; j < n; j++)
			rows[j] = (struct plan_row){
				.token = tokens[i + j], .position = i + j, .slot = slot};
		bool is_last = i + n == N_TOKENS;
		const float *logits = step(rows, n, &want, is_last);
		if (is_last)
			memcpy(last, logits, sizeof(float) * n_vocab);
		else
			assert_null(logits);
	}
	kv_close(kv, slot);
	return last;
}

/* What is reserved beforehand is what is then allocated, up to a driver's rounding. */
static void test_measured_beforehand(void **state)
{
	enum { ROUNDING_BYTES = 1 << 20 }; /* stack.c's slack */
	struct plan_params params = {
		.n_rows = N_ROWS, .n_logit_rows = N_LOGIT_ROWS, .kernels = PLAN_KERNELS_EXACT};
	struct vk_memory_counter c[VK_MEMORY_N_ROLES];
	struct plan_layout_bytes bytes = {0};
	uint64_t n_page_bytes = 0, n_io_bytes = 0;
	struct err e = ERR_NULL;

	(void)state;
	on_device_check(plan_layout_measure(device, model.weights, &params, &e, &bytes), &e,
		"measure the plan");
	on_device_check(
		kv_measure(device, kv_get_params(kv), &e, &n_page_bytes, &n_io_bytes), &e, "kv");
	vk_memory_get_counters(device, c);
	assert_in_range(
		c[VK_MEMORY_KV].requested_bytes, n_page_bytes, n_page_bytes + ROUNDING_BYTES / 4);
	assert_in_range(c[VK_MEMORY_SCRATCH].requested_bytes, bytes.n_scratch_bytes,
		bytes.n_scratch_bytes + ROUNDING_BYTES / 4);
	assert_in_range(c[VK_MEMORY_IO].requested_bytes, bytes.n_io_bytes + n_io_bytes,
		bytes.n_io_bytes + n_io_bytes + ROUNDING_BYTES / 4);
}

static void test_bits_do_not_depend_on_chunks(void **state)
{
	static const uint32_t chunks[] = {2, 3, 15, 16, 17, 64, 65, N_ROWS};
	float *expected = run_in_chunks(1);

	(void)state;
	for (uint32_t i = 0; i < ARRAY_SIZE(chunks); i++) {
		float *found = run_in_chunks(chunks[i]);
		for (uint32_t j = 0; j < n_vocab; j++)
			if (memcmp(&found[j], &expected[j], sizeof(float)))
				fail_msg("steps of %u rows: logit %u: expected %.9g, found %.9g",
					chunks[i], j, (double)expected[j], (double)found[j]);
		free(found);
	}
	free(expected);
}

/*
 * Whatever a step finds in its scratch (not a number, infinite, what looks like somebody's secret)
 * leaves no trace in its logits: nothing there comes from the step before.
 */
static void test_bits_do_not_depend_on_old_scratch(void **state)
{
	static const uint32_t words[] = {0x7fc00000, 0xffffffff, 0x5ec5e75e};
	static const uint32_t chunks[] = {5, 33, N_ROWS};

	(void)state;
	for (uint32_t c = 0; c < ARRAY_SIZE(chunks); c++) {
		float *expected = run_in_chunks(chunks[c]);
		is_poisoned = true;
		for (uint32_t i = 0; i < ARRAY_SIZE(words); i++) {
			poison = words[i];
			float *found = run_in_chunks(chunks[c]);
			if (memcmp(found, expected, sizeof(float) * n_vocab))
				fail_msg("steps of %u rows over 0x%08x: other logits", chunks[c],
					words[i]);
			free(found);
		}
		is_poisoned = false;
		free(expected);
	}
}

/* All scratch has a name by which a refused map is known, and lives in device memory. */
static void test_scratch_has_names(void **state)
{
	static const char *const expected[] = {"residual", "qkv", "attention", "hidden"};
	struct vk_slice_place places[64];
	struct vk_slice values = {0}, slice = {0};
	uint32_t n = vk_slice_get_places(device, places, ARRAY_SIZE(places)), n_scratch = 0;
	struct err e = ERR_NULL;
	void *pointer = NULL;
	char text[128];

	(void)state;
	assert_in_range(n, 1, ARRAY_SIZE(places));
	for (uint32_t i = 0; i < n; i++) {
		if (places[i].role != VK_MEMORY_SCRATCH && places[i].role != VK_MEMORY_KV)
			continue;
		n_scratch++;
		assert_true(places[i].flags & VK_SLICE_DEVICE_LOCAL);
		assert_false(places[i].is_spilled);
	}
	assert_true(n_scratch > ARRAY_SIZE(expected));
	plan_get_values(plan, &values);
	for (uint32_t i = 0; i < ARRAY_SIZE(expected); i++) {
		on_device_check(vk_slice_find(values.memory, expected[i], &e, &slice), &e, "find");
		assert_true(slice.offset + slice.n_bytes <= values.n_bytes);
		assert_int_equal(vk_slice_map(&slice, &e, &pointer), -EPERM);
		snprintf(text, sizeof(text), "slice %s: memory scratch", expected[i]);
		assert_memory_equal(e.text, text, strlen(text));
	}
}

/* The scratch is no more than what lives at the op where most does, and the sum is all there is. */
static void test_scratch_is_used_again(void **state)
{
	struct plan_counters counters;
	const struct arch *arch = NULL;
	struct graph g = {0};
	struct err e = ERR_NULL;
	uint64_t n_most = 0, n_sum = 0;
	uint32_t n_values = 0;

	(void)state;
	plan_get_counters(plan, &counters);
	on_device_check(arch_find(model.weights, &e, &arch), &e, "architecture");
	on_device_check(arch->build(model.weights, &g, &e), &e, "graph");
	for (uint32_t op = 0; op < g.n_ops; op++) {
		uint64_t n_alive = 0;
		for (uint32_t i = 0; i < g.n_values; i++) {
			const struct graph_value *v = &g.values[i];
			uint64_t n_bytes =
				(4ull * v->width * N_ROWS + 4ull * v->n_extra + 255) / 256 * 256;
			if (v->is_logits || !v->is_used || n_bytes == 0)
				continue;
			n_sum += op == 0 ? n_bytes : 0;
			n_values += op == 0;
			if (v->first_op <= op && op <= v->last_op)
				n_alive += n_bytes;
		}
		n_most = n_alive > n_most ? n_alive : n_most;
	}
	graph_fini(&g);
	assert_int_equal(counters.scratch.n_rows, N_ROWS);
	assert_int_equal(counters.scratch.n_values, n_values);
	assert_int_equal(counters.scratch.sum_bytes, n_sum);
	/* The last place is not padded. */
	assert_in_range(counters.scratch.peak_bytes, n_most - 255, n_most);
	assert_true(n_sum > 3 * n_most);
}

/* A row that decodes, beside a prompt of another session: before it, behind it, or alone. */
static void test_bits_do_not_depend_on_a_batch(void **state)
{
	enum { N = 20, MAX = 65 };
	static const uint32_t sizes[] = {2, 15, 16, 17, 64, MAX};
	struct plan_row rows[MAX];
	float *alone = malloc(sizeof(float) * n_vocab);
	uint32_t slot = open_slot(N + 1);

	(void)state;
	assert_non_null(alone);
	for (uint32_t i = 0; i < N; i++)
		rows[i] = (struct plan_row){.token = tokens[i], .position = i, .slot = slot};
	step(rows, N, NULL, 0);
	const struct plan_row own = {.token = tokens[N], .position = N, .slot = slot};
	memcpy(alone, step(&own, 1, (const uint32_t[]){0}, 1), sizeof(float) * n_vocab);
	for (uint32_t i = 0; i < 2 * ARRAY_SIZE(sizes); i++) {
		uint32_t n = sizes[i / 2];
		uint32_t want = i % 2 ? n - 1 : 0;
		uint32_t other = open_slot(n);

		for (uint32_t k = 0; k + 1 < n; k++)
			rows[k + (want == 0)] = (struct plan_row){
				.token = tokens[k + 1], .position = k, .slot = other};
		rows[want] = own;
		if (memcmp(step(rows, n, &want, 1), alone, sizeof(float) * n_vocab))
			fail_msg("row %u of a step of %u: other logits", want, n);
		kv_close(kv, other);
	}
	kv_close(kv, slot);
	free(alone);
}

/* Three sessions, one at a time and then all in the same steps. */
static void test_bits_do_not_depend_on_neighbours(void **state)
{
	enum { N = 20 };
	struct plan_row rows[N_SLOTS * N], last[N_SLOTS];
	uint32_t slots[N_SLOTS], want[N_SLOTS];
	float *alone = malloc(sizeof(float) * n_vocab * N_SLOTS);

	(void)state;
	assert_non_null(alone);
	for (uint32_t s = 0; s < N_SLOTS; s++) {
		slots[s] = open_slot(N + 1);
		for (uint32_t i = 0; i < N; i++)
			rows[s * N + i] = (struct plan_row){
				.token = tokens[s * N + i], .position = i, .slot = slots[s]};
		last[s] = (struct plan_row){.token = tokens[s], .position = N, .slot = slots[s]};
		want[s] = 0;
		step(rows + s * N, N, NULL, 0);
		memcpy(alone + s * n_vocab, step(&last[s], 1, want, 1), sizeof(float) * n_vocab);
	}
	for (uint32_t s = 0; s < N_SLOTS; s++) {
		kv_close(kv, slots[s]);
		want[s] = s;
	}
	for (uint32_t s = 0; s < N_SLOTS; s++)
		assert_int_equal(open_slot(N + 1), slots[s]);
	step(rows, N_SLOTS * N, NULL, 0);
	const float *together = step(last, N_SLOTS, want, N_SLOTS);
	assert_memory_equal(together, alone, sizeof(float) * n_vocab * N_SLOTS);
	/* And a row that is not the first in its step, alone in wanting logits. */
	together = step(last, N_SLOTS, &want[2], 1);
	assert_memory_equal(together, alone + 2 * n_vocab, sizeof(float) * n_vocab);
	for (uint32_t s = 0; s < N_SLOTS; s++)
		kv_close(kv, slots[s]);
	free(alone);
}

/* ---- steps that run ahead ---- */

enum { N_AHEAD = 24, N_AHEAD_SLOTS = 2 };

struct ahead {
	uint32_t slots[N_AHEAD_SLOTS];
	uint32_t tokens[N_AHEAD_SLOTS][N_AHEAD + 2]; /* that were picked */
	float *logits;                               /* [N_AHEAD][N_AHEAD_SLOTS][n_vocab] */
};

/* Rows of step n; the tokens are those of the step before, which the host knows or not. */
static void fill_ahead(const struct ahead *a, uint32_t n, bool is_known, struct plan_row *ret_rows)
{
	for (uint32_t s = 0; s < N_AHEAD_SLOTS; s++)
		ret_rows[s] =
			(struct plan_row){.token = is_known ? a->tokens[s][n] : PLAN_PICKED | s,
				.position = n,
				.slot = a->slots[s]};
}

static void submit(const struct plan_row *rows, uint32_t n_rows)
{
	static const uint32_t want[N_AHEAD_SLOTS] = {0, 1 | PLAN_FIRST};
	struct err e = ERR_NULL;

	on_device_check(plan_submit(plan, rows, n_rows, want, n_rows, &e), &e, "submit");
}

/* The results of step n; its logits are asked for while another may be under way. */
static void finish_ahead(struct ahead *a, uint32_t n)
{
	const uint32_t n_row_logits = N_AHEAD_SLOTS * n_vocab;
	const float *logits = NULL;
	struct err e = ERR_NULL;

	on_device_check(plan_finish(plan, &e), &e, "finish");
	for (uint32_t s = 0; s < N_AHEAD_SLOTS; s++)
		a->tokens[s][n + 1] = plan_get_best(plan)[s * ABI_BEST_N].index;
	/* The second has asked for the first alone. */
	assert_int_not_equal(plan_get_best(plan)[1].index, ABI_BEST_NONE);
	assert_int_equal(plan_get_best(plan)[ABI_BEST_N + 1].index, ABI_BEST_NONE);
	on_device_check(plan_get_logits(plan, &e, &logits), &e, "logits");
	memcpy(a->logits + (uint64_t)n * n_row_logits, logits, sizeof(float) * n_row_logits);
	for (uint32_t s = 0; s < N_AHEAD_SLOTS; s++) {
		const float *row = logits + (uint64_t)s * n_vocab;
		uint32_t best = 0;

		for (uint32_t t = 1; t < n_vocab; t++)
			best = row[t] > row[best] ? t : best;
		assert_int_equal(a->tokens[s][n + 1], best);
	}
}

static void init_ahead(struct ahead *a)
{
	*a = (struct ahead){.logits = calloc((size_t)N_AHEAD * N_AHEAD_SLOTS * n_vocab, 4)};
	assert_non_null(a->logits);
	for (uint32_t s = 0; s < N_AHEAD_SLOTS; s++) {
		a->slots[s] = open_slot(N_AHEAD + 1);
		a->tokens[s][0] = tokens[s];
	}
}

static void close_ahead(struct ahead *a)
{
	for (uint32_t s = 0; s < N_AHEAD_SLOTS; s++)
		kv_close(kv, a->slots[s]);
}

/* One step after the other, with what the host has picked. */
static void run_behind(struct ahead *a)
{
	struct plan_row rows[N_AHEAD_SLOTS];

	init_ahead(a);
	for (uint32_t n = 0; n < N_AHEAD; n++) {
		fill_ahead(a, n, true, rows);
		submit(rows, N_AHEAD_SLOTS);
		finish_ahead(a, n);
	}
	close_ahead(a);
}

static void compare_ahead(const struct ahead *found, const struct ahead *expected)
{
	for (uint32_t n = 0; n < N_AHEAD; n++)
		for (uint32_t s = 0; s < N_AHEAD_SLOTS; s++)
			if (found->tokens[s][n + 1] != expected->tokens[s][n + 1])
				fail_msg("step %u, session %u: expected token %u, found %u", n, s,
					expected->tokens[s][n + 1], found->tokens[s][n + 1]);
}

static void check_running_ahead(void)
{
	const size_t n_bytes = sizeof(float) * N_AHEAD * N_AHEAD_SLOTS * n_vocab;
	struct plan_row rows[N_AHEAD_SLOTS];
	struct ahead expected, found;
	struct err e = ERR_NULL;

	run_behind(&expected);
	init_ahead(&found);
	fill_ahead(&found, 0, true, rows);
	submit(rows, N_AHEAD_SLOTS);
	for (uint32_t n = 0; n < N_AHEAD; n++) {
		if (n + 1 < N_AHEAD) {
			fill_ahead(&found, n + 1, false, rows);
			submit(rows, N_AHEAD_SLOTS);
			assert_int_equal(plan_get_n_flight(plan), 2);
		}
		/* The device may be done with both before the first is looked at. */
		if (n % 3 == 0)
			on_device_check(plan_wait(plan, &e), &e, "wait");
		finish_ahead(&found, n);
	}
	compare_ahead(&found, &expected);
	assert_memory_equal(found.logits, expected.logits, n_bytes);
	close_ahead(&found);
	free(found.logits);
	free(expected.logits);
}

/* A step is submitted before the tokens of the one before it are known: the same bits. */
static void test_bits_do_not_depend_on_running_ahead(void **state)
{
	(void)state;
	check_running_ahead();
}

/* The same where rows of a session each have commands of their own. */
static void test_spread_rows_run_ahead(void **state)
{
	const struct plan_params params = {.n_rows = N_ROWS,
		.n_logit_rows = N_LOGIT_ROWS,
		.kernels = PLAN_KERNELS_FAST,
		.attention = OP_ATTENTION_FUSED};
	struct plan *exact = plan;
	struct err e = ERR_NULL;

	(void)state;
	on_device_check(plan_new(device, model.weights, kv, &params, &e, &plan), &e, "plan");
	check_running_ahead();
	plan_free(plan);
	plan = exact;
}

/*
 * What ran ahead with another token than is then chosen is thrown away: its place is written again,
 * and whoever was computed beside it goes on.
 */
static void test_row_is_thrown_away(void **state)
{
	struct plan_row rows[N_AHEAD_SLOTS];
	struct ahead expected, found;

	(void)state;
	run_behind(&expected);
	init_ahead(&found);
	for (uint32_t n = 0; n < N_AHEAD; n++) {
		bool is_wrong = n % 2 == 0 && n + 1 < N_AHEAD;

		fill_ahead(&found, n, true, rows);
		submit(rows, N_AHEAD_SLOTS);
		if (is_wrong) {
			fill_ahead(&found, n + 1, false, rows);
			rows[0].token = (expected.tokens[0][n + 1] + 1) % n_vocab;
			submit(rows, N_AHEAD_SLOTS);
		}
		finish_ahead(&found, n);
		if (!is_wrong)
			continue;
		finish_ahead(&found, ++n);
		/* Of session 0 it was of another token: once more, alone. */
		rows[0].token = found.tokens[0][n] = expected.tokens[0][n];
		submit(rows, 1);
		struct err e = ERR_NULL;
		on_device_check(plan_finish(plan, &e), &e, "finish");
		found.tokens[0][n + 1] = plan_get_best(plan)->index;
	}
	compare_ahead(&found, &expected);
	close_ahead(&found);
	free(found.logits);
	free(expected.logits);
}

/* Nothing is under way behind two steps, and no token is picked where no step is before. */
static void test_running_ahead_refused(void **state)
{
	static const uint32_t want[] = {0};
	struct plan_row row = {.token = tokens[0]};
	struct err e = ERR_NULL;

	(void)state;
	row.slot = open_slot(4);
	assert_int_equal(plan_finish(plan, &e), -EINVAL);
	assert_true(plan_can_run_ahead(plan, N_ROWS));
	submit(&row, 1);
	row = (struct plan_row){.token = PLAN_PICKED | 1, .position = 1, .slot = row.slot};
	assert_int_equal(plan_submit(plan, &row, 1, want, 1, &e), -EINVAL);
	row.token = PLAN_PICKED;
	on_device_check(plan_submit(plan, &row, 1, NULL, 0, &e), &e, "submit");
	row.position = 2;
	row.token = tokens[1];
	assert_int_equal(plan_submit(plan, &row, 1, want, 1, &e), -EBUSY);
	on_device_check(plan_finish(plan, &e), &e, "finish");
	assert_non_null(plan_get_best(plan));
	on_device_check(plan_finish(plan, &e), &e, "finish");
	assert_null(plan_get_best(plan));
	row.token = PLAN_PICKED;
	assert_int_equal(plan_submit(plan, &row, 1, want, 1, &e), -EINVAL);
	assert_int_equal(plan_get_n_flight(plan), 0);
	kv_close(kv, row.slot);
}

static void check_refused(
	const struct plan_row *rows, uint32_t n_rows, const uint32_t *want, uint32_t n_want)
{
	struct err e = ERR_NULL;
	const float *logits = (const float *)&e;

	assert_int_equal(plan_step(plan, rows, n_rows, want, n_want, &e, &logits), -EINVAL);
	assert_string_not_equal(e.text, "");
	assert_ptr_equal(logits, &e);
}

static void test_step_refused(void **state)
{
	static const uint32_t want[] = {0, 0, 2, 3, 4};
	struct plan_row rows[N_ROWS + 1] = {0};

	(void)state;
	check_refused(rows, 0, NULL, 0);
	check_refused(rows, N_ROWS + 1, NULL, 0);
	check_refused(rows, 5, want, 2);
	check_refused(rows, 2, want + 1, 2);
	check_refused(rows, 5, want, N_LOGIT_ROWS + 1);
	rows[1].token = n_vocab;
	check_refused(rows, 2, NULL, 0);
	rows[1] = (struct plan_row){.position = N_CTX};
	check_refused(rows, 2, NULL, 0);
	rows[1] = (struct plan_row){.slot = N_SLOTS};
	check_refused(rows, 2, NULL, 0);
}

static void check_plan_refused(
	const struct weights *w, struct kv *k, const struct plan_params *params, int expected)
{
	struct err e = ERR_NULL;
	struct plan *p = NULL;

	assert_int_equal(plan_new(device, w, k, params, &e, &p), expected);
	assert_string_not_equal(e.text, "");
	assert_null(p);
}

static void test_plan_refused(void **state)
{
	struct plan_params params = {.n_rows = 0, .n_logit_rows = 1};
	struct kv_params kv_params = *kv_get_params(kv);
	struct kv *other = NULL;
	struct err e = ERR_NULL;

	(void)state;
	check_plan_refused(model.weights, kv, &params, -EINVAL);
	params = (struct plan_params){.n_rows = 4, .n_logit_rows = 5};
	check_plan_refused(model.weights, kv, &params, -EINVAL);
	params.n_logit_rows = 1;
	kv_params.n_layers--;
	on_device_check(kv_new(device, &kv_params, &e, &other), &e, "kv");
	check_plan_refused(model.weights, other, &params, -EINVAL);
	kv_free(other);

	/* Of an architecture that nobody knows, and with a matrix of another shape. */
	struct manifest_hparams hp = *model.weights->manifest->hparams;
	struct manifest manifest = *model.weights->manifest;
	struct weights w = *model.weights;
	w.manifest = &manifest;
	manifest.hparams = &hp;
	hp.architecture.n_bytes--;
	check_plan_refused(&w, kv, &params, -ENOTSUP);
	hp.architecture.n_bytes++;
	hp.n_ff += 32;
	hp.n_ff_expert += 32;
	check_plan_refused(&w, kv, &params, -EINVAL);
	hp.n_ff -= 32;
	hp.n_ff_expert -= 32;
	if (hp.n_expert == 0)
		return;
	hp.n_expert_used = hp.n_expert + 1;
	check_plan_refused(&w, kv, &params, -EINVAL);
	hp.n_expert = ABI_MAX_EXPERTS + 1;
	hp.n_expert_used = 1;
	check_plan_refused(&w, kv, &params, -EINVAL);
}

/* The next token of each of n slots, one row each; logits [n][n_vocab], the caller frees. */
static float *decode(const uint32_t *slots, uint32_t n, uint32_t *positions)
{
	struct plan_row rows[N_SLOTS];
	uint32_t want[N_SLOTS];
	uint64_t n_bytes = sizeof(float) * n * n_vocab;
	float *logits = malloc(n_bytes);

	assert_non_null(logits);
	for (uint32_t i = 0; i < n; i++) {
		rows[i] = (struct plan_row){.token = tokens[(positions[i] + 11 * i) % N_TOKENS],
			.position = positions[i],
			.slot = slots[i]};
		positions[i]++;
		want[i] = i;
	}
	memcpy(logits, step(rows, n, want, n), n_bytes);
	return logits;
}

enum { N_DECODE = 5 };

/*
 * Prompts of three sessions with fast kernels and this attention, then tokens of all three at once
 * and of one alone. Returns the dispatches of one row.
 */
static uint32_t run_fast(enum op_attention_kind attention, float *ret_logits[2 * N_DECODE])
{
	static const uint32_t n_prompt[N_SLOTS] = {30, 64, 5};
	const struct plan_params params = {.n_rows = N_ROWS,
		.n_logit_rows = N_LOGIT_ROWS,
		.kernels = PLAN_KERNELS_FAST,
		.attention = attention};
	struct plan *exact = plan;
	uint32_t slots[N_SLOTS], positions[N_SLOTS];
	struct err e = ERR_NULL;

	on_device_check(plan_new(device, model.weights, kv, &params, &e, &plan), &e, "plan");
	is_poisoned = true;
	poison = 0x7fc00000;
	for (uint32_t i = 0; i < N_SLOTS; i++) {
		struct plan_row rows[N_ROWS];

		slots[i] = open_slot(n_prompt[i] + 2 * N_DECODE);
		positions[i] = n_prompt[i];
		for (uint32_t j = 0; j < n_prompt[i]; j++)
			rows[j] = (struct plan_row){
				.token = tokens[j], .position = j, .slot = slots[i]};
		assert_null(step(rows, n_prompt[i], NULL, 0));
	}
	for (uint32_t i = 0; i < N_DECODE; i++)
		ret_logits[i] = decode(slots, N_SLOTS, positions);
	/* Choices may change at any time, also behind a step that has other commands than one row.
	 */
	on_device_check(plan_set_tuning(plan, tuning_new(), &e), &e, "tuning");
	assert_true(plan_get_n_dispatches(plan) > 0);
	for (uint32_t i = 0; i < N_DECODE; i++)
		ret_logits[N_DECODE + i] = decode(slots, 1, positions);
	for (uint32_t i = 0; i < N_SLOTS; i++)
		kv_close(kv, slots[i]);
	uint32_t n = plan_get_n_dispatches(plan);
	is_poisoned = false;
	plan_free(plan);
	plan = exact;
	return n;
}

/* Attention that does the rope before it and the bytes behind it: the same in fewer dispatches. */
static void test_fused_attention(void **state)
{
	float *apart[2 * N_DECODE], *fused[2 * N_DECODE], worst = 0.0f;
	const uint32_t n_layers = model.weights->manifest->hparams->n_layers;
	uint32_t n_apart = run_fast(OP_ATTENTION_SPLIT, apart);
	uint32_t n_fused = run_fast(OP_ATTENTION_FUSED, fused);

	(void)state;
	assert_int_equal(n_fused, n_apart - 2 * n_layers);
	for (uint32_t i = 0; i < 2 * N_DECODE; i++) {
		uint32_t n = n_vocab * (i < N_DECODE ? N_SLOTS : 1);
		for (uint32_t j = 0; j < n; j++)
			worst = fmaxf(worst, fabsf(fused[i][j] - apart[i][j]));
		free(apart[i]);
		free(fused[i]);
	}
	print_message("# logits differ by %.2g at most\n", (double)worst);
	assert_true(worst < 0.25f);
}

/*
 * 6 a layer: q k v, rope and KV, attention, output, gate and up, down; with experts the router too;
 * embedding, head and, in two, its best logits.
 */
static void test_dispatches(void **state)
{
	const struct manifest_hparams *hp = model.weights->manifest->hparams;

	(void)state;
	assert_int_equal(plan_get_n_dispatches(plan), (hp->n_expert ? 7 : 6) * hp->n_layers + 4);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_measured_beforehand),
		CASE(test_bits_do_not_depend_on_chunks),
		CASE(test_bits_do_not_depend_on_old_scratch),
		CASE(test_scratch_has_names),
		CASE(test_scratch_is_used_again),
		CASE(test_bits_do_not_depend_on_a_batch),
		CASE(test_bits_do_not_depend_on_neighbours),
		CASE(test_bits_do_not_depend_on_running_ahead),
		CASE(test_spread_rows_run_ahead),
		CASE(test_row_is_thrown_away),
		CASE(test_running_ahead_refused),
		CASE(test_step_refused),
		CASE(test_plan_refused),
		CASE(test_dispatches),
		CASE(test_fused_attention),
	};

	if (!getenv("WEIGHTD_TEST_DATA"))
		return CASE_SKIP;
	if (argc > 1)
		model_name = argv[1];
	if (argc > 2)
		kv_type = KV_LAYOUT_Q8_0;
	on_device_warm_up();
	return cmocka_run_group_tests(tests, init, fini);
}
