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

/* Units of a row of W as lanes share it: with MIX those of all of a row's experts. */
static uint64_t count_units(const struct op_experts_params *p)
{
	uint64_t n = p->w[0].ne[0] / OP_MATVEC_FORMAT_UNIT;

	return p->finish == OP_EXPERTS_MIX ? n * p->n_used : n;
}

/* Of a lane's x in registers; 0: it is read for each tile. */
static uint32_t count_hold(const struct op_pool *pool, const struct op_experts_params *p,
	const struct op_matvec_experts_shape *s)
{
	uint32_t n_lanes = op_pool_get_subgroup_size(pool);
	uint64_t n = count_units(p);

	if (!s->is_held || p->finish == OP_EXPERTS_MIX || s->n_unroll != 1 || n % n_lanes != 0 ||
		n / n_lanes > OP_MATVEC_MAX_HOLD)
		return 0;
	return (uint32_t)(n / n_lanes);
}

/* Outputs of a workgroup in one go. */
static uint32_t count_outputs(
	const struct op_experts_params *p, const struct op_matvec_experts_shape *s)
{
	return s->n_subgroups * (p->finish == OP_EXPERTS_SWIGLU ? s->n_rows / 2 : s->n_rows);
}

/* Does a workgroup of that shape fit the device? */
static bool fits_shape(const struct op_pool *pool, const struct op_experts_params *p,
	const struct op_matvec_experts_shape *s)
{
	/* Of choose.glsl, and outputs. */
	const uint64_t n_others = 4 * ABI_MAX_EXPERTS + 8 * ABI_MAX_EXPERTS_USED + 4 * 32;
	uint32_t n_lanes = op_pool_get_subgroup_size(pool);
	uint64_t n_w = op_matvec_format_count_shared(
		get_format(p), s->n_subgroups * s->n_rows, s->n_unroll, n_lanes);
	uint64_t n_x = p->finish == OP_EXPERTS_MIX ? 80 * count_units(p) : 80;

	return n_w + n_x + n_others <= op_pool_get_shared_bytes(pool) &&
	       s->n_subgroups * n_lanes <= op_pool_get_info(pool)->max_invocations &&
	       !(p->next && 32 % count_outputs(p, s) != 0);
}

bool op_matvec_experts_fits(const struct op_pool *pool, const struct op_experts_params *p)
{
	static const struct op_matvec_experts_shape least = {
		.n_rows = 2, .n_unroll = 1, .n_subgroups = 1};
	bool is_mix = p->finish == OP_EXPERTS_MIX;
	uint64_t n_staging_bytes = op_matvec_staging_bytes(p->w[0].ne[0], p->n_rows);

	if (p->is_exact || p->is_far || p->n_rows == 0 || p->n_rows > OP_MATVEC_EXPERTS_MAX_ROWS ||
		p->n_used == 0 || p->n_used > op_pool_get_subgroup_size(pool) ||
		p->n_used > p->w[0].ne[2] || p->n_used > ABI_MAX_EXPERTS_USED ||
		op_experts_is_grouped(p->n_rows, (uint32_t)p->w[0].ne[2], p->n_used))
		return false;
	for (uint32_t i = 0; i < (is_mix ? 1 : 2); i++)
		if (!op_matvec_format_fits(&p->w[i]) || p->w[i].dtype != p->w[0].dtype ||
			p->w[i].ne[0] != p->w[0].ne[0] || p->w[i].ne[1] != p->w[0].ne[1] ||
			p->w[i].ne[2] != p->w[0].ne[2] ||
			p->w[i].n_bytes / p->w[i].ne[2] > UINT32_MAX)
			return false;
	if (get_format(p)->experts == KERNELS_N || !fits_shape(pool, p, &least))
		return false;
	return is_mix ? !p->gain && p->x % 16 == 0
		      : p->staging && p->staging % 16 == 0 && !p->next &&
				p->n_staging_bytes >= n_staging_bytes;
}

bool op_matvec_experts_chain(
	const struct op_pool *pool, struct op_experts_params *p, struct op_matmul_params *after)
{
	if (p->finish != OP_EXPERTS_MIX || !op_matvec_experts_fits(pool, p) ||
		p->w[0].ne[1] % 64 != 0 || !op_matvec_fits(pool, after) || after->want ||
		after->n_rows != p->n_rows || after->w[0].ne[0] != p->w[0].ne[1] ||
		op_matvec_format_find(after->w[0].dtype)->order == OP_MATVEC_FORMAT_NO_ORDER)
		return false;
	p->next = after->staging;
	p->next_gain = after->gain;
	p->next_order = op_matvec_format_find(after->w[0].dtype)->order;
	after->is_staged = true;
	return true;
}

bool op_matvec_experts_wants_chain(const struct op_pool *pool)
{
	return op_pool_is_software(pool);
}

/*
 * Few outputs and many experts: what a GPU wants is that all of it is under way at once, evenly. So
 * there are three workgroups a core, and those of a pair share its outputs; for a row's sums over
 * its experts there are as many as there is work. Measured on an H200.
 */
