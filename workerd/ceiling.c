/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ceiling.h"

#include <errno.h>
#include <stdint.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "shaders/kernels.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/ops/pool.h"
#include "workerd/warm.h"

enum { N_RUNS = 5, SOFTWARE_N_RUNS = 2, N_STAMPS = 2, N_SUBGROUPS = 4 };

/* Larger than caches (50 MB on an H200); a software driver's is small, and so is its patience. */
enum { READ_BYTES = 1 << 30, SOFTWARE_READ_BYTES = 32 << 20, MIN_READ_BYTES = 16 << 20 };
enum { UNIT_BYTES = 16, UNITS_PER_LANE = 32, MAX_GROUPS = 65535 };

/*
 * Workgroups that keep every core of the largest device busy in several waves, and rounds that take
 * it some milliseconds. A software driver leaves loops at 65,535 rounds (docs/hacking.md).
 */
enum { FMA_GROUPS = 8192, FMA_ROUNDS = 1024, SOFTWARE_FMA_GROUPS = 64, SOFTWARE_FMA_ROUNDS = 2048 };
/* 16 workgroups a core of an H200, some milliseconds. */
enum { MATRIX_GROUPS = 2112, MATRIX_ROUNDS = 2048 };
enum { SOFTWARE_MATRIX_GROUPS = 4, SOFTWARE_MATRIX_ROUNDS = 64 };

struct bench {
	struct vk_device *d;
	struct op_pool *pool;
	struct warm *warm;
	struct vk_memory *memory;
	uint64_t n_bytes; /* of it */
	struct err *err;
};

/* The shortest of some runs of one dispatch, of a device that is awake. */
static int time_kernel(struct bench *b, const struct op_pool_kernel *kernel, const void *push,
	uint32_t n_groups, uint64_t *ret_ns)
{
	struct vk_command *c = NULL;
	uint64_t best_ns = UINT64_MAX;
	int n_runs = op_pool_is_software(b->pool) ? SOFTWARE_N_RUNS : N_RUNS;
	int r = vk_command_new(b->d, N_STAMPS, b->err, &c);

	if (r)
		return r;
	vk_command_begin(c);
	vk_command_stamp(c, 0);
	r = op_pool_dispatch(b->pool, c, kernel, push, n_groups * N_SUBGROUPS, 1, b->err);
	vk_command_stamp(c, 1);
	int ended = vk_command_end(c, b->err);
	r = r ? r : ended;
	if (!r)
		r = warm_up(b->warm, b->err);
	for (int i = 0; !r && i < n_runs; i++) {
		uint64_t stamps[N_STAMPS], ticket = 0;

		r = vk_submit(b->d, &c, 1, b->err, &ticket);
		if (!r)
			r = vk_submit_wait(b->d, ticket, UINT64_MAX);
		if (!r)
			r = vk_command_get_stamps(c, stamps);
		if (!r && stamps[1] - stamps[0] < best_ns)
			best_ns = stamps[1] - stamps[0];
	}
	vk_command_free(c);
	if (!r)
		*ret_ns = best_ns;
	return r;
}

static double rate(uint64_t n, uint64_t ns)
{
	return ns ? (double)n * 1e9 / (double)ns : 0;
}

static int measure_read(struct bench *b, double *ret_rate)
{
	struct op_pool_kernel kernel = {.id = KERNELS_MEMORY_READ, .n_subgroups = N_SUBGROUPS};
	struct abi_memory push = {.src = vk_memory_get_address(b->memory),
		.dst = vk_memory_get_address(b->memory),
		.n = (uint32_t)(b->n_bytes / UNIT_BYTES)};
	uint32_t lanes = op_pool_get_subgroup_size(b->pool) * N_SUBGROUPS;
	uint32_t n_groups = push.n / (lanes * UNITS_PER_LANE) + 1;
	uint64_t ns = 0;
	int r = time_kernel(b, &kernel, &push, n_groups < MAX_GROUPS ? n_groups : MAX_GROUPS, &ns);

	if (!r)
		*ret_rate = rate(b->n_bytes, ns);
	return r;
}

