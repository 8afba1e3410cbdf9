/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/matvec-experts.h"

#include <errno.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "vk/device.h"
#include "workerd/ops/experts.h"
#include "workerd/ops/matmul.h"
#include "workerd/ops/matvec-format.h"
#include "workerd/ops/matvec.h"
#include "workerd/ops/pool.h"

static const struct op_matvec_format *get_format(const struct op_experts_params *p)
{
	return op_matvec_format_find(p->w[0].dtype);
}

uint32_t op_matvec_experts_get_order(const struct op_experts_params *p)
{
	return get_format(p)->order;
}

/* Rows of x. */
static uint32_t count_x(const struct op_experts_params *p)
{
	return p->finish == OP_EXPERTS_MIX ? p->n_rows * p->n_used : p->n_rows;
}

static bool fits(const struct op_pool *pool, const struct op_experts_params *p)
{
	uint32_t n_parts = p->finish == OP_EXPERTS_SWIGLU ? 2 : 1;

	if (p->is_exact || p->is_far || p->n_rows == 0 || p->n_rows > OP_MATVEC_EXPERTS_MAX_ROWS ||
		p->n_used == 0 || p->n_used > op_pool_get_subgroup_size(pool) ||
		p->n_used > p->w[0].ne[2] ||
		op_experts_is_grouped(p->n_rows, (uint32_t)p->w[0].ne[2], p->n_used))
		return false;
	for (uint32_t i = 0; i < n_parts; i++)
		if (!op_matvec_format_fits(&p->w[i]) || p->w[i].dtype != p->w[0].dtype ||
			p->w[i].ne[0] != p->w[0].ne[0] || p->w[i].ne[1] != p->w[0].ne[1] ||
			p->w[i].ne[2] != p->w[0].ne[2] ||
			p->w[i].n_bytes / p->w[i].ne[2] > UINT32_MAX)
			return false;
	return get_format(p)->experts != KERNELS_N && p->staging && p->staging % 16 == 0 &&
	       p->n_staging_bytes >= op_matvec_staging_bytes(p->w[0].ne[0], count_x(p));
}

bool op_matvec_experts_chain(const struct op_pool *pool, struct op_experts_params *first,
	struct op_experts_params *second, struct op_matmul_params *after)
{
	if (first->finish != OP_EXPERTS_SWIGLU || second->finish != OP_EXPERTS_MIX ||
		!fits(pool, first) || !fits(pool, second) || second->gain ||
		second->w[0].ne[0] != first->w[0].ne[1] ||
		second->w[0].ne[2] != first->w[0].ne[2] || second->n_used != first->n_used ||
		second->n_rows != first->n_rows || second->staging == first->staging)
		return false;
	first->next = second->staging;
	first->next_gain = 0;
	first->next_order = get_format(second)->order;
	second->is_staged = true;
	if (!after || !op_matvec_fits(pool, after) || after->want ||
		after->n_rows != second->n_rows || after->w[0].ne[0] != second->w[0].ne[1] ||
		after->staging == second->staging ||
		op_matvec_format_find(after->w[0].dtype)->order == OP_MATVEC_FORMAT_NO_ORDER)
		return true;
	second->next = after->staging;
	second->next_gain = after->gain;
	second->next_order = op_matvec_format_find(after->w[0].dtype)->order;
	after->is_staged = true;
	return true;
}

static uint32_t count_outputs(
	const struct op_experts_params *p, const struct op_matvec_experts_shape *s)
{
	return s->n_subgroups * (p->finish == OP_EXPERTS_SWIGLU ? s->n_rows / 2 : s->n_rows);
}

/* Units of a row of W as lanes share it: with MIX those of all of a row's experts. */
static uint32_t count_units(const struct op_experts_params *p)
{
	uint32_t n = (uint32_t)p->w[0].ne[0] / OP_MATVEC_FORMAT_UNIT;

	return p->finish == OP_EXPERTS_MIX ? n * p->n_used : n;
}

/* Of a lane's x in registers; 0: it is read for each tile. */
static uint32_t count_hold(const struct op_pool *pool, const struct op_experts_params *p,
	const struct op_matvec_experts_shape *s)
{
	uint32_t n_lanes = op_pool_get_subgroup_size(pool), n = count_units(p);

	if (!s->is_held || p->finish == OP_EXPERTS_MIX || n % (n_lanes * s->n_unroll) != 0 ||
		n / n_lanes > OP_MATVEC_MAX_HOLD)
		return 0;
	return n / n_lanes;
}

/* Does a workgroup of that shape fit the device? */
static bool fits_shape(const struct op_pool *pool, const struct op_experts_params *p,
	const struct op_matvec_experts_shape *s)
{
	uint32_t n_lanes = op_pool_get_subgroup_size(pool);
	uint64_t n = op_matvec_format_count_shared(
		get_format(p), s->n_subgroups * s->n_rows, s->n_unroll, n_lanes);

	return n + 256 <= op_pool_get_shared_bytes(pool) &&
	       s->n_subgroups * n_lanes <= op_pool_get_info(pool)->max_invocations;
}

/*
 * Few outputs and many experts: all loads of a layer's matrices under way at once are what a GPU
 * wants. Outputs that are staged are a workgroup's by 32, so that one with as many subgroups has a
 * row for each of them.
 */
