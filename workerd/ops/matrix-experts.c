/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/matrix-experts.h"

#include <errno.h>

#include "proto/dtype.h"
#include "proto/util/cleanup.h"
#include "proto/util/err.h"
#include "vk/command.h"
#include "vk/device.h"
#include "workerd/ops/experts.h"
#include "workerd/ops/group.h"
#include "workerd/ops/matrix-tile.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/stage.h"

enum { MAX_GRID_Y = 65535 }; /* Vulkan promises no more */

/*
 * By rows of a group, the smaller ones first, of SWIGLU and of MIX; measured on an H200. What a
 * workgroup has in shared memory counts: with less of it there are more at once.
 */
static const struct op_matrix_tile tiles[][2] = {
	{{.bn = 96, .bm = 16, .bk = 64, .sn = 32, .sm = 16, .n_buffers = 1},
		{.bn = 96, .bm = 16, .bk = 64, .sn = 32, .sm = 16, .n_buffers = 1}},
	{{.bn = 128, .bm = 32, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1},
		{.bn = 128, .bm = 32, .bk = 64, .sn = 32, .sm = 32, .n_buffers = 1}},
	{{.bn = 96, .bm = 48, .bk = 64, .sn = 32, .sm = 48, .n_buffers = 1},
		{.bn = 64, .bm = 48, .bk = 64, .sn = 16, .sm = 48, .n_buffers = 1}},
	{{.bn = 96, .bm = 64, .bk = 64, .sn = 32, .sm = 64, .n_buffers = 1},
		{.bn = 96, .bm = 64, .bk = 64, .sn = 32, .sm = 64, .n_buffers = 1}},
};

/* Narrow enough for a subgroup of eight lanes; with steps of 64 where a format wants those. */
static const struct op_matrix_tile narrow_tile = {
	.bn = 32, .bk = 32, .sn = 16, .sm = 16, .n_buffers = 1, .is_ragged = true};

static bool is_swiglu(const struct op_experts_params *p)
{
	return p->finish == OP_EXPERTS_SWIGLU;
}

/* In which a format's kernel takes x: ABI_STAGE_*. */
static uint32_t get_order(const struct weights_tensor *w)
{
	return w->dtype == DTYPE_Q4_K ? ABI_STAGE_SWAPPED : ABI_STAGE_PLAIN;
}

/* Do steps of the tile have whole units of the format? */
static bool fits_format(const struct op_experts_params *p, const struct op_matrix_tile *tile)
{
	for (uint32_t i = 0; i < (is_swiglu(p) ? 2 : 1); i++)
		if (p->w[i].dtype == DTYPE_Q4_K && tile->bk % 64 != 0)
			return false;
	return true;
}

struct op_matrix_tile op_matrix_experts_choose(
	const struct op_pool *pool, const struct op_experts_params *p)
{
	struct op_matrix_tile tile = narrow_tile;
	uint32_t i = 0;

	if (op_pool_get_subgroup_size(pool) >= 32) {
		while (i + 1 < ARRAY_SIZE(tiles) && tiles[i][0].bm < p->wide_rows)
			i++;
		tile = tiles[i][!is_swiglu(p)];
	}
	tile.bm = (uint16_t)p->wide_rows;
	if (!fits_format(p, &tile))
		tile.bk = 64;
	if (p->w[0].ne[0] % tile.bk)
		tile.bk = 32;
	return tile;
}

/* Rows of x for each row of the step. */
static uint32_t count_share(const struct op_experts_params *p)
{
	return is_swiglu(p) ? 1 : p->n_used;
}

/* Of x in staging; 0: it is f16 where it is. */
static uint64_t count_staged(const struct op_experts_params *p)
{
	return p->is_half && !is_swiglu(p) ? 0 : 2 * p->w[0].ne[0] * p->n_rows * count_share(p);
}

bool op_matrix_experts_fits(const struct op_pool *pool, const struct op_experts_params *p)
{
	const struct weights_tensor *w = p->w;
	uint64_t k = w[0].ne[0], n = w[0].ne[1], n_expert = w[0].ne[2];
	struct op_matrix_tile tile = op_matrix_experts_choose(pool, p);
	struct op_pool_kernel kernel;

	if (p->is_exact || p->is_far || !p->wide || !p->staging || p->staging % 16 || p->x % 16 ||
		p->gain % 16 || p->n_used == 0 || p->n_used > n_expert ||
		p->n_used > ABI_MAX_EXPERTS_USED ||
		!op_experts_is_grouped(p->n_rows, (uint32_t)n_expert, p->n_used))
		return false;
	for (uint32_t i = 0; i < (is_swiglu(p) ? 2 : 1); i++)
		if (!op_matrix_tile_find_kernel(&w[i], true, &kernel.id) || w[i].ne[0] != k ||
			w[i].ne[1] != n || w[i].ne[2] != n_expert)
			return false;
	uint64_t n_x = 2 * k * p->n_rows * count_share(p);
	/* Quads of x and bytes of a row of y are counted in 32 bits. */
	return count_staged(p) <= p->n_staging_bytes && n_x / 16 < UINT32_MAX &&
	       n < UINT32_MAX / sizeof(float) && n / (tile.bn / 2) < MAX_GRID_Y &&
	       fits_format(p, &tile) && op_matrix_tile_bind(pool, &tile, k, &kernel);
}

