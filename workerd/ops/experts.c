/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/experts.h"

#include <errno.h>
#include <inttypes.h>

#include "proto/util/err.h"
#include "vk/command.h"
#include "workerd/ops/group.h"
#include "workerd/ops/matrix-experts.h"
#include "workerd/ops/matvec-experts.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/variant.h"

static const enum kernels_id kernels[OP_VARIANT_N] = {
	[OP_VARIANT_F32] = KERNELS_EXPERTS_F32,
	[OP_VARIANT_F32_X4] = KERNELS_EXPERTS_F32_X4,
	[OP_VARIANT_F16] = KERNELS_EXPERTS_F16,
	[OP_VARIANT_F16_X2] = KERNELS_EXPERTS_F16_X2,
	[OP_VARIANT_Q8_0] = KERNELS_EXPERTS_Q8_0,
	[OP_VARIANT_Q8_0_X2] = KERNELS_EXPERTS_Q8_0_X2,
	[OP_VARIANT_BF16] = KERNELS_EXPERTS_BF16,
	[OP_VARIANT_BF16_X2] = KERNELS_EXPERTS_BF16_X2,
	[OP_VARIANT_Q4_0] = KERNELS_EXPERTS_Q4_0,
	[OP_VARIANT_Q4_0_X2] = KERNELS_EXPERTS_Q4_0_X2,
	[OP_VARIANT_Q4_K] = KERNELS_EXPERTS_Q4_K,
	[OP_VARIANT_Q5_K] = KERNELS_EXPERTS_Q5_K,
	[OP_VARIANT_Q6_K] = KERNELS_EXPERTS_Q6_K,
	[OP_VARIANT_TQ2_0] = KERNELS_EXPERTS_TQ2_0,
	[OP_VARIANT_Q2_0] = KERNELS_EXPERTS_Q2_0,
	[OP_VARIANT_Q1_0] = KERNELS_EXPERTS_Q1_0,
};

/* The second dimension of a grid: Vulkan promises no more. */
enum { MAX_GRID_Y = 65535 };

bool op_experts_is_grouped(uint32_t n_rows, uint32_t n_expert, uint32_t n_used)
{
	/* Below half a row an expert few rows share one, and three dispatches cost more. */
	return n_rows > 1 && 2ull * n_rows * n_used > n_expert;
}

/* One dispatch of matrices that one kernel reads. */
struct part {
	enum op_variant variant;
	uint32_t first; /* of the matrices */
	uint32_t finish;
	uint32_t rows; /* ABI_EXPERTS_ROWS_* */
	uint64_t y;
};

/* Rows of W of a tile (of 2 to 16, measured on an H200); the same order of a sum in all. */
static uint32_t choose_tile_n(const struct op_pool *pool, uint32_t rows, bool is_far)
{
	if (op_pool_is_software(pool) && !is_far)
		return 16;
	return rows == ABI_EXPERTS_ROWS_GROUP ? 8 : 4;
}

static uint32_t count_grid_y(const struct op_experts_params *p, const struct part *part)
{
	if (part->rows == ABI_EXPERTS_ROWS_GROUP)
		return op_group_count_slots(p->n_rows, (uint32_t)p->w[0].ne[2], p->n_used);
	return part->finish == ABI_TILE_FINISH_MIX ? p->n_rows : p->n_rows * p->n_used;
}

static int record_part(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, const struct part *part, struct err *ret_err)
{
	const struct weights_tensor *w = &p->w[part->first];
	bool is_swiglu = part->finish == ABI_TILE_FINISH_SWIGLU;
	bool is_group = part->rows == ABI_EXPERTS_ROWS_GROUP;
	uint32_t tile_n = choose_tile_n(pool, part->rows, p->is_far);
	uint32_t n_out = is_swiglu ? tile_n / 2 : tile_n;
	struct op_pool_kernel kernel = {
		.id = kernels[part->variant],
		.n_subgroups = op_pool_is_software(pool) ? 1 : 4,
		.n_spec = ABI_EXPERTS_SPEC_FAR + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_TILE_SPEC_N - ABI_SPEC_KERNEL] = tile_n,
			[ABI_TILE_SPEC_M - ABI_SPEC_KERNEL] = is_group ? ABI_GROUP_ROWS : 1,
			[ABI_TILE_SPEC_NORM - ABI_SPEC_KERNEL] = p->gain != 0,
			[ABI_TILE_SPEC_FINISH - ABI_SPEC_KERNEL] = part->finish,
			[ABI_EXPERTS_SPEC_ROWS - ABI_SPEC_KERNEL] = part->rows,
			[ABI_EXPERTS_SPEC_FAR - ABI_SPEC_KERNEL] = p->is_far},
	};
	struct abi_experts push = {
		.w = {p->tables[part->first], is_swiglu ? p->tables[part->first + 1] : 0},
		.x = p->x,
		.y = part->y,
		.gain = p->gain,
		.logits = p->logits,
		.choice = p->choice,
		.pairs = p->pairs,
		.groups = p->groups,
		.m = p->m,
		.n = (uint32_t)w->ne[1],
		.k = (uint32_t)w->ne[0],
		.n_row_bytes = (uint32_t)(w->n_bytes / (w->ne[1] * w->ne[2])),
		.n_expert = (uint32_t)w->ne[2],
		.n_used = p->n_used,
		.x_share = p->finish == OP_EXPERTS_SWIGLU ? p->n_used : 1,
		.eps = p->eps,
	};
	uint32_t n_y = count_grid_y(p, part);

	if (n_y > MAX_GRID_Y)
		return err_set(
			ret_err, EINVAL, "rows: found %u of %u experts each", p->n_rows, p->n_used);
	return op_pool_dispatch(
		pool, c, &kernel, &push, (push.n + n_out - 1) / n_out, n_y, ret_err);
}

