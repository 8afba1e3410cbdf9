/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wherever weights are, and whether they are read there or copied ahead, the logits are the same
 * bits: those of the model in device memory.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "proto/manifest.h"
#include "tests/vulkan/model-on-device.h"
#include "tests/vulkan/on-device.h"
#include "workerd/kv.h"
#include "workerd/plan.h"
#include "workerd/weights.h"

enum { N_ROWS = 64, N_PROMPT = 75, N_DECODED = 5, N_CTX = 128, N_SLOTS = 2 };
enum { N_PLACEMENTS = MANIFEST_PLACEMENT_PAGED + 1 };

/* A model with its whole image in every placement, and each tensor in one of them. */
struct placed {
	struct model_on_device model;
	struct manifest_tensor *tensors;
	struct manifest_alloc allocs[N_PLACEMENTS];
	struct manifest manifest;
	struct weights weights;
	float *expected; /* [1 + N_DECODED][n_vocab], of the model in device memory */
	uint32_t tokens[N_PROMPT + N_DECODED];
};

static struct vk_device *device;
static struct placed dense, moe;

/* No number is left where the values of the step before were. */
static void poison(const struct plan *plan)
{
	struct vk_command *c = on_device_command(device, 0);
	struct vk_slice values = {0};

	plan_get_values(plan, &values);
	vk_command_begin(c);
	vk_command_fill(c, &values, 0xffffffff);
	on_device_run(device, c);
	vk_command_free(c);
}

/*
 * The plan's answers: logits after the prompt and after each greedy token. Where weights are not on
 * the device, scratch is poisoned before each step.
 */
static float *compute(
	struct placed *p, const struct weights *w, uint32_t stream_rows, struct plan_counters *ret)
{
	const struct manifest_hparams *hp = w->manifest->hparams;
	struct kv_params kv_params = {.n_layers = hp->n_layers,
		.n_head_kv = hp->n_head_kv,
		.head_dim = hp->head_dim_k,
		.n_slots = N_SLOTS,
		.n_ctx = N_CTX,
		.n_tokens = N_CTX * N_SLOTS};
	struct plan_params params = {.n_rows = N_ROWS,
		.n_logit_rows = 2,
		.stream_rows = stream_rows,
		.kernels = PLAN_KERNELS_EXACT};
	float *found = calloc(1 + N_DECODED, sizeof(float) * hp->n_vocab);
	struct plan_row rows[N_ROWS];
	const float *logits = NULL;
	struct plan *plan = NULL;
	struct kv *kv = NULL;
	struct err e = ERR_NULL;
	uint32_t slot = 0;

	assert_non_null(found);
	on_device_check(kv_new(device, &kv_params, &e, &kv), &e, "kv");
	on_device_check(plan_new(device, w, kv, &params, &e, &plan), &e, "plan");
	assert_true(plan_get_n_dispatches(plan) > hp->n_layers);
	assert_int_equal(kv_get_free_pages(kv), N_CTX * N_SLOTS / KV_PAGE_TOKENS);
	on_device_check(kv_open(kv, &e, &slot), &e, "open");
	on_device_check(kv_reserve(kv, slot, N_PROMPT + N_DECODED, &e), &e, "reserve");
	for (uint32_t at = 0, n, step = 0; at < N_PROMPT + N_DECODED; at += n, step++) {
		n = at >= N_PROMPT ? 1 : N_PROMPT - at < N_ROWS ? N_PROMPT - at : N_ROWS;
		uint32_t want = n - 1, n_want = at + n >= N_PROMPT;
		for (uint32_t i = 0; i < n; i++)
			rows[i] = (struct plan_row){
				.token = p->tokens[at + i], .position = at + i, .slot = slot};
		if (w == &p->weights)
			poison(plan);
		on_device_check(plan_step(plan, rows, n, &want, n_want, &e, &logits), &e, "step");
		if (!n_want)
			continue;
		memcpy(found + (at + n - N_PROMPT) * hp->n_vocab, logits,
			sizeof(float) * hp->n_vocab);
	}
	plan_get_counters(plan, ret);
	kv_close(kv, slot);
	plan_free(plan);
	kv_free(kv);
	return found;
}