bool op_matrix_experts_chain(const struct op_pool *pool, struct op_experts_params *first,
	struct op_experts_params *second)
{
	if (!is_swiglu(first) || is_swiglu(second) || second->x != first->y || second->gain ||
		first->w[0].dtype != first->w[1].dtype || !op_matrix_experts_fits(pool, first) ||
		!op_matrix_experts_fits(pool, second))
		return false;
	first->is_half = second->is_half = true;
	first->half_order = second->half_order = get_order(&second->w[0]);
	return true;
}

/* One dispatch of matrices of one format, the first-th on. */
static int record_part(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, const struct op_matrix_tile *tile, uint32_t first,
	uint32_t finish, uint64_t y, struct err *ret_err)
{
	const struct weights_tensor *w = &p->w[first];
	uint32_t n_out = finish == ABI_TILE_FINISH_SWIGLU ? tile->bn / 2 : tile->bn;
	struct op_pool_kernel kernel = {0};
	const struct abi_matrix_experts push = {
		.w = {p->tables[first],
			finish == ABI_TILE_FINISH_SWIGLU ? p->tables[first + 1] : 0},
		.x = p->is_half && !is_swiglu(p) ? p->x : p->staging,
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
		.is_half = p->is_half && finish == ABI_TILE_FINISH_SWIGLU,
		.order = p->half_order,
	};

	if (!op_matrix_tile_find_kernel(w, true, &kernel.id) || tile->bm != p->wide_rows ||
		!fits_format(p, tile) || tile->is_direct ||
		!op_matrix_tile_bind(pool, tile, w->ne[0], &kernel))
		return err_set(ret_err, ENOTSUP, "a shape or tile without kernel");
	kernel.spec[ABI_MATRIX_SPEC_FINISH - ABI_SPEC_KERNEL] = finish;
	uint32_t n_slots = op_group_count_wide(p->n_rows, push.n_expert, p->n_used, p->wide_rows);
	return op_pool_dispatch(pool, c, &kernel, &push, n_slots * kernel.n_subgroups,
		(push.n + n_out - 1) / n_out, ret_err);
}

/* x as f16 in staging, and a barrier. */
static int record_stage(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, uint32_t order, struct err *ret_err)
{
	const struct op_stage_params stage = {.x = p->x,
		.y = p->staging,
		.gain = p->gain,
		.m = p->m,
		.n_share = count_share(p),
		.k = (uint32_t)p->w[0].ne[0],
		.eps = p->eps,
		.order = order,
		.n_rows = p->n_rows};

	int r = op_stage_record(pool, c, &stage, ret_err);
	if (!r)
		vk_command_barrier(c);
	return r;
}

static int record_swiglu(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, const struct op_matrix_tile *tile, struct err *ret_err)
{
	if (p->w[0].dtype == p->w[1].dtype)
		return record_part(pool, c, p, tile, 0, ABI_TILE_FINISH_SWIGLU, p->y, ret_err);
	int r = record_part(pool, c, p, tile, 0, ABI_TILE_FINISH_STORE, p->y, ret_err);
	if (r)
		return r;
	vk_command_barrier(c);
	if (get_order(&p->w[1]) != get_order(&p->w[0]))
		r = record_stage(pool, c, p, get_order(&p->w[1]), ret_err);
	if (r)
		return r;
	return record_part(pool, c, p, tile, 1, ABI_TILE_FINISH_GATE, p->y, ret_err);
}

static int record_mix(struct op_pool *pool, struct vk_command *c, const struct op_experts_params *p,
	const struct op_matrix_tile *tile, struct err *ret_err)
{
	int r = record_part(pool, c, p, tile, 0, ABI_TILE_FINISH_STORE, p->z, ret_err);

	return r ? r : op_experts_record_sums(pool, c, p, ret_err);
}

int op_matrix_experts_record_tile(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, const struct op_matrix_tile *tile, struct err *ret_err)
{
	int r = count_staged(p) ? record_stage(pool, c, p, get_order(&p->w[0]), ret_err) : 0;

	if (!r)
		r = is_swiglu(p) ? record_swiglu(pool, c, p, tile, ret_err)
				 : record_mix(pool, c, p, tile, ret_err);
	if (r)
		err_prefix(ret_err, "matrix experts");
	return r;
}

int op_matrix_experts_record(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, struct err *ret_err)
{
	struct op_matrix_tile tile = op_matrix_experts_choose(pool, p);

	return op_matrix_experts_record_tile(pool, c, p, &tile, ret_err);
}
