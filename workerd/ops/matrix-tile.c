/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/matrix-tile.h"

#include <stddef.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "shaders/abi.h"
#include "vk/device.h"
#include "workerd/weights.h"

enum {
	/* Kernels count elements and bytes of a row in 32 bits. */
	MAX_EDGE = 1 << 28,
	/* Vulkan promises fewer; a device that has matrices and no such workgroups says so itself,
	 * when the pipeline is made. */
	MAX_INVOCATIONS = 1024,
	WIDE_EDGE = 16, /* of matrices whose order is known, and k of a group */
	WIDE_TASKS = 4, /* quads of a step that an invocation takes at most, of W and of x */
};

struct row {
	uint32_t dtype;
	enum kernels_id ids[2]; /* of experts the second */
	enum kernels_id wide;
	enum kernels_id blocks;
	enum kernels_id decoder;
};

static const struct row rows[] = {
	{DTYPE_F16, {KERNELS_MATRIX_F16, KERNELS_MATRIX_EXPERTS_F16}, KERNELS_MATRIX_WIDE_F16,
		KERNELS_MATRIX_BLOCKS_F16, KERNELS_N},
#define ROW(name)                                                                     \
	{                                                                             \
		DTYPE_##name, {KERNELS_MATRIX_##name, KERNELS_MATRIX_EXPERTS_##name}, \
			KERNELS_MATRIX_WIDE_##name, KERNELS_MATRIX_BLOCKS_##name,     \
			KERNELS_MATRIX_DECODE_##name                                  \
	}
	ROW(F32),
	ROW(BF16),
	ROW(Q8_0),
	ROW(Q4_0),
	ROW(Q4_K),
	ROW(Q6_K),
	ROW(TQ2_0),
	ROW(Q2_0),
	ROW(Q1_0),
#undef ROW
};

static const struct row *find_row(uint32_t dtype)
{
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		if (rows[i].dtype == dtype)
			return &rows[i];
	return NULL;
}

/* The device's matrices that the tile wants, or the first listed. */
static const struct vk_device_matrix *find_matrix(
	const struct vk_device_info *info, const struct op_matrix_tile *t)
{
	for (uint32_t i = 0; i < info->n_matrices; i++)
		if (!t->n || info->matrices[i].n == t->n)
			return &info->matrices[i];
	return NULL;
}

/* Two buffers of a step, and the groups of k and pairs of rows of shaders/matrix-wide.glsl. */
static bool fits_wide(const struct op_matrix_tile *t, const struct vk_device_matrix *matrix,
	uint32_t n_invocations, bool has_order)
{
	uint32_t n_quads = t->bk / 8 * (t->bn > t->bm ? t->bn : t->bm);

	return n_quads <= WIDE_TASKS * n_invocations && !t->is_direct && !t->is_ragged &&
	       t->n_buffers == 2 && t->bn % WIDE_EDGE == 0 && t->bm % WIDE_EDGE == 0 &&
	       WIDE_EDGE % matrix->k == 0 &&
	       (!has_order || (matrix->m == WIDE_EDGE && matrix->n == WIDE_EDGE));
}

bool op_matrix_tile_bind(const struct op_pool *pool, const struct op_matrix_tile *t, uint64_t k,
	struct op_pool_kernel *ret_kernel)
{
	const struct vk_device_info *info = op_pool_get_info(pool);
	const struct vk_device_matrix *matrix = find_matrix(info, t);

