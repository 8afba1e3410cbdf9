/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/bench-memory.h"

#include <errno.h>
#include <stdbool.h>

#include "proto/manifest.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/fetch.h"
#include "workerd/ops/pool.h"
#include "workerd/weights.h"

enum { N_RUNS = 4 }; /* the first warms up */

/* Copies go to this much memory, again and again: more than any cache. */
enum { MAX_COPY_BYTES = 256 << 20 };

enum { UNIT_BYTES = 16, N_SUBGROUPS = 4, UNITS_PER_LANE = 32, MAX_GROUPS = 65535 };

enum path { PATH_READ, PATH_COPY };

struct bench {
	const struct bench_memory_params *params;
	struct vk_memory *target; /* of copies */
	uint64_t target_bytes;
	struct err *err;
};

static int dispatch(
	struct bench *b, struct vk_command *c, enum kernels_id id, uint64_t src, uint64_t n_bytes)
{
	struct op_pool *pool = b->params->pool;
	struct op_pool_kernel kernel = {.id = id, .n_subgroups = N_SUBGROUPS};
	struct abi_memory push = {
		.src = src,
		.dst = vk_memory_get_address(b->target),
		.n = (uint32_t)(n_bytes / UNIT_BYTES),
	};
	uint32_t lanes = op_pool_get_subgroup_size(pool) * N_SUBGROUPS;
	uint32_t n_groups = push.n / (lanes * UNITS_PER_LANE) + 1;

	/* Short workgroups: other processes' work goes in between. */
	n_groups = n_groups < MAX_GROUPS ? n_groups : MAX_GROUPS;
	return op_pool_dispatch(pool, c, &kernel, &push, n_groups * N_SUBGROUPS, 1, b->err);
}

/* All bytes of an allocation, in parts that the target holds. */
static int record_alloc(struct bench *b, struct vk_command *c, const struct weights_alloc *a,
	uint64_t n_bytes, enum path path)
{
	bool is_device = a->placement == MANIFEST_PLACEMENT_DEVICE;
	int r = 0;

	if (path == PATH_READ)
		return dispatch(b, c, KERNELS_MEMORY_READ,
			vk_memory_get_address(a->memory) + a->base, n_bytes);
	for (uint64_t at = 0; !r && at < n_bytes; at += b->target_bytes) {
		uint64_t n = n_bytes - at < b->target_bytes ? n_bytes - at : b->target_bytes;
		struct vk_slice dst = {.memory = b->target, .n_bytes = n};
		struct vk_slice src = {.memory = a->memory, .offset = a->base + at, .n_bytes = n};

		if (is_device)
			r = dispatch(b, c, KERNELS_MEMORY_COPY, vk_memory_slice_address(&src), n);
		else
			vk_command_copy(c, &dst, &src);
		vk_command_barrier(c);
	}
	return r;
}

static int record(struct bench *b, struct vk_command *c, uint32_t placement, enum path path)
{
	const struct weights *w = b->params->weights;
	int r = 0;

	vk_command_begin(c);
	for (uint32_t i = 0; !r && i < w->n_allocs; i++) {
		uint64_t n = w->manifest->allocs[i].n_bytes / UNIT_BYTES * UNIT_BYTES;

		if (w->allocs[i].placement == placement && w->allocs[i].memory && n)
			r = record_alloc(b, c, &w->allocs[i], n, path);
	}
	int ended = vk_command_end(c, b->err);
	return r ? r : ended;
}

static int time_path(struct bench *b, uint32_t placement, enum path path, uint64_t *ret_ns)
{
	bool is_kernel = path == PATH_READ || placement == MANIFEST_PLACEMENT_DEVICE;
	enum vk_queue queue = is_kernel ? VK_QUEUE_COMPUTE : VK_QUEUE_TRANSFER;
	struct vk_command *c = NULL;
	uint64_t best_ns = UINT64_MAX, ticket = 0;

	int r = vk_command_new_on(b->params->device, queue, 0, b->err, &c);
	if (!r)
		r = record(b, c, placement, path);
	for (int i = 0; !r && i < N_RUNS; i++) {
		uint64_t start_ns = clock_now_ns();

		r = vk_submit_on(b->params->device, queue, &c, 1, NULL, 0, b->err, &ticket);
		if (!r)
			r = vk_submit_wait(b->params->device, ticket, UINT64_MAX);
		uint64_t ns = clock_now_ns() - start_ns;
		best_ns = ns < best_ns ? ns : best_ns;
	}
	vk_command_free(c);
	if (!r)
		*ret_ns = best_ns;
	return r;
}

static int time_stream(struct bench *b, struct bench_memory_rate *rate)
{
	uint64_t best_ns = UINT64_MAX, n_bytes = 0;

	for (int i = 0; i < N_RUNS; i++) {
		uint64_t start_ns = clock_now_ns();
		int r = fetch_all(b->params->fetch, b->err, &n_bytes);

		if (r)
			return r;
		uint64_t ns = clock_now_ns() - start_ns;
		best_ns = ns < best_ns ? ns : best_ns;
	}
	rate->n_stream_bytes = n_bytes;
	rate->stream_ns = best_ns;
	return 0;
}

static int measure(struct bench *b, struct bench_memory_rate *rate)
{
	bool is_paged = rate->placement == MANIFEST_PLACEMENT_PAGED;
	int r = 0;

	if (!is_paged)
		r = time_path(b, rate->placement, PATH_READ, &rate->read_ns);
	if (!r && !is_paged)
		r = time_path(b, rate->placement, PATH_COPY, &rate->copy_ns);
	if (!r && rate->placement != MANIFEST_PLACEMENT_DEVICE && b->params->fetch)
		r = time_stream(b, rate);
	return r;
}

int bench_memory_run(const struct bench_memory_params *params, struct err *ret_err,
	struct bench_memory_rate ret_rates[BENCH_MEMORY_MAX_RATES], uint32_t *ret_n)
{
	uint64_t max_bytes = vk_device_get_info(params->device)->max_alloc_bytes;
	struct bench b = {.params = params,
		.target_bytes = max_bytes < MAX_COPY_BYTES ? max_bytes : MAX_COPY_BYTES,
		.err = ret_err};
	const struct vk_memory_params memory = {.role = VK_MEMORY_SCRATCH,
		.n_bytes = b.target_bytes,
		.name = "target of measured copies",
		.is_home_only = true};
	struct bench_memory_rate rates[BENCH_MEMORY_MAX_RATES] = {0};
	uint32_t n = 0;
	int r = vk_memory_new(params->device, &memory, ret_err, &b.target);

	for (uint32_t p = MANIFEST_PLACEMENT_DEVICE; !r && p <= MANIFEST_PLACEMENT_PAGED; p++) {
		uint64_t n_bytes = weights_count_bytes(params->weights, p);

		if (!n_bytes)
			continue;
		rates[n] = (struct bench_memory_rate){.placement = p, .n_bytes = n_bytes};
		r = measure(&b, &rates[n++]);
	}
	vk_memory_free(b.target);
	if (r)
		return r;
	for (uint32_t i = 0; i < n; i++)
		ret_rates[i] = rates[i];
	*ret_n = n;
	return 0;
}