static struct vk_memory *put_on_host(const struct model_on_device *m)
{
	struct vk_memory *memory = on_device_memory(device, VK_MEMORY_STAGING, m->n_bytes, false);

	memcpy(on_device_map(memory), m->image, m->n_bytes);
	return memory;
}

static int put_in_file(const struct model_on_device *m)
{
	int fd = memfd_create("paged", MFD_CLOEXEC);

	assert_int_equal(pwrite(fd, m->image, m->n_bytes, 0), m->n_bytes);
	return fd;
}

static void init_placed(struct placed *p, const char *name)
{
	struct plan_counters counters;
	char path[4096];

	snprintf(path, sizeof(path), "%s/models/%s", getenv("WEIGHTD_TEST_DATA"), name);
	model_on_device_init(&p->model, device, path);
	const struct manifest *m = p->model.weights->manifest;
	p->manifest = *m;
	p->tensors = calloc(m->n_tensors, sizeof(*p->tensors));
	assert_non_null(p->tensors);
	memcpy(p->tensors, m->tensors, m->n_tensors * sizeof(*p->tensors));
	p->manifest.tensors = p->tensors;
	p->manifest.allocs = p->allocs;
	p->manifest.n_allocs = N_PLACEMENTS;
	p->weights = (struct weights){.manifest = &p->manifest,
		.n_allocs = N_PLACEMENTS,
		.allocs = calloc(N_PLACEMENTS, sizeof(struct weights_alloc))};
	assert_non_null(p->weights.allocs);
	for (uint32_t i = 1; i < N_PLACEMENTS; i++)
		p->allocs[i].n_bytes = p->model.n_bytes;
	for (uint32_t i = 0; i < N_PLACEMENTS; i++)
		p->weights.allocs[i] = (struct weights_alloc){.placement = i, .fd = -1};
	p->weights.allocs[MANIFEST_PLACEMENT_DEVICE].memory = p->model.weights->allocs[0].memory;
	p->weights.allocs[MANIFEST_PLACEMENT_PINNED].memory = put_on_host(&p->model);
	p->weights.allocs[MANIFEST_PLACEMENT_STAGED].memory = put_on_host(&p->model);
	p->weights.allocs[MANIFEST_PLACEMENT_PAGED].fd = put_in_file(&p->model);
	for (uint32_t i = 0; i < N_PROMPT + N_DECODED; i++)
		p->tokens[i] = (i * 2654435761u >> 7) % m->hparams->n_vocab;
	p->expected = compute(p, p->model.weights, 0, &counters);
	assert_int_equal(counters.stream_rows, PLAN_NEVER_STREAM);
}

static void fini_placed(struct placed *p)
{
	vk_memory_free(p->weights.allocs[MANIFEST_PLACEMENT_PINNED].memory);
	vk_memory_free(p->weights.allocs[MANIFEST_PLACEMENT_STAGED].memory);
	close(p->weights.allocs[MANIFEST_PLACEMENT_PAGED].fd);
	free(p->weights.allocs);
	model_on_device_fini(&p->model);
	free(p->tensors);
	free(p->expected);
}

static int init(void **state)
{
	(void)state;
	device = on_device_new();
	init_placed(&dense, "atlas-dense-q8_0.gguf");
	init_placed(&moe, "atlas-moe-q8_0.gguf");
	return 0;
}

static int fini(void **state)
{
	(void)state;
	fini_placed(&dense);
	fini_placed(&moe);
	vk_device_free(device);
	return 0;
}

/* A placement of a tensor, by its layer (negative: none) and its place in the manifest. */
typedef uint32_t (*place_fn)(int layer, uint32_t index);

static void place(struct placed *p, place_fn fn)
{
	for (uint32_t i = 0; i < p->manifest.n_tensors; i++) {
		const struct manifest_string *s = &p->tensors[i].name;
		char name[128];
		int layer = -1;

		snprintf(name, sizeof(name), "%.*s", (int)s->n_bytes,
			manifest_get_string(&p->manifest, *s));
		(void)sscanf(name, "blk.%d.", &layer);
		p->tensors[i].alloc = fn(layer, i);
	}
}

