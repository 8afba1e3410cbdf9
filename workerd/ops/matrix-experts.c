/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/matrix-experts.h"

#include <errno.h>

#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "workerd/ops/experts.h"
#include "workerd/ops/group.h"
#include "workerd/ops/matrix-tile.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/stage.h"

enum {
	MIN_ROWS = 17,
	/* Pairs an expert, on average; below, few share what is read. */
	MIN_PAIRS = 2,
	MAX_GRID_Y = 65535, /* Vulkan promises no more */
};

/* Most experts have fewer rows than a tile, and pay for those that they have. */
static struct op_matrix_tile choose_tile(const struct op_pool *pool, uint64_t k)
{
	struct op_matrix_tile tile = {.bn = 128,
		.bm = ABI_MATRIX_GROUP_ROWS,
		.bk = k % 64 ? 32 : 64,
		.sn = 32,
		.sm = ABI_MATRIX_GROUP_ROWS,
		.n_buffers = 1,
		.is_ragged = true};

	if (op_pool_get_subgroup_size(pool) < 32) {
		tile.bn = 32;
		tile.bk = 32;
		tile.sn = tile.sm = 16;
	}
	return tile;
}

static bool is_swiglu(const struct op_experts_params *p)
{
	return p->finish == OP_EXPERTS_SWIGLU;
}

/* Rows of x for each row of the step. */
static uint32_t count_share(const struct op_experts_params *p)
{
	return is_swiglu(p) ? 1 : p->n_used;
}

bool op_matrix_experts_fits(const struct op_pool *pool, const struct op_experts_params *p)
{
	const struct weights_tensor *w = p->w;
	uint64_t k = w[0].ne[0], n = w[0].ne[1], n_expert = w[0].ne[2];
	struct op_matrix_tile tile = choose_tile(pool, k);
	struct op_pool_kernel kernel;

	if (p->is_exact || p->is_far || !p->wide || !p->staging || p->staging % 16 || p->x % 16 ||
		p->gain % 16 || p->n_used == 0 || p->n_used > n_expert ||
		p->n_used > ABI_MAX_EXPERTS_USED || p->n_rows < MIN_ROWS ||
		(uint64_t)p->n_rows * p->n_used < MIN_PAIRS * n_expert)
		return false;
	for (uint32_t i = 0; i < (is_swiglu(p) ? 2 : 1); i++)
		if (!op_matrix_tile_find_kernel(&w[i], true, &kernel.id) || w[i].ne[0] != k ||
			w[i].ne[1] != n || w[i].ne[2] != n_expert)
			return false;
	uint64_t n_staged = 2 * k * p->n_rows * count_share(p);
	/* Quads of x and bytes of a row of y are counted in 32 bits. */
	return n_staged <= p->n_staging_bytes && n_staged / 16 < UINT32_MAX &&
	       n < UINT32_MAX / sizeof(float) && n / (tile.bn / 2) < MAX_GRID_Y &&
	       op_matrix_tile_bind(pool, &tile, k, &kernel);
}

/* One dispatch of matrices of one format, the first-th on. */
static int record_part(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, uint32_t first, uint32_t finish, uint64_t y,
	struct err *ret_err)
{
	const struct weights_tensor *w = &p->w[first];
	struct op_matrix_tile tile = choose_tile(pool, w->ne[0]);
	uint32_t n_out = finish == ABI_TILE_FINISH_SWIGLU ? tile.bn / 2 : tile.bn;
	struct op_pool_kernel kernel = {0};
	const struct abi_matrix_experts push = {
		.w = {p->tables[first],
			finish == ABI_TILE_FINISH_SWIGLU ? p->tables[first + 1] : 0},
		.x = p->staging,
		.y = y,
		.pairs = p->pairs,
		.groups = p->wide,
		.m = p->m,
		.n = (uint32_t)w->ne[1],
		.k = (uint32_t)w->ne[0],
		.n_row_bytes = (uint32_t)(w->n_bytes / (w->ne[1] * w->ne[2])),
		.n_expert = (uint32_t)w->ne[2],
		.n_used = p->n_used,
		.x_share = is_swiglu(p) ? p->n_used : 1,
	};

	if (!op_matrix_tile_find_kernel(w, true, &kernel.id) ||
		!op_matrix_tile_bind(pool, &tile, w->ne[0], &kernel))
		return err_set(ret_err, ENOTSUP, "a shape without kernel");
	kernel.spec[ABI_MATRIX_SPEC_FINISH - ABI_SPEC_KERNEL] = finish;
	uint32_t n_slots = op_group_count_wide(p->n_rows, push.n_expert, p->n_used);
	return op_pool_dispatch(pool, c, &kernel, &push, n_slots * kernel.n_subgroups,
		(push.n + n_out - 1) / n_out, ret_err);
}

static int record_swiglu(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, struct err *ret_err)
{
	if (p->w[0].dtype == p->w[1].dtype)
		return record_part(pool, c, p, 0, ABI_TILE_FINISH_SWIGLU, p->y, ret_err);
	int r = record_part(pool, c, p, 0, ABI_TILE_FINISH_STORE, p->y, ret_err);
	if (r)
		return r;
	vk_command_barrier(c);
	return record_part(pool, c, p, 1, ABI_TILE_FINISH_GATE, p->y, ret_err);
}

static int record_mix(struct op_pool *pool, struct vk_command *c, const struct op_experts_params *p,
	struct err *ret_err)
{
	const struct op_pool_kernel kernel = {.id = KERNELS_MIX, .n_subgroups = 1};
	const struct abi_mix push = {.z = p->z,
		.y = p->y,
		.choice = p->choice,
		.m = p->m,
		.n = (uint32_t)p->w[0].ne[1],
		.n_used = p->n_used};
	uint32_t n_lanes = op_pool_get_subgroup_size(pool);

	int r = record_part(pool, c, p, 0, ABI_TILE_FINISH_STORE, p->z, ret_err);
	if (r)
		return r;
	vk_command_barrier(c);
	return op_pool_dispatch(
		pool, c, &kernel, &push, (push.n + n_lanes - 1) / n_lanes, p->n_rows, ret_err);
}

int op_matrix_experts_record(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, struct err *ret_err)
{
	const struct op_stage_params stage = {.x = p->x,
		.y = p->staging,
		.gain = p->gain,
		.m = p->m,
		.n_share = count_share(p),
		.k = (uint32_t)p->w[0].ne[0],
		.eps = p->eps,
		.n_rows = p->n_rows};

	int r = op_stage_record(pool, c, &stage, ret_err);
	if (!r) {
		vk_command_barrier(c);
		r = is_swiglu(p) ? record_swiglu(pool, c, p, ret_err)
				 : record_mix(pool, c, p, ret_err);
	}
	if (r)
		err_prefix(ret_err, "matrix experts");
	return r;
}