struct op_matvec_experts_shape op_matvec_experts_choose(
	const struct op_pool *pool, const struct op_experts_params *p)
{
	enum { MAX_UNROLL = 3 };
	struct op_matvec_experts_shape s = {.n_rows = 2, .n_unroll = 1, .n_subgroups = 1};
	uint32_t n_lanes = op_pool_get_subgroup_size(pool);

	if (op_pool_is_software(pool))
		return s;
	s.is_ahead = true;
	s.is_held = true;
	s.n_subgroups = 16;
	if (p->finish == OP_EXPERTS_MIX) {
		s.n_rows = 1;
		s.n_unroll = (count_units(p) + n_lanes - 1) / n_lanes;
		s.n_unroll = s.n_unroll < MAX_UNROLL ? s.n_unroll : MAX_UNROLL;
		s.n_subgroups = 32;
	}
	while (!fits_shape(pool, p, &s) && s.n_unroll > 1)
		s.n_unroll--;
	while (!fits_shape(pool, p, &s) && s.n_subgroups > 1)
		s.n_subgroups /= 2;
	return s;
}

static int record_quantize(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, struct err *ret_err)
{
	const struct abi_quantize push = {.x = p->x,
		.gain = p->gain,
		.m = p->m,
		.staging = p->staging,
		.k = (uint32_t)p->w[0].ne[0]};

	return op_matvec_record_quantize(pool, c, &push, p->n_rows, get_format(p)->order, ret_err);
}

int op_matvec_experts_record_shape(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, const struct op_matvec_experts_shape *s,
	struct err *ret_err)
{
	bool is_mix = p->finish == OP_EXPERTS_MIX;
	const struct weights_tensor *w = &p->w[0];
	const struct op_matvec_format *f = get_format(p);
	struct op_pool_kernel kernel = {
		.n_subgroups = s->n_subgroups,
		.n_spec = ABI_MATVEC_SPEC_HOLD + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_QUANT_SPEC_NORM - ABI_SPEC_KERNEL] = p->gain != 0,
			[ABI_MATVEC_EXPERTS_SPEC_ROUTE - ABI_SPEC_KERNEL] =
				!is_mix && !p->is_routed,
			[ABI_MATVEC_SPEC_ROWS - ABI_SPEC_KERNEL] = s->n_rows,
			[ABI_MATVEC_SPEC_COLUMNS - ABI_SPEC_KERNEL] = 1,
			[ABI_MATVEC_SPEC_UNROLL - ABI_SPEC_KERNEL] = s->n_unroll,
			[ABI_MATVEC_SPEC_AHEAD - ABI_SPEC_KERNEL] = s->is_ahead,
			[ABI_MATVEC_SPEC_FINISH - ABI_SPEC_KERNEL] =
				is_mix ? ABI_TILE_FINISH_MIX : ABI_TILE_FINISH_SWIGLU,
			[ABI_MATVEC_EXPERTS_SPEC_ROW_UNITS - ABI_SPEC_KERNEL] =
				(uint32_t)w->ne[0] / OP_MATVEC_FORMAT_UNIT,
			[ABI_MATVEC_SPEC_HOLD - ABI_SPEC_KERNEL] = count_hold(pool, p, s),
			[ABI_MATVEC_SPEC_WHOLE - ABI_SPEC_KERNEL] =
				count_units(p) % (s->n_unroll * op_pool_get_subgroup_size(pool)) ==
				0,
			[ABI_MATVEC_SPEC_NEXT - ABI_SPEC_KERNEL] = p->next ? 1 + p->next_order : 0,
			[ABI_MATVEC_SPEC_NEXT_NORM - ABI_SPEC_KERNEL] = p->next && p->next_gain},
	};
	struct abi_matvec_experts push = {
		.w = {p->is_plain ? w[0].address : p->tables[0], is_mix        ? 0
								 : p->is_plain ? w[1].address
									       : p->tables[1]},
		.y = p->y,
		.logits = p->logits,
		.choice = p->choice,
		.m = p->m,
		.staging = p->staging,
		.next = p->next,
		.next_gain = p->next_gain,
		.n = (uint32_t)w->ne[1],
		.k = (uint32_t)w->ne[0],
		.n_row_bytes = (uint32_t)(w->n_bytes / (w->ne[1] * w->ne[2])),
		.n_expert = (uint32_t)w->ne[2],
		.n_used = p->n_used,
		.n_expert_bytes = p->is_plain ? (uint32_t)(w->n_bytes / w->ne[2]) : 0,
		.eps = p->eps,
	};

	if (!fits(pool, p) || (p->next ? 32 % count_outputs(p, s) != 0 : !is_mix) ||
		(is_mix && !p->is_staged))
		return err_set(ret_err, EINVAL, "matvec-experts: what does not fit");
	if (!fits_shape(pool, p, s))
		return err_set(ret_err, ENOTSUP,
			"matvec-experts: expected at most %u invocations and %u bytes of shared "
			"memory",
			op_pool_get_info(pool)->max_invocations, op_pool_get_shared_bytes(pool));
	kernel.id = f->experts;
	if (!p->is_staged) {
		int r = record_quantize(pool, c, p, ret_err);
		if (r)
			return r;
	}
	uint32_t n_group = p->next ? 32 : count_outputs(p, s);
	return op_pool_dispatch(pool, c, &kernel, &push,
		(push.n + n_group - 1) / n_group * s->n_subgroups,
		is_mix ? p->n_rows : p->n_rows * p->n_used, ret_err);
}

int op_matvec_experts_record(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, struct err *ret_err)
{
	struct op_matvec_experts_shape s = op_matvec_experts_choose(pool, p);

	return op_matvec_experts_record_shape(pool, c, p, &s, ret_err);
}