static void check_same(struct placed *p, uint32_t stream_rows, struct plan_counters *ret)
{
	uint32_t n_vocab = p->manifest.hparams->n_vocab;
	float *found = compute(p, &p->weights, stream_rows, ret);

	for (uint32_t i = 0; i < (1 + N_DECODED) * n_vocab; i++)
		if (memcmp(&found[i], &p->expected[i], sizeof(float)))
			fail_msg("streamed from %u rows on: logits %u, token %u: expected %.9g, "
				 "found %.9g",
				stream_rows, i / n_vocab, i % n_vocab, (double)p->expected[i],
				(double)found[i]);
	free(found);
}

static uint32_t all_pinned(int layer, uint32_t index)
{
	(void)layer;
	(void)index;
	return MANIFEST_PLACEMENT_PINNED;
}

static uint32_t all_staged(int layer, uint32_t index)
{
	(void)layer;
	(void)index;
	return MANIFEST_PLACEMENT_STAGED;
}

static uint32_t all_paged(int layer, uint32_t index)
{
	(void)layer;
	(void)index;
	return MANIFEST_PLACEMENT_PAGED;
}

/* Some tensors of every second layer, and neither the embedding nor the head. */
static uint32_t some_staged(int layer, uint32_t index)
{
	return layer % 2 == 1 && index % 3 ? MANIFEST_PLACEMENT_STAGED : MANIFEST_PLACEMENT_DEVICE;
}

/* What the layers do not have. */
static uint32_t head_staged(int layer, uint32_t index)
{
	(void)index;
	return layer < 0 ? MANIFEST_PLACEMENT_STAGED : MANIFEST_PLACEMENT_DEVICE;
}

/* Every placement in every layer. */
static uint32_t mixed(int layer, uint32_t index)
{
	return MANIFEST_PLACEMENT_DEVICE + (uint32_t)(layer + 1 + (int)index) % 4;
}

static void test_read_in_place(void **state)
{
	static const place_fn fns[] = {all_pinned, all_staged, some_staged};
	struct plan_counters c;

	(void)state;
	for (uint32_t i = 0; i < ARRAY_SIZE(fns); i++) {
		place(&dense, fns[i]);
		place(&moe, fns[i]);
		check_same(&dense, PLAN_NEVER_STREAM, &c);
		assert_int_equal(c.stream_bytes, 0);
		check_same(&moe, PLAN_NEVER_STREAM, &c);
		assert_int_equal(c.stream_bytes, 0);
	}
}

/* Bytes of the layers' host-placed tensors, and of the head's. */
static void count_bytes(const struct placed *p, uint64_t *ret_layers, uint64_t *ret_head)
{
	*ret_layers = *ret_head = 0;
	for (uint32_t i = 0; i < p->manifest.n_tensors; i++) {
		const struct manifest_tensor *t = &p->tensors[i];
		const char *name = (const char *)manifest_get_string(&p->manifest, t->name);
		bool is_embedding = !strncmp(name, "token_embd", 10);

		if (t->alloc == MANIFEST_PLACEMENT_DEVICE)
			continue;
		if (!strncmp(name, "blk.", 4))
			*ret_layers += t->n_bytes;
		else if (!is_embedding || p->manifest.hparams->tied_embeddings)
			*ret_head += t->n_bytes;
	}
}

/* What every step copies: not less than the weights, nor more than some padding with them. */
static void check_copied(
	const struct placed *p, uint64_t found, uint32_t n_bodies, uint32_t n_heads)
{
	uint64_t layers, head;

	count_bytes(p, &layers, &head);
	uint64_t expected = n_bodies * layers + n_heads * head;
	if (found < expected || found > expected + expected / 20)
		fail_msg("copied: expected about %ju bytes, found %ju", (uintmax_t)expected,
			(uintmax_t)found);
}

