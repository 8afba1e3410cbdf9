/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/group.h"

#include <errno.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "workerd/ops/pool.h"

/* A lane looks at each pair; a software driver leaves loops of 65,536 rounds. */
enum { MAX_PAIRS = 1 << 18 };

uint32_t op_group_count_slots(uint32_t n_rows, uint32_t n_expert, uint32_t n_used)
{
	return n_rows * n_used / ABI_GROUP_ROWS + n_expert;
}

uint32_t op_group_count_wide(uint32_t n_rows, uint32_t n_expert, uint32_t n_used)
{
	return n_rows * n_used / ABI_MATRIX_GROUP_ROWS + n_expert;
}

int op_group_record(struct op_pool *pool, struct vk_command *c, const struct op_group_params *p,
	struct err *ret_err)
{
	struct op_pool_kernel kernel = {.id = KERNELS_GROUP, .n_subgroups = 1};
	struct abi_group_push push = {.choice = p->choice,
		.pairs = p->pairs,
		.groups = p->groups,
		.wide = p->wide,
		.m = p->m,
		.n_expert = p->n_expert,
		.n_used = p->n_used};

	if ((uint64_t)p->n_rows * p->n_used > MAX_PAIRS)
		return err_set(ret_err, EINVAL,
			"group: expected up to %d rows and experts, found %u times %u", MAX_PAIRS,
			p->n_rows, p->n_used);
	return op_pool_dispatch(pool, c, &kernel, &push, p->n_expert, 1, ret_err);
}
