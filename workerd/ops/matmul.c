/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/matmul.h"

#include <errno.h>
#include <inttypes.h>

#include "proto/util/err.h"
#include "vk/command.h"
#include "workerd/ops/matrix.h"
#include "workerd/ops/matvec.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/skinny.h"
#include "workerd/ops/variant.h"

static const enum kernels_id kernels[OP_VARIANT_N] = {
	[OP_VARIANT_F32] = KERNELS_MATMUL_F32,
	[OP_VARIANT_F32_X4] = KERNELS_MATMUL_F32_X4,
	[OP_VARIANT_F16] = KERNELS_MATMUL_F16,
	[OP_VARIANT_F16_X2] = KERNELS_MATMUL_F16_X2,
	[OP_VARIANT_Q8_0] = KERNELS_MATMUL_Q8_0,
	[OP_VARIANT_Q8_0_X2] = KERNELS_MATMUL_Q8_0_X2,
	[OP_VARIANT_BF16] = KERNELS_MATMUL_BF16,
	[OP_VARIANT_BF16_X2] = KERNELS_MATMUL_BF16_X2,
	[OP_VARIANT_Q4_0] = KERNELS_MATMUL_Q4_0,
	[OP_VARIANT_Q4_0_X2] = KERNELS_MATMUL_Q4_0_X2,
	[OP_VARIANT_Q4_K] = KERNELS_MATMUL_Q4_K,
	[OP_VARIANT_Q5_K] = KERNELS_MATMUL_Q5_K,
	[OP_VARIANT_Q6_K] = KERNELS_MATMUL_Q6_K,
	[OP_VARIANT_TQ2_0] = KERNELS_MATMUL_TQ2_0,
	[OP_VARIANT_Q2_0] = KERNELS_MATMUL_Q2_0,
	[OP_VARIANT_Q1_0] = KERNELS_MATMUL_Q1_0,
};

/* The register tile of a subgroup: rows of W by rows of x. */
struct tile {
	uint32_t n;
	uint32_t m;
};

/*
 * A tile's loads are shared among its sums, but a real device wants many subgroups for one row and
 * registers for all of them (of 1 to 8 by 1 to 8, measured on an H200). In a software driver
 * registers are memory in the first cache, and each tile compiles for a tenth of a second at its
 * first use: two and no more. The order of a sum is the same in all.
 */
static struct tile choose_tile(const struct op_pool *pool, uint32_t n_rows)
{
	bool is_one = n_rows == 1;
	uint32_t n = op_pool_is_software(pool) ? 16 : is_one ? 2 : 8;

	return (struct tile){.n = n, .m = is_one ? 1 : 4};
}

/* The parts from first on that one dispatch takes; y_at: their first column of y. */
static int record_parts(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, enum op_variant variant, uint32_t first, uint32_t n_parts,
	uint32_t finish, uint32_t y_at, uint32_t y_stride, struct err *ret_err)
{
	const struct weights_tensor *w = &p->w[first];
	struct tile tile = choose_tile(pool, p->n_rows);
	uint32_t n_out = finish == ABI_TILE_FINISH_SWIGLU ? tile.n / 2 : tile.n;
	uint32_t n_counted = finish == ABI_TILE_FINISH_SWIGLU ? 1 : n_parts;
	uint32_t n_tiles = 0;
	struct op_pool_kernel kernel = {
		.id = kernels[variant],
		.n_subgroups = op_pool_is_software(pool) ? 1 : 4,
		.n_spec = ABI_MATMUL_SPEC_GATHER + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_TILE_SPEC_N - ABI_SPEC_KERNEL] = tile.n,
			[ABI_TILE_SPEC_M - ABI_SPEC_KERNEL] = tile.m,
			[ABI_TILE_SPEC_NORM - ABI_SPEC_KERNEL] = p->gain != 0,
			[ABI_MATMUL_SPEC_GATHER - ABI_SPEC_KERNEL] = p->want != 0,
			[ABI_TILE_SPEC_FINISH - ABI_SPEC_KERNEL] = finish},
	};
	/* The second half of a SwiGLU in two dispatches finds the first in y. */
	uint64_t r = finish == ABI_TILE_FINISH_GATE ? p->y : p->r;
	struct abi_matmul push = {
		.x = p->x,
		.y = p->y + 4ull * y_at,
		.gain = p->gain,
		.r = r ? r + 4ull * y_at : 0,
		.m = p->m,
		.want = p->want,
		.k = (uint32_t)w->ne[0],
		.n_row_bytes = (uint32_t)(w->n_bytes / w->ne[1]),
		.y_stride = y_stride,
		.eps = p->eps,
	};

	for (uint32_t i = 0; i < n_parts; i++) {
		push.w[i] = w[i].address;
		push.n[i] = (uint32_t)w[i].ne[1];
		if (i < n_counted)
			n_tiles += (push.n[i] + n_out - 1) / n_out;
	}
	return op_pool_dispatch(
		pool, c, &kernel, &push, n_tiles, (p->n_rows + tile.m - 1) / tile.m, ret_err);
}