static int measure_fma(struct bench *b, double *ret_rate)
{
	bool is_software = op_pool_is_software(b->pool);
	struct op_pool_kernel kernel = {.id = KERNELS_FMA_F32, .n_subgroups = N_SUBGROUPS};
	struct abi_fma push = {.dst = vk_memory_get_address(b->memory),
		.n_rounds = is_software ? SOFTWARE_FMA_ROUNDS : FMA_ROUNDS,
		.factor = 0.9990234375f, /* exact: what is summed stays small and normal */
		.addend = 0.0009765625f};
	uint32_t n_groups = is_software ? SOFTWARE_FMA_GROUPS : FMA_GROUPS;
	uint64_t n_lanes = (uint64_t)op_pool_get_subgroup_size(b->pool) * N_SUBGROUPS * n_groups;
	uint64_t ns = 0;
	int r = time_kernel(b, &kernel, &push, n_groups, &ns);

	if (!r)
		*ret_rate = rate(n_lanes * push.n_rounds * ABI_FMA_ROUND_FLOPS, ns);
	return r;
}

/* No kernel, or no matrices: none is measured. */
static int measure_matrix(struct bench *b, double *ret_rate)
{
	const struct vk_device_info *info = vk_device_get_info(b->d);
	const struct vk_device_matrix *shape = &info->matrices[0];
	bool is_software = op_pool_is_software(b->pool);
	uint32_t n_groups = is_software ? SOFTWARE_MATRIX_GROUPS : MATRIX_GROUPS;
	struct abi_matrix_peak push = {.y = vk_memory_get_address(b->memory),
		.n_rounds = is_software ? SOFTWARE_MATRIX_ROUNDS : MATRIX_ROUNDS};
	uint64_t ns = 0;

	if (!info->n_matrices || !kernels_has(KERNELS_MATRIX_PEAK_F16))
		return 0;
	const struct op_pool_kernel kernel = {.id = KERNELS_MATRIX_PEAK_F16,
		.n_subgroups = N_SUBGROUPS,
		.n_spec = 3,
		.spec = {shape->m, shape->n, shape->k}};
	int r = time_kernel(b, &kernel, &push, n_groups, &ns);
	if (!r)
		*ret_rate = rate(2ull * shape->m * shape->n * shape->k * ABI_MATRIX_PEAK_SIDE *
					 ABI_MATRIX_PEAK_SIDE * push.n_rounds * N_SUBGROUPS *
					 n_groups,
			ns);
	return r;
}

/* A smaller one where the device has little left. */
static int make_memory(struct bench *b)
{
	uint64_t n_max = vk_device_get_info(b->d)->max_alloc_bytes;
	uint64_t n = op_pool_is_software(b->pool) ? SOFTWARE_READ_BYTES : READ_BYTES;
	int r = -ENOMEM;

	for (; r == -ENOMEM && n >= MIN_READ_BYTES; n /= 2) {
		const struct vk_memory_params params = {.role = VK_MEMORY_SCRATCH,
			.n_bytes = n,
			.name = "memory of measured reads",
			.is_home_only = true};

		if (n > n_max)
			continue;
		b->n_bytes = n;
		r = vk_memory_new(b->d, &params, b->err, &b->memory);
	}
	return r;
}

/* All of it is touched: pages that nobody wrote are not read from memory. */
static int fill(struct bench *b)
{
	const struct vk_slice all = {.memory = b->memory, .n_bytes = b->n_bytes};
	struct vk_command *c = NULL;
	uint64_t ticket = 0;
	int r = vk_command_new(b->d, 0, b->err, &c);

	if (r)
		return r;
	vk_command_begin(c);
	vk_command_fill(c, &all, 1);
	r = vk_command_end(c, b->err);
	if (!r)
		r = vk_submit(b->d, &c, 1, b->err, &ticket);
	if (!r)
		r = vk_submit_wait(b->d, ticket, UINT64_MAX);
	vk_command_free(c);
	return r;
}

int ceiling_measure(struct vk_device *d, struct op_pool *pool, struct err *ret_err,
	struct ceiling_rates *ret_rates)
{
	struct bench b = {.d = d, .pool = pool, .err = ret_err};
	struct ceiling_rates rates = {0};
	int r = warm_new(d, ret_err, &b.warm);

	if (!r)
		r = make_memory(&b);
	if (!r)
		r = fill(&b);
	if (!r)
		r = measure_read(&b, &rates.read_bytes);
	if (!r)
		r = measure_fma(&b, &rates.fma_flops);
	if (!r)
		r = measure_matrix(&b, &rates.matrix_flops);
	vk_memory_free(b.memory);
	warm_free(b.warm);
	if (!r)
		*ret_rates = rates;
	return r;
}
