/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/embed.h"

#include <errno.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "workerd/ops/pool.h"
#include "workerd/ops/variant.h"

static const enum kernels_id kernels[OP_VARIANT_N] = {
	[OP_VARIANT_F32] = KERNELS_EMBED_F32,
	[OP_VARIANT_F32_X4] = KERNELS_EMBED_F32_X4,
	[OP_VARIANT_F16] = KERNELS_EMBED_F16,
	[OP_VARIANT_F16_X2] = KERNELS_EMBED_F16_X2,
	[OP_VARIANT_Q8_0] = KERNELS_EMBED_Q8_0,
	[OP_VARIANT_Q8_0_X2] = KERNELS_EMBED_Q8_0_X2,
	[OP_VARIANT_BF16] = KERNELS_EMBED_BF16,
	[OP_VARIANT_BF16_X2] = KERNELS_EMBED_BF16_X2,
	[OP_VARIANT_Q4_0] = KERNELS_EMBED_Q4_0,
	[OP_VARIANT_Q4_0_X2] = KERNELS_EMBED_Q4_0_X2,
	[OP_VARIANT_Q4_K] = KERNELS_EMBED_Q4_K,
	[OP_VARIANT_Q5_K] = KERNELS_EMBED_Q5_K,
	[OP_VARIANT_Q6_K] = KERNELS_EMBED_Q6_K,
	[OP_VARIANT_TQ2_0] = KERNELS_EMBED_TQ2_0,
	[OP_VARIANT_Q2_0] = KERNELS_EMBED_Q2_0,
	[OP_VARIANT_Q1_0] = KERNELS_EMBED_Q1_0,
};

/* A row is a few KiB: enough subgroups that each writes a KiB of it. */
enum { CHUNK_FLOATS = 256 };

int op_embed_record(struct op_pool *pool, struct vk_command *c,
	const struct op_embed_params *params, struct err *ret_err)
{
	const struct weights_tensor *w = &params->w;
	enum op_variant variant = OP_VARIANT_N;

	int r = w->ne[2] == 1 ? op_variant_choose(w, ret_err, &variant)
			      : err_set(ret_err, EINVAL, "expected one matrix");
	if (r) {
		err_prefix(ret_err, "embed");
		return r;
	}
	struct op_pool_kernel kernel = {.id = kernels[variant], .n_subgroups = 1};
	struct abi_embed push = {
		.w = w->address,
		.rows = params->rows,
		.m = params->m,
		.y = params->y,
		.picked = params->picked,
		.k = (uint32_t)w->ne[0],
		.n_row_bytes = (uint32_t)(w->n_bytes / w->ne[1]),
	};
	uint32_t n_chunks = (push.k + CHUNK_FLOATS - 1) / CHUNK_FLOATS;
	return op_pool_dispatch(pool, c, &kernel, &push, n_chunks, params->n_rows, ret_err);
}