	if (!matrix || !t->sn || !t->sm || !t->bk || !t->bn || !t->bm || t->bn % t->sn ||
		t->bm % t->sm || t->sn % matrix->n || t->sm % matrix->m || t->bk % matrix->k ||
		t->bk % 32 || t->sn % 8 || t->bm % 8 || t->n_buffers < 1 || t->n_buffers > 2 ||
		k % t->bk)
		return false;
	uint32_t n_subgroups = (uint32_t)(t->bn / t->sn) * (t->bm / t->sm);
	uint32_t order = t->is_wide ? op_pool_get_matrix_order(pool) : 0;
	if (t->is_wide && !fits_wide(t, matrix, n_subgroups * info->subgroup_size, order != 0))
		return false;
	/* The two uses of the shared memory of shaders/matrix.glsl. */
	uint64_t n_input = 16ull * t->n_buffers * (t->bn + (t->is_direct ? 0 : t->bm)) *
			   (t->bk / 8 + (order ? 0 : 1));
	uint64_t n_output = 16ull * n_subgroups * matrix->m * (t->sn / 4 + 2);
	if (n_input > info->max_shared_bytes || n_output > info->max_shared_bytes ||
		n_subgroups * info->subgroup_size > MAX_INVOCATIONS)
		return false;
	ret_kernel->n_subgroups = n_subgroups;
	ret_kernel->n_spec =
		(t->is_wide ? ABI_MATRIX_SPEC_ORDER : ABI_MATRIX_SPEC_DIRECT) + 1 - ABI_SPEC_KERNEL;
	ret_kernel->spec[ABI_MATRIX_SPEC_BN - ABI_SPEC_KERNEL] = t->bn;
	ret_kernel->spec[ABI_MATRIX_SPEC_BM - ABI_SPEC_KERNEL] = t->bm;
	ret_kernel->spec[ABI_MATRIX_SPEC_BK - ABI_SPEC_KERNEL] = t->bk;
	ret_kernel->spec[ABI_MATRIX_SPEC_SN - ABI_SPEC_KERNEL] = t->sn;
	ret_kernel->spec[ABI_MATRIX_SPEC_SM - ABI_SPEC_KERNEL] = t->sm;
	ret_kernel->spec[ABI_MATRIX_SPEC_N - ABI_SPEC_KERNEL] = matrix->n;
	ret_kernel->spec[ABI_MATRIX_SPEC_M - ABI_SPEC_KERNEL] = matrix->m;
	ret_kernel->spec[ABI_MATRIX_SPEC_K - ABI_SPEC_KERNEL] = matrix->k;
	ret_kernel->spec[ABI_MATRIX_SPEC_BUFFERS - ABI_SPEC_KERNEL] = t->n_buffers;
	ret_kernel->spec[ABI_MATRIX_SPEC_RAGGED - ABI_SPEC_KERNEL] = t->is_ragged;
	ret_kernel->spec[ABI_MATRIX_SPEC_DIRECT - ABI_SPEC_KERNEL] = t->is_direct;
	ret_kernel->spec[ABI_MATRIX_SPEC_ORDER - ABI_SPEC_KERNEL] = order;
	return true;
}

bool op_matrix_tile_find_kernel(
	const struct weights_tensor *w, bool is_experts, enum kernels_id *ret_id)
{
	const struct dtype *dtype = dtype_find(w->dtype);
	uint64_t k = w->ne[0], n = w->ne[1];
	const struct row *row = find_row(w->dtype);

	if (!row || !kernels_has(row->ids[is_experts]) || !dtype)
		return false;
	/* Whole blocks, in words that the kernels load together. */
	if (w->layout != MANIFEST_LAYOUT_RAW || k == 0 || k >= MAX_EDGE || k % 32 ||
		k % dtype->n_block || n == 0 || n >= MAX_EDGE || w->ne[2] == 0 ||
		w->ne[2] > (is_experts ? ABI_MAX_EXPERTS : 1) || w->ne[3] != 1)
		return false;
	uint64_t n_bytes = n * (k / dtype->n_block * dtype->n_bytes);
	if (w->address % 16 || w->n_bytes != n_bytes * w->ne[2] || (w->ne[2] > 1 && n_bytes % 16))
		return false;
	*ret_id = row->ids[is_experts];
	return true;
}

bool op_matrix_tile_find_wide(uint32_t dtype, enum kernels_id *ret_id, enum kernels_id *ret_blocks)
{
	const struct row *row = find_row(dtype);

	if (!row || !kernels_has(row->wide))
		return false;
	*ret_id = row->wide;
	*ret_blocks = row->blocks;
	return true;
}

bool op_matrix_tile_find_decoder(uint32_t dtype, enum kernels_id *ret_id)
{
	const struct row *row = find_row(dtype);

	if (!row || row->decoder == KERNELS_N)
		return false;
	*ret_id = row->decoder;
	return true;
}
