/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/stage.h"

#include "shaders/abi.h"
#include "workerd/ops/pool.h"

enum { N_INVOCATIONS = 256 };

int op_stage_record(struct op_pool *pool, struct vk_command *c, const struct op_stage_params *p,
	struct err *ret_err)
{
	const struct op_pool_kernel kernel = {
		.id = KERNELS_STAGE,
		.n_subgroups = N_INVOCATIONS / op_pool_get_subgroup_size(pool),
		.n_spec = ABI_STAGE_SPEC_BLOCKS + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_STAGE_SPEC_NORM - ABI_SPEC_KERNEL] = p->gain != 0,
			[ABI_STAGE_SPEC_GATHER - ABI_SPEC_KERNEL] = p->want != 0,
			[ABI_STAGE_SPEC_BLOCKS - ABI_SPEC_KERNEL] = p->is_blocks},
	};
	const struct abi_stage push = {
		.x = p->x,
		.y = p->y,
		.gain = p->gain,
		.want = p->want,
		.m = p->m,
		.n_share = p->n_share,
		.k = p->k,
		.eps = p->eps,
		.order = p->order,
	};

	return op_pool_dispatch(
		pool, c, &kernel, &push, p->n_rows * p->n_share * kernel.n_subgroups, 1, ret_err);
}