static void test_streamed(void **state)
{
	struct placed *const models[] = {&dense, &moe};
	struct plan_counters c;

	(void)state;
	for (uint32_t i = 0; i < ARRAY_SIZE(models); i++) {
		place(models[i], all_staged);
		check_same(models[i], 1, &c);
		assert_int_equal(c.stream_steps, 2 + N_DECODED);
		check_copied(models[i], c.stream_bytes, 2 + N_DECODED, 1 + N_DECODED);
		/* The first step of the prompt alone: the others and every head have fewer rows. */
		place(models[i], all_pinned);
		check_same(models[i], N_ROWS, &c);
		assert_int_equal(c.stream_steps, 1);
		check_copied(models[i], c.stream_bytes, 1, 0);
		place(models[i], some_staged);
		check_same(models[i], 2, &c);
		assert_int_equal(c.stream_steps, 2);
		assert_true(c.stream_bytes > 0 && c.paged_bytes == 0 && c.stream_ns > 0);
	}
}

static void test_paged(void **state)
{
	struct placed *const models[] = {&dense, &moe};
	struct plan_counters c;

	(void)state;
	for (uint32_t i = 0; i < ARRAY_SIZE(models); i++) {
		place(models[i], all_paged);
		check_same(models[i], PLAN_NEVER_STREAM, &c);
		assert_int_equal(c.stream_rows, 1);
		assert_int_equal(c.stream_bytes, 0);
		check_copied(models[i], c.paged_bytes, 2 + N_DECODED, 1 + N_DECODED);
		place(models[i], mixed);
		check_same(models[i], 0, &c);
		assert_true(c.stream_bytes > 0 && c.paged_bytes > 0);
	}
}

/* What was submitted: transfers, and the compute behind each. */
struct submission {
	enum vk_queue queue;
	uint64_t wait;
	uint64_t ticket;
};
static struct submission submissions[4096];
static uint32_t n_submissions;

int __real_vk_submit_on(struct vk_device *d, enum vk_queue queue,
	struct vk_command *const *commands, uint32_t n_commands, const uint64_t *waits,
	uint32_t n_waits, struct err *ret_err, uint64_t *ret_ticket);
int __wrap_vk_submit_on(struct vk_device *d, enum vk_queue queue,
	struct vk_command *const *commands, uint32_t n_commands, const uint64_t *waits,
	uint32_t n_waits, struct err *ret_err, uint64_t *ret_ticket);

int __wrap_vk_submit_on(struct vk_device *d, enum vk_queue queue,
	struct vk_command *const *commands, uint32_t n_commands, const uint64_t *waits,
	uint32_t n_waits, struct err *ret_err, uint64_t *ret_ticket)
{
	int r = __real_vk_submit_on(
		d, queue, commands, n_commands, waits, n_waits, ret_err, ret_ticket);

	assert_true(n_waits <= 1 && n_submissions < ARRAY_SIZE(submissions));
	submissions[n_submissions++] = (struct submission){
		.queue = queue, .wait = n_waits ? waits[0] : 0, .ticket = *ret_ticket};
	return r;
}

/*
 * A driver with one queue computes rightly without any wait, so the waits themselves are looked at:
 * a layer's compute waits for its copies, they for the compute that used their slot, two before.
 */
static void test_waits(void **state)
{
	uint64_t busy[2] = {0}; /* the compute that used the slot last */
	uint32_t n_transfers = 0, n_same_slot = 0, before = 1;
	struct plan_counters c;

	(void)state;
	place(&dense, all_staged);
	n_submissions = 0;
	check_same(&dense, 1, &c);
	for (uint32_t i = 0; i < n_submissions; i++) {
		const struct submission *s = &submissions[i];
		uint32_t slot = s->wait == busy[1 - before] ? 1 - before : before;

		if (s->queue != VK_QUEUE_TRANSFER)
			continue;
		n_transfers++;
		n_same_slot += slot == before;
		assert_int_equal(s->wait, busy[slot]);
		assert_true(i + 1 < n_submissions);
		assert_int_equal(s[1].queue, VK_QUEUE_COMPUTE);
		assert_int_equal(s[1].wait, s->ticket);
		busy[slot] = s[1].ticket;
		before = slot;
	}
	/* A step's first layer may have the slot of the head before it. */
	assert_true(n_same_slot <= 1 + N_DECODED);
	assert_true(n_transfers > dense.manifest.hparams->n_layers * (2 + N_DECODED));
}