struct op_matvec_experts_shape op_matvec_experts_choose(
	const struct op_pool *pool, const struct op_experts_params *p)
{
	enum { MAX_UNROLL = 3, CORE_GROUPS = 3 };
	struct op_matvec_experts_shape s = {.n_rows = 2, .n_unroll = 1, .n_subgroups = 1};
	uint32_t n_lanes = op_pool_get_subgroup_size(pool);
	uint32_t n_cores = op_pool_get_info(pool)->n_cores;

	if (op_pool_is_software(pool))
		return s;
	s.is_ahead = true;
	s.n_subgroups = 16;
	if (p->finish == OP_EXPERTS_MIX) {
		uint64_t n_unroll = (count_units(p) + n_lanes - 1) / n_lanes;
		s.n_rows = 1;
		s.n_unroll = n_unroll < MAX_UNROLL ? (uint32_t)n_unroll : MAX_UNROLL;
	} else {
		uint32_t n_pairs = p->n_rows * p->n_used;
		s.is_held = true;
		s.n_subgroups = 8;
		s.n_groups = CORE_GROUPS * n_cores / n_pairs;
		/* A device that does not say how many it has gets all there are. */
		if (n_cores && s.n_groups == 0)
			s.n_groups = 1;
	}
	/* Runs of 32 outputs: the most lanes for each, with two rows of loads under way. */
	if (p->next) {
		s.n_rows = 2;
		s.n_unroll = 1;
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

/* Tiles of a pair or row, with a next op whole runs of 32 outputs; and no more than are wanted. */
static uint32_t count_grid(
	const struct op_experts_params *p, const struct op_matvec_experts_shape *s)
{
	uint32_t n_out = p->next ? 32 : count_outputs(p, s);
	uint32_t n = ((uint32_t)p->w[0].ne[1] + n_out - 1) / n_out;

	return (s->n_groups && s->n_groups < n ? s->n_groups : n) * s->n_subgroups;
}

int op_matvec_experts_record_shape(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, const struct op_matvec_experts_shape *s,
	struct err *ret_err)
{
	bool is_mix = p->finish == OP_EXPERTS_MIX;
	const struct weights_tensor *w = &p->w[0];
	const struct op_matvec_format *f = get_format(p);
	uint32_t n_lanes = op_pool_get_subgroup_size(pool);
	uint32_t n_row_units = (uint32_t)w->ne[0] / OP_MATVEC_FORMAT_UNIT;

	if (!op_matvec_experts_fits(pool, p) || (p->next && !is_mix))
		return err_set(ret_err, EINVAL, "matvec-experts: what does not fit");
	if (!fits_shape(pool, p, s))
		return err_set(ret_err, ENOTSUP,
			"matvec-experts: expected at most %u invocations and %u bytes of shared "
			"memory",
			op_pool_get_info(pool)->max_invocations, op_pool_get_shared_bytes(pool));
	const struct op_pool_kernel kernel = {
		.id = f->experts,
		.n_subgroups = s->n_subgroups,
		.n_spec = ABI_MATVEC_SPEC_HOLD + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_QUANT_SPEC_NORM - ABI_SPEC_KERNEL] = p->gain != 0,
			[ABI_MATVEC_EXPERTS_SPEC_ROUTE - ABI_SPEC_KERNEL] =
				!is_mix && !p->is_routed,
			[ABI_QUANT_SPEC_ORDER - ABI_SPEC_KERNEL] = f->order,
			[ABI_MATVEC_SPEC_ROWS - ABI_SPEC_KERNEL] = s->n_rows,
			[ABI_MATVEC_SPEC_COLUMNS - ABI_SPEC_KERNEL] = 1,
			[ABI_MATVEC_SPEC_UNROLL - ABI_SPEC_KERNEL] = s->n_unroll,
			[ABI_MATVEC_SPEC_AHEAD - ABI_SPEC_KERNEL] = s->is_ahead,
			[ABI_MATVEC_SPEC_FINISH - ABI_SPEC_KERNEL] =
				is_mix ? ABI_TILE_FINISH_MIX : ABI_TILE_FINISH_SWIGLU,
			[ABI_MATVEC_SPEC_UNITS - ABI_SPEC_KERNEL] =
				is_mix ? (uint32_t)count_units(p) : 0,
			[ABI_MATVEC_SPEC_WHOLE - ABI_SPEC_KERNEL] =
				count_units(p) % (s->n_unroll * n_lanes) == 0,
			[ABI_MATVEC_SPEC_NEXT - ABI_SPEC_KERNEL] = p->next ? 1 + p->next_order : 0,
			[ABI_MATVEC_SPEC_NEXT_NORM - ABI_SPEC_KERNEL] = p->next && p->next_gain,
			[ABI_MATVEC_EXPERTS_SPEC_X - ABI_SPEC_KERNEL] =
				is_mix ? n_row_units : count_hold(pool, p, s)},
	};
	const struct abi_matvec_experts push = {
		.w = {p->is_plain ? w[0].address : p->tables[0], is_mix        ? 0
								 : p->is_plain ? w[1].address
									       : p->tables[1]},
		.x = is_mix ? p->x : p->staging,
		.y = p->y,
		.logits = p->logits,
		.choice = p->choice,
		.m = p->m,
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

	int r = is_mix || p->is_staged ? 0 : record_quantize(pool, c, p, ret_err);
	return r ? r
		 : op_pool_dispatch(pool, c, &kernel, &push, count_grid(p, s),
			   is_mix ? p->n_rows : p->n_rows * p->n_used, ret_err);
}

int op_matvec_experts_record(struct op_pool *pool, struct vk_command *c,
	const struct op_experts_params *p, struct err *ret_err)
{
	struct op_matvec_experts_shape s = op_matvec_experts_choose(pool, p);

	return op_matvec_experts_record_shape(pool, c, p, &s, ret_err);
}
