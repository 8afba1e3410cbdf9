/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/group.h"

#include <errno.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/device.h"
#include "workerd/ops/pool.h"

/* Eight lanes look at all pairs; a software driver leaves loops of 65,536 rounds. */
enum { MAX_PAIRS = 1 << 18 };

uint32_t op_group_count_slots(uint32_t n_rows, uint32_t n_expert, uint32_t n_used)
{
	return n_rows * n_used / ABI_GROUP_ROWS + n_expert;
}

uint32_t op_group_count_wide(
	uint32_t n_rows, uint32_t n_expert, uint32_t n_used, uint32_t wide_rows)
{
	return n_rows * n_used / wide_rows + n_expert;
}

uint32_t op_group_choose_wide(uint32_t n_rows, uint32_t n_expert, uint32_t n_used)
{
	uint64_t n_pairs = (uint64_t)n_rows * n_used;

	/* With some room: few experts have so many more that they need another group. */
	return n_pairs <= 8ull * n_expert    ? 16
	       : n_pairs <= 20ull * n_expert ? 32
	       : n_pairs <= 36ull * n_expert ? 48
					     : 64;
}

int op_group_record(struct op_pool *pool, struct vk_command *c, const struct op_group_params *p,
	struct err *ret_err)
{
	enum { N_INVOCATIONS = 512 };
	uint32_t n_max = op_pool_get_info(pool)->max_invocations;
	uint32_t n = n_max < N_INVOCATIONS ? n_max : N_INVOCATIONS;
	struct op_pool_kernel kernel = {.id = KERNELS_GROUP,
		.n_subgroups = op_pool_is_software(pool) ? 1 : n / op_pool_get_subgroup_size(pool)};
	struct abi_group_push push = {.choice = p->choice,
		.pairs = p->pairs,
		.groups = p->groups,
		.wide = p->wide,
		.m = p->m,
		.n_expert = p->n_expert,
		.n_used = p->n_used,
		.wide_rows = p->wide_rows};

	if (p->wide && (p->wide_rows < ABI_MIN_WIDE_ROWS || p->wide_rows % ABI_MIN_WIDE_ROWS))
		return err_set(
			ret_err, EINVAL, "group: found %u rows of a wide group", p->wide_rows);
	if ((uint64_t)p->n_rows * p->n_used > MAX_PAIRS)
		return err_set(ret_err, EINVAL,
			"group: expected up to %d rows and experts, found %u times %u", MAX_PAIRS,
			p->n_rows, p->n_used);
	return op_pool_dispatch(
		pool, c, &kernel, &push, p->n_expert * kernel.n_subgroups, 1, ret_err);
}