static void test_measured(void **state)
{
	struct plan_counters c;

	(void)state;
	place(&dense, all_staged);
	check_same(&dense, 0, &c);
	assert_true(c.stream_rows >= 1 && c.stream_rows <= 128);
	/* Without a layer to measure, from one row on. */
	place(&dense, head_staged);
	check_same(&dense, 0, &c);
	assert_int_equal(c.stream_rows, 1);
}

/* A plan for few rows of the dense model as it is placed, and a slot. */
static void open_plan(struct kv **ret_kv, struct plan **ret_plan)
{
	const struct manifest_hparams *hp = dense.manifest.hparams;
	struct kv_params kv_params = {.n_layers = hp->n_layers,
		.n_head_kv = hp->n_head_kv,
		.head_dim = hp->head_dim_k,
		.n_slots = 1,
		.n_ctx = N_CTX,
		.n_tokens = N_CTX};
	struct plan_params params = {
		.n_rows = 4, .n_logit_rows = 1, .stream_rows = 4, .kernels = PLAN_KERNELS_EXACT};
	struct err e = ERR_NULL;
	uint32_t slot = 0;

	on_device_check(kv_new(device, &kv_params, &e, ret_kv), &e, "kv");
	on_device_check(
		plan_new(device, &dense.weights, *ret_kv, &params, &e, ret_plan), &e, "plan");
	on_device_check(kv_open(*ret_kv, &e, &slot), &e, "open");
	on_device_check(kv_reserve(*ret_kv, slot, 1, &e), &e, "reserve");
}

/* A file that was cut ends the step with a reason, and nothing runs on behind it. */
static void test_paged_file_is_cut(void **state)
{
	int fd = dense.weights.allocs[MANIFEST_PLACEMENT_PAGED].fd;
	struct plan_row row = {.token = 1};
	struct plan *plan = NULL;
	struct kv *kv = NULL;
	struct err e = ERR_NULL;
	const float *logits = NULL;

	(void)state;
	place(&dense, all_paged);
	open_plan(&kv, &plan);
	assert_int_equal(ftruncate(fd, (off_t)dense.model.n_bytes / 2), 0);
	assert_int_equal(plan_step(plan, &row, 1, NULL, 0, &e, &logits), -EIO);
	assert_non_null(strstr(e.text, "the file ends before them"));
	plan_free(plan);
	kv_free(kv);
	assert_int_equal(
		pwrite(fd, dense.model.image, dense.model.n_bytes, 0), dense.model.n_bytes);
}

/* Every placement is measured by what it has, and the counters of the steps stay. */
static void test_bench_memory(void **state)
{
	struct bench_memory_rate rates[BENCH_MEMORY_MAX_RATES];
	struct plan_counters counters;
	struct plan *plan = NULL;
	struct kv *kv = NULL;
	struct err e = ERR_NULL;
	uint32_t n = 0;

	(void)state;
	place(&dense, mixed);
	open_plan(&kv, &plan);
	on_device_check(plan_bench_memory(plan, &e, rates, &n), &e, "bench");
	assert_int_equal(n, 4);
	for (uint32_t i = 0; i < n; i++) {
		bool is_paged = rates[i].placement == MANIFEST_PLACEMENT_PAGED;

		assert_int_equal(rates[i].placement, MANIFEST_PLACEMENT_DEVICE + i);
		assert_int_equal(rates[i].n_bytes, dense.model.n_bytes);
		assert_int_equal(rates[i].read_ns > 0, !is_paged);
		assert_int_equal(rates[i].copy_ns > 0, !is_paged);
		assert_int_equal(rates[i].n_stream_bytes > 0, i > 0);
		assert_int_equal(rates[i].stream_ns > 0, i > 0);
	}
	plan_get_counters(plan, &counters);
	assert_int_equal(counters.stream_bytes + counters.paged_bytes, 0);
	plan_free(plan);
	kv_free(kv);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		CASE(test_read_in_place),
		CASE(test_streamed),
		CASE(test_paged),
		CASE(test_waits),
		CASE(test_measured),
		CASE(test_paged_file_is_cut),
		CASE(test_bench_memory),
	};

	if (!getenv("WEIGHTD_TEST_DATA"))
		return CASE_SKIP;
	on_device_warm_up();
	return cmocka_run_group_tests(tests, init, fini);
}
