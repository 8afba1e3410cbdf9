/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the committed models run on the device, beside how fast a plain kernel reads the same
 * bytes in the same run: decode of one session, decode of several, prefill of 64 tokens. Prints a
 * table a model; each row is the median of several rounds with the slowest and fastest. Of experts,
 * a token reads those that it takes.
 *
 *	bench-engine [MODEL.gguf]...
 */
#include <inttypes.h>
#include <time.h>

#include "proto/manifest.h"
#include "tests/vulkan/model-on-device.h"
#include "tests/vulkan/on-device.h"
#include "workerd/kv.h"
#include "workerd/plan.h"
#include "workerd/weights.h"

static const uint32_t read_spirv[] =
#include "read.comp.inc"
	;

enum { N_ROUNDS = 7, N_PREFILL = 64, N_DECODE = 48, N_SESSIONS = 8, MAX_GROUPS = 16384 };

struct bench {
	struct vk_device *d;
	struct model_on_device model;
	struct kv *kv;
	struct plan *plan;
	uint32_t slots[N_SESSIONS];
	struct vk_pipeline *read;
	struct vk_memory *sums;
	struct vk_command *read_command;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void init_read(struct bench *b)
{
	struct vk_memory *weights = b->model.weights->allocs[0].memory;
	struct {
		uint64_t data;
		uint64_t sums;
		uint32_t n;
		uint32_t pad;
	} push = {.n = (uint32_t)(b->model.n_bytes / 16)};
	struct err e = ERR_NULL;

	b->read = ON_DEVICE_PIPELINE(b->d, read_spirv, sizeof(push));
	b->sums = on_device_memory(b->d, VK_MEMORY_SCRATCH, MAX_GROUPS * 32 * 4, false);
	b->read_command = on_device_command(b->d, 0);
	push.data = vk_memory_get_address(weights);
	push.sums = vk_memory_get_address(b->sums);
	vk_command_begin(b->read_command);
	/* Eight units or more an invocation; on a large device enough to keep its memory busy. */
	uint32_t n_groups = push.n / (32 * 8);
	vk_command_dispatch(b->read_command, b->read, &push, sizeof(push),
		n_groups < MAX_GROUPS ? n_groups : MAX_GROUPS, 1, 1);
	on_device_check(vk_command_end(b->read_command, &e), &e, "end");
}

/* What the table is of. */
struct setting {
	const char *label;
	bool has_host_experts;
	uint32_t cached_percent; /* of the bytes of host experts */
};

/* Bytes of experts, of all layers. */
static uint64_t count_expert_bytes(const struct bench *b)
{
	const struct manifest *m = b->model.weights->manifest;
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < m->n_tensors; i++)
		if (m->tensors[i].ne[2] > 1)
			n_bytes += m->tensors[i].n_bytes;
	return n_bytes;
}

static void init(struct bench *b, const char *path, const struct setting *s)
{
	struct err e = ERR_NULL;

	*b = (struct bench){.d = on_device_new()};
	if (s->has_host_experts)
		model_on_device_init_host_experts(&b->model, b->d, path);
	else
		model_on_device_init(&b->model, b->d, path);
	const struct manifest_hparams *hp = b->model.weights->manifest->hparams;
	struct kv_params kv = {.n_layers = hp->n_layers,
		.n_head_kv = hp->n_head_kv,
		.head_dim = hp->head_dim_k,
		.n_slots = N_SESSIONS,
		.n_ctx = 256,
		.n_tokens = 256 * N_SESSIONS};
	struct plan_params params = {.n_rows = N_PREFILL,
		.n_logit_rows = N_SESSIONS,
		.n_expert_cache_bytes = count_expert_bytes(b) * s->cached_percent / 100};
	on_device_check(kv_new(b->d, &kv, &e, &b->kv), &e, "kv");
	on_device_check(plan_new(b->d, b->model.weights, b->kv, &params, &e, &b->plan), &e, "plan");
	for (uint32_t i = 0; i < N_SESSIONS; i++) {
		on_device_check(kv_open(b->kv, &e, &b->slots[i]), &e, "open");
		on_device_check(kv_reserve(b->kv, b->slots[i], 256, &e), &e, "reserve");
	}
	init_read(b);
}

static void fini(struct bench *b)
{
	vk_command_free(b->read_command);
	vk_pipeline_free(b->read);
	vk_memory_free(b->sums);
	plan_free(b->plan);
	kv_free(b->kv);
	model_on_device_fini(&b->model);
	vk_device_free(b->d);
}

/* Seconds to read all weights once; the mean of some passes, as many as a decode makes. */
static double time_read(struct bench *b)
{
	struct err e = ERR_NULL;
	uint64_t ticket = 0;
	double start = now();

	for (int i = 0; i < N_DECODE; i++) {
		on_device_check(vk_submit(b->d, &b->read_command, 1, &e, &ticket), &e, "submit");
		on_device_check(vk_submit_wait(b->d, ticket, UINT64_MAX), &e, "wait");
	}
	return (now() - start) / N_DECODE;
}

/* Seconds a step of n_sessions rows, all with logits, behind N_PREFILL tokens. */
static double time_decode(struct bench *b, uint32_t n_sessions)
{
	struct plan_row rows[N_SESSIONS];
	uint32_t want[N_SESSIONS];
	const float *logits = NULL;
	struct err e = ERR_NULL;
	double start = now();

	for (uint32_t i = 0; i < N_DECODE; i++) {
		for (uint32_t s = 0; s < n_sessions; s++) {
			rows[s] = (struct plan_row){
				.token = 300 + i, .position = N_PREFILL + i, .slot = b->slots[s]};
			want[s] = s;
		}
		on_device_check(plan_step(b->plan, rows, n_sessions, want, n_sessions, &e, &logits),
			&e, "step");
	}
	return (now() - start) / N_DECODE;
}

