/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What memory gives to ops that wait for each other, and so the least that a layer of a decode can
 * take: phases that only read as many bytes as the weights of each op, as a dispatch each with a
 * barrier between, and as phases of one kernel whose workgroups wait for each other ("one kernel";
 * "ahead": with the next phase's first loads before the wait). The sizes are those of a layer of an
 * 8B model in Q4_K_M, then of its smaller ops alone, then nothing at all.
 *
 *	bench-phases                       WEIGHTD_TEST_DEVICE as for the tests
 *
 * One kernel needs all of its workgroups to run at once, which nothing promises: it is not measured
 * on a software driver.
 */
#include <math.h>

#include "tests/vulkan/on-device.h"
#include "workerd/warm.h"

static const uint32_t spirv[] =
#include "phases.comp.inc"
	;

enum { N_SIZES = 5, N_LAYERS = 16, N_PHASES = N_SIZES * N_LAYERS, N_ROUNDS = 12 };
enum { UNIT_BYTES = 16, ARRIVED_BYTES = 256, MAX_INVOCATIONS = 1 << 20 };

/* As Push in phases.comp. */
struct push {
	uint64_t data;
	uint64_t sums;
	uint64_t arrived;
	uint32_t n_phases;
	uint32_t first;
	uint32_t n_units[N_SIZES];
	uint32_t pad;
};

struct sizes {
	const char *name;
	double mb[N_SIZES];
};

/* Q, k and v; attention; output; gate and up; down. */
static const struct sizes all_sizes[] = {
	{"layer", {15.0, 0, 9.4, 66.0, 41.0}},
	{"9.4 MB", {9.4, 9.4, 9.4, 9.4, 9.4}},
	{"33 MB", {33, 33, 33, 33, 33}},
	{"nothing", {0}},
};

struct way {
	const char *name;
	uint32_t is_one;
	uint32_t is_ahead;
};

static const struct way ways[] = {
	{"dispatches", 0, 0}, {"one kernel", 1, 0}, {"one kernel, ahead", 1, 1}};

struct grid {
	uint32_t local_size;
	uint32_t n_groups;
};

static const struct grid grids[] = {
	{256, 132}, {256, 264}, {256, 528}, {256, 1056}, {512, 264}, {1024, 132}};

struct bench {
	struct vk_device *d;
	struct vk_memory *data;
	struct vk_memory *words;
	struct warm *warm;
	bool is_software;
};

static void init(struct bench *b)
{
	struct err e = ERR_NULL;
	double mb = 0;

	b->d = on_device_new();
	b->is_software = vk_device_get_info(b->d)->is_software;
	for (int i = 0; i < N_SIZES; i++)
		mb = fmax(mb, all_sizes[2].mb[i]);
	b->data = on_device_memory(b->d, VK_MEMORY_SCRATCH,
		b->is_software ? 1 << 20 : (uint64_t)(mb * 1e6) * N_PHASES, false);
	b->words = on_device_memory(
		b->d, VK_MEMORY_SCRATCH, ARRIVED_BYTES + 4 * MAX_INVOCATIONS, false);
	on_device_check(warm_new(b->d, &e, &b->warm), &e, "warm");
}

static void fini(struct bench *b)
{
	warm_free(b->warm);
	vk_memory_free(b->words);
	vk_memory_free(b->data);
	vk_device_free(b->d);
}

static uint32_t get_units(const struct bench *b, const struct sizes *s, int i)
{
	/* A software driver is here to see that it runs. */
	return b->is_software ? (uint32_t)s->mb[i] * 10 : (uint32_t)(s->mb[i] * 1e6 / UNIT_BYTES);
}

static void record(const struct bench *b, const struct sizes *s, const struct way *w,
	const struct grid *g, const struct vk_pipeline *p, struct vk_command *c)
{
	struct vk_slice arrived = {.memory = b->words, .n_bytes = ARRIVED_BYTES};
	struct push push = {
		.data = vk_memory_get_address(b->data),
		.sums = vk_memory_get_address(b->words) + ARRIVED_BYTES,
		.arrived = vk_memory_get_address(b->words),
		.n_phases = w->is_one ? N_PHASES : 1,
	};

	for (int i = 0; i < N_SIZES; i++)
		push.n_units[i] = get_units(b, s, i);
	vk_command_begin(c);
	vk_command_fill(c, &arrived, 0);
	vk_command_barrier(c);
	vk_command_stamp(c, 0);
	for (int i = 0; i < (w->is_one ? 1 : N_PHASES); i++) {
		if (!w->is_one)
			push.n_units[0] = get_units(b, s, i % N_SIZES);
		vk_command_dispatch(c, p, &push, sizeof(push), g->n_groups, 1, 1);
		vk_command_barrier(c);
		push.first += push.n_units[0];
	}
	vk_command_stamp(c, 1);
}

/* The fastest round, in microseconds. */
static double measure(
	struct bench *b, const struct sizes *s, const struct way *w, const struct grid *g)
{
	struct vk_pipeline_params params = {.name = "phases",
		.spirv = spirv,
		.n_spirv_bytes = sizeof(spirv),
		.n_push_bytes = sizeof(struct push),
		.n_spec = 3,
		.spec = {g->local_size, w->is_one, w->is_ahead}};
	struct vk_command *c = on_device_command(b->d, 2);
	struct vk_pipeline *p = NULL;
	struct err e = ERR_NULL;
	uint64_t ns[2];
	double us = INFINITY;

	on_device_check(vk_pipeline_new(b->d, &params, &e, &p), &e, "pipeline");
	record(b, s, w, g, p, c);
	on_device_check(vk_command_end(c, &e), &e, "end");
	if (!b->is_software)
		on_device_check(warm_up(b->warm, &e), &e, "warm");
	for (int i = 0; i < (b->is_software ? 1 : N_ROUNDS); i++) {
		uint64_t ticket;
		on_device_check(vk_submit(b->d, &c, 1, &e, &ticket), &e, "submit");
		on_device_check(vk_submit_wait(b->d, ticket, UINT64_MAX), &e, "wait");
		on_device_check(vk_command_get_stamps(c, ns), &e, "stamps");
		us = fmin(us, (double)(ns[1] - ns[0]) * 1e-3);
	}
	vk_command_free(c);
	vk_pipeline_free(p);
	return us;
}

static void print(struct bench *b, const struct sizes *s, const struct way *w)
{
	struct grid best = {0};
	double us = INFINITY, n_bytes = 0;

	for (size_t i = 0; i < sizeof(grids) / sizeof(grids[0]); i++) {
		const struct grid *g = &grids[i];
		/* So many run at once on any core of 2048 invocations with registers to spare. */
		if (w->is_one && g->local_size * g->n_groups > 132 * 1024)
			continue;
		double t = measure(b, s, w, g);
		if (t < us)
			best = *g;
		us = fmin(us, t);
	}
	for (int i = 0; i < N_SIZES; i++)
		n_bytes += (double)get_units(b, s, i) * UNIT_BYTES * N_LAYERS;
	printf("%-8s %-18s %4u x %-4u %8.2f us a phase %8.2f us for %d %8.0f GB/s\n", s->name,
		w->name, best.n_groups, best.local_size, us / N_PHASES, us / N_LAYERS, N_SIZES,
		n_bytes / us * 1e-3);
	fflush(stdout);
}

int main(void)
{
	static struct bench b;

	on_device_warm_up();
	init(&b);
	for (size_t i = 0; i < sizeof(all_sizes) / sizeof(all_sizes[0]); i++)
		for (size_t k = 0; k < sizeof(ways) / sizeof(ways[0]); k++)
			if (!ways[k].is_one || !b.is_software)
				print(&b, &all_sizes[i], &ways[k]);
	fini(&b);
	return 0;
}