static int check_parts(const struct op_matmul_params *p, struct err *ret_err,
	enum op_variant ret_variants[ABI_MATMUL_MAX_PARTS], uint32_t *ret_y_stride)
{
	enum op_variant variants[ABI_MATMUL_MAX_PARTS];
	uint64_t n = 0;

	if (p->n_parts == 0 || p->n_parts > ABI_MATMUL_MAX_PARTS ||
		(p->finish == OP_MATMUL_SWIGLU && p->n_parts != 2))
		return err_set(ret_err, EINVAL, "found %u matrices", p->n_parts);
	for (uint32_t i = 0; i < p->n_parts; i++) {
		int r = op_variant_choose(&p->w[i], ret_err, &variants[i]);
		if (r)
			return r;
		if (p->w[i].ne[0] != p->w[0].ne[0] || p->w[i].ne[2] != 1 ||
			(p->finish == OP_MATMUL_SWIGLU && p->w[i].ne[1] != p->w[0].ne[1]))
			return err_set(ret_err, EINVAL,
				"shape: expected as the first matrix, %" PRIu64 " x %" PRIu64
				", found %" PRIu64 " x %" PRIu64,
				p->w[0].ne[0], p->w[0].ne[1], p->w[i].ne[0], p->w[i].ne[1]);
		n += p->w[i].ne[1];
	}
	if (p->finish == OP_MATMUL_SWIGLU)
		n /= 2;
	/* A row of y in bytes is counted in 32 bits. */
	if (n > UINT32_MAX / sizeof(float))
		return err_set(ret_err, EINVAL, "width: found %" PRIu64, n);
	for (uint32_t i = 0; i < p->n_parts; i++)
		ret_variants[i] = variants[i];
	*ret_y_stride = (uint32_t)n;
	return 0;
}

/* Runs of parts that one kernel reads; their outputs lie side by side in a row of y. */
static int record_runs(struct op_pool *pool, struct vk_command *c, const struct op_matmul_params *p,
	const enum op_variant variants[ABI_MATMUL_MAX_PARTS], uint32_t y_stride,
	struct err *ret_err)
{
	uint32_t y_at = 0;

	for (uint32_t first = 0, n = 0; first < p->n_parts; first += n) {
		uint32_t width = 0;
		for (n = 0; first + n < p->n_parts && variants[first + n] == variants[first]; n++)
			width += (uint32_t)p->w[first + n].ne[1];
		int r = record_parts(
			pool, c, p, variants[first], first, n, p->finish, y_at, y_stride, ret_err);
		if (r)
			return r;
		y_at += width;
	}
	return 0;
}

/* The kernels that read each weight once; false: there are none for it. */
static bool record_fast(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, struct err *ret_err, int *ret_code)
{
	if (op_skinny_wants(pool, p))
		*ret_code = op_skinny_record(pool, c, p, ret_err);
	else if (op_matvec_fits(pool, p))
		*ret_code = op_matvec_record(pool, c, p, ret_err);
	else if (op_matrix_fits(pool, p))
		*ret_code = op_matrix_record(pool, c, p, ret_err);
	else
		return false;
	return true;
}

static int record_exact(struct op_pool *pool, struct vk_command *c,
	const struct op_matmul_params *p, struct err *ret_err)
{
	enum op_variant variants[ABI_MATMUL_MAX_PARTS];
	uint32_t y_stride = 0;

	int r = check_parts(p, ret_err, variants, &y_stride);
	if (r) {
		err_prefix(ret_err, "matmul");
		return r;
	}
	if (p->finish != OP_MATMUL_SWIGLU)
		return record_runs(pool, c, p, variants, y_stride, ret_err);
	if (variants[0] == variants[1])
		return record_parts(pool, c, p, variants[0], 0, 2, ABI_TILE_FINISH_SWIGLU, 0,
			y_stride, ret_err);
	r = record_parts(
		pool, c, p, variants[0], 0, 1, ABI_TILE_FINISH_STORE, 0, y_stride, ret_err);
	if (r)
		return r;
	vk_command_barrier(c);
	return record_parts(
		pool, c, p, variants[1], 1, 1, ABI_TILE_FINISH_GATE, 0, y_stride, ret_err);
}

int op_matmul_record(struct op_pool *pool, struct vk_command *c, const struct op_matmul_params *p,
	struct err *ret_err)
{
	int r = 0;

	if (record_fast(pool, c, p, ret_err, &r))
		return r;
	return record_exact(pool, c, p, ret_err);
}
