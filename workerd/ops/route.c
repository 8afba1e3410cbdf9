/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/route.h"

#include <errno.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "workerd/ops/pool.h"

int op_route_record(struct op_pool *pool, struct vk_command *c, const struct op_route_params *p,
	struct err *ret_err)
{
	enum { N_INVOCATIONS = 128 };
	struct op_pool_kernel kernel = {.id = KERNELS_ROUTE,
		.n_subgroups = op_pool_is_software(pool)
				       ? 1
				       : N_INVOCATIONS / op_pool_get_subgroup_size(pool)};
	struct abi_route push = {.logits = p->logits,
		.choice = p->choice,
		.m = p->m,
		.n_expert = p->n_expert,
		.n_used = p->n_used};

	if (p->n_expert > ABI_MAX_EXPERTS || p->n_used == 0 || p->n_used > p->n_expert ||
		p->n_used > ABI_MAX_EXPERTS_USED)
		return err_set(ret_err, EINVAL,
			"route: expected up to %d of %d experts, found %u of %u",
			ABI_MAX_EXPERTS_USED, ABI_MAX_EXPERTS, p->n_used, p->n_expert);
	return op_pool_dispatch(pool, c, &kernel, &push, kernel.n_subgroups, p->n_rows, ret_err);
}