/* Seconds for one step of N_PREFILL rows, the last with logits. */
static double time_prefill(struct bench *b)
{
	struct plan_row rows[N_PREFILL];
	uint32_t want = N_PREFILL - 1;
	const float *logits = NULL;
	struct err e = ERR_NULL;
	double start = now();

	for (uint32_t i = 0; i < N_PREFILL; i++)
		rows[i] = (struct plan_row){.token = 300 + i, .position = i, .slot = b->slots[0]};
	on_device_check(plan_step(b->plan, rows, N_PREFILL, &want, 1, &e, &logits), &e, "step");
	return now() - start;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Sorts the rounds' seconds and prints rates: n things a time, n_bytes read a time. */
static double print_row(
	const char *what, double seconds[N_ROUNDS], double n, double n_bytes, double read_seconds)
{
	qsort(seconds, N_ROUNDS, sizeof(seconds[0]), compare);
	double median = seconds[N_ROUNDS / 2];

	printf("%-24s %10.3f ms (%.3f to %.3f)", what, median * 1e3, seconds[0] * 1e3,
		seconds[N_ROUNDS - 1] * 1e3);
	if (n > 0)
		printf(" %9.1f tokens/s", n / median);
	if (n_bytes > 0)
		printf(" %7.2f GB/s", n_bytes / median * 1e-9);
	if (read_seconds > 0)
		printf(" %5.1f %% of reading", 100 * read_seconds / median);
	putchar('\n');
	return median;
}

/* Bytes of weights that one token reads: all, or of experts those that it takes. */
static double count_token_bytes(const struct bench *b)
{
	const struct manifest *m = b->model.weights->manifest;
	double n_bytes = 0;

	for (uint32_t i = 0; i < m->n_tensors; i++) {
		const struct manifest_tensor *t = &m->tensors[i];
		double part =
			t->ne[2] > 1 ? (double)m->hparams->n_expert_used / (double)t->ne[2] : 1;
		n_bytes += part * (double)t->n_bytes;
	}
	return n_bytes;
}

static void run(struct bench *b)
{
	double read[N_ROUNDS], one[N_ROUNDS], several[N_ROUNDS], prefill[N_ROUNDS];
	double n_bytes = (double)b->model.n_bytes;

	/* Drivers compile at the first use, or fetch from a cache. */
	double start = now();
	(void)time_prefill(b);
	(void)time_decode(b, 1);
	(void)time_decode(b, N_SESSIONS);
	(void)time_read(b);
	printf("first use of everything: %.0f ms\n", (now() - start) * 1e3);
	for (int i = 0; i < N_ROUNDS; i++) {
		read[i] = time_read(b);
		one[i] = time_decode(b, 1);
		several[i] = time_decode(b, N_SESSIONS);
		prefill[i] = time_prefill(b);
	}
	printf("%d rounds: median (fastest to slowest)\n", N_ROUNDS);
	double r = print_row("plain read of weights", read, 0, n_bytes, 0);
	double n_token_bytes = count_token_bytes(b);
	bool has_experts = b->model.weights->manifest->hparams->n_expert > 0;
	print_row("decode, 1 session", one, 1, n_token_bytes, r * n_token_bytes / n_bytes);
	/* Which experts several sessions share is theirs to say. */
	print_row("decode, 8 sessions", several, N_SESSIONS, has_experts ? 0 : n_bytes,
		has_experts ? 0 : r);
	print_row("prefill, 64 tokens", prefill, N_PREFILL, 0, 0);
	printf("dispatches a token: %u\n", plan_get_n_dispatches(b->plan));
}

static void print_cache(const struct bench *b)
{
	struct plan_counters counters;

	plan_get_counters(b->plan, &counters);
	const struct expert_cache_counters *c = &counters.experts;
	uint64_t n_wanted = c->n_found + c->n_fetched + c->n_direct;
	if (n_wanted)
		printf("cache: %" PRIu64 " slots, %.1f %% of %" PRIu64 " experts found, %" PRIu64
		       " fetched, %" PRIu64 " read where they are\n",
			c->n_slots, 100.0 * (double)c->n_found / (double)n_wanted, n_wanted,
			c->n_fetched, c->n_direct);
}

static bool bench_setting(const char *path, const char *label, const struct setting *s)
{
	static struct bench b;

	init(&b, path, s);
	const struct vk_device_info *info = vk_device_get_info(b.d);
	printf("%s, %s\n%s%s: %" PRIu64 " bytes of weights\n", info->name, info->driver, label,
		s->label, b.model.n_bytes);
	run(&b);
	print_cache(&b);
	bool has_experts = count_expert_bytes(&b) > 0;
	fini(&b);
	return has_experts;
}

static void bench_model(const char *path, const char *label)
{
	static const struct setting settings[] = {
		{"", false, 0},
		{", experts in host memory", true, 0},
		{", experts in host memory, half of them cached", true, 50},
		{", experts in host memory, all of them cached", true, 100},
	};

	for (uint32_t i = 0; i < ARRAY_SIZE(settings); i++)
		if (!bench_setting(path, label, &settings[i]))
			return;
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"atlas-dense-q8_0.gguf", "atlas-moe-q8_0.gguf"};
	const char *data = getenv("WEIGHTD_TEST_DATA");
	char path[4096];

	if (argc < 2 && !data)
		return CASE_SKIP;
	on_device_warm_up();
	for (int i = 1; i < argc; i++)
		bench_model(argv[i], argv[i]);
	for (uint32_t i = 0; argc < 2 && i < ARRAY_SIZE(names); i++) {
		snprintf(path, sizeof(path), "%s/models/%s", data, names[i]);
		bench_model(path, names[i]);
	}
	return 0;
}
