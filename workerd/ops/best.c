/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/best.h"

#include "shaders/abi.h"
#include "vk/command.h"
#include "workerd/ops/pool.h"

enum {
	N_SUBGROUPS = 8,
	PART_LOGITS = 2048, /* that are worth a workgroup */
};

uint32_t op_best_count_parts(uint32_t n)
{
	uint32_t n_parts = (n + PART_LOGITS - 1) / PART_LOGITS;

	return n_parts < ABI_BEST_PARTS ? n_parts : ABI_BEST_PARTS;
}

int op_best_record(struct op_pool *pool, struct vk_command *c, const struct op_best_params *p,
	struct err *ret_err)
{
	const struct abi_best_push push = {.logits = p->logits,
		.parts = p->parts,
		.y = p->y,
		.picked = p->picked,
		.asked = p->asked,
		.m = p->m,
		.n = p->n,
		.n_parts = op_best_count_parts(p->n)};
	struct op_pool_kernel parts = {.id = KERNELS_BEST_PARTS, .n_subgroups = N_SUBGROUPS};
	struct op_pool_kernel merge = {.id = KERNELS_BEST_MERGE, .n_subgroups = N_SUBGROUPS};

	int r = op_pool_dispatch(
		pool, c, &parts, &push, push.n_parts * N_SUBGROUPS, p->n_rows, ret_err);
	if (r)
		return r;
	vk_command_barrier(c);
	return op_pool_dispatch(pool, c, &merge, &push, 1, p->n_rows, ret_err);
}