static int check_part(const struct op_experts_params *p, uint32_t i, struct err *ret_err,
	enum op_variant *ret_variant)
{
	const uint64_t *ne = p->w[i].ne, *first = p->w[0].ne;

	int r = op_variant_choose(&p->w[i], ret_err, ret_variant);
	if (r)
		return r;
	if (ne[0] != first[0] || ne[1] != first[1] || ne[2] != first[2])
		return err_set(ret_err, EINVAL,
			"shape: expected as the first, %" PRIu64 " x %" PRIu64 " x %" PRIu64
			", found %" PRIu64 " x %" PRIu64 " x %" PRIu64,
			first[0], first[1], first[2], ne[0], ne[1], ne[2]);
	if (ne[2] > ABI_MAX_EXPERTS || p->n_used == 0 || p->n_used > ne[2] ||
		p->n_used > ABI_MAX_EXPERTS_USED)
		return err_set(ret_err, EINVAL,
			"expected up to %d of %d experts, found %u of %" PRIu64,
			ABI_MAX_EXPERTS_USED, ABI_MAX_EXPERTS, p->n_used, ne[2]);
	return 0;
}

static int record_swiglu(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, uint32_t rows, struct err *ret_err)
{
	struct part part = {.rows = rows, .y = p->y, .finish = ABI_TILE_FINISH_SWIGLU};
	enum op_variant up = OP_VARIANT_N;

	int r = check_part(p, 0, ret_err, &part.variant);
	if (!r)
		r = check_part(p, 1, ret_err, &up);
	if (r)
		return r;
	if (part.variant == up)
		return record_part(pool, c, p, &part, ret_err);
	part.finish = ABI_TILE_FINISH_STORE;
	r = record_part(pool, c, p, &part, ret_err);
	if (r)
		return r;
	vk_command_barrier(c);
	part = (struct part){.variant = up,
		.first = 1,
		.finish = ABI_TILE_FINISH_GATE,
		.rows = rows == ABI_EXPERTS_ROWS_ROUTE ? ABI_EXPERTS_ROWS_CHOICE : rows,
		.y = p->y};
	return record_part(pool, c, p, &part, ret_err);
}

int op_experts_record_sums(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, struct err *ret_err)
{
	const struct op_pool_kernel kernel = {
		.id = KERNELS_MIX, .n_subgroups = op_pool_is_software(pool) ? 1 : 4};
	const struct abi_mix push = {.z = p->z,
		.y = p->y,
		.choice = p->choice,
		.m = p->m,
		.n = (uint32_t)p->w[0].ne[1],
		.n_used = p->n_used};
	uint32_t n_columns = ABI_MIX_COLUMNS * op_pool_get_subgroup_size(pool);

	vk_command_barrier(c);
	return op_pool_dispatch(
		pool, c, &kernel, &push, (push.n + n_columns - 1) / n_columns, p->n_rows, ret_err);
}

static int record_mix(struct op_pool *pool, struct vk_command *c, const struct op_experts_params *p,
	bool is_grouped, struct err *ret_err)
{
	struct part part = {.rows = is_grouped ? ABI_EXPERTS_ROWS_GROUP : ABI_EXPERTS_ROWS_CHOICE,
		.finish = is_grouped ? ABI_TILE_FINISH_STORE : ABI_TILE_FINISH_MIX,
		.y = is_grouped ? p->z : p->y};

	int r = check_part(p, 0, ret_err, &part.variant);
	if (!r)
		r = record_part(pool, c, p, &part, ret_err);
	return r || !is_grouped ? r : op_experts_record_sums(pool, c, p, ret_err);
}

int op_experts_record(struct op_pool *pool, struct vk_command *c, const struct op_experts_params *p,
	struct err *ret_err)
{
	bool is_grouped = op_experts_is_grouped(p->n_rows, (uint32_t)p->w[0].ne[2], p->n_used);
	uint32_t rows = is_grouped     ? ABI_EXPERTS_ROWS_GROUP
			: p->is_routed ? ABI_EXPERTS_ROWS_CHOICE
				       : ABI_EXPERTS_ROWS_ROUTE;

	if (op_matvec_experts_fits(pool, p))
		return op_matvec_experts_record(pool, c, p, ret_err);
	if (op_matrix_experts_fits(pool, p))
		return op_matrix_experts_record(pool, c, p, ret_err);
	int r = p->finish == OP_EXPERTS_SWIGLU ? record_swiglu(pool, c, p, rows, ret_err)
					       : record_mix(pool, c, p, is_grouped, ret_err);
	if (r)
		err_prefix(ret_err, "experts");
	return r;
}
