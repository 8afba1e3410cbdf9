/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/router.h"

#include <errno.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "proto/util/err.h"
#include "shaders/abi.h"
#include "workerd/ops/pool.h"

enum {
	N_INVOCATIONS = 256, /* of a logit: two loads of each row of 2048 numbers */
	N_SOFTWARE_SUBGROUPS = 4,
	MAX_K = 1 << 24, /* bytes of a row are counted in 32 bits */
};

bool op_router_fits(const struct op_router_params *p)
{
	const struct weights_tensor *w = &p->w;
	uint64_t k = w->ne[0], n_expert = w->ne[1];

	if (p->is_exact || p->n_rows == 0 || p->n_rows > OP_ROUTER_MAX_ROWS ||
		w->dtype != DTYPE_F32 || w->layout != MANIFEST_LAYOUT_RAW || w->ne[2] != 1 ||
		w->ne[3] != 1 || k == 0 || k > MAX_K || n_expert == 0 || n_expert > ABI_MAX_EXPERTS)
		return false;
	return k % (p->staging ? 64 : 4) == 0 && w->n_bytes == k * n_expert * sizeof(float) &&
	       w->address % 16 == 0 && p->x % 16 == 0 && p->gain % 16 == 0 && p->staging % 16 == 0;
}

int op_router_record(struct op_pool *pool, struct vk_command *c, const struct op_router_params *p,
	struct err *ret_err)
{
	const struct op_pool_kernel kernel = {
		.id = KERNELS_ROUTER,
		.n_subgroups = op_pool_is_software(pool)
				       ? N_SOFTWARE_SUBGROUPS
				       : N_INVOCATIONS / op_pool_get_subgroup_size(pool),
		.n_spec = ABI_ROUTER_SPEC_BYTES + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_QUANT_SPEC_NORM - ABI_SPEC_KERNEL] = p->gain != 0,
			[ABI_QUANT_SPEC_ORDER - ABI_SPEC_KERNEL] = p->order,
			[ABI_ROUTER_SPEC_BYTES - ABI_SPEC_KERNEL] = p->staging != 0},
	};
	const struct abi_router push = {
		.w = p->w.address,
		.x = p->x,
		.gain = p->gain,
		.logits = p->logits,
		.staging = p->staging,
		.m = p->m,
		.n_expert = (uint32_t)p->w.ne[1],
		.k = (uint32_t)p->w.ne[0],
		.eps = p->eps,
	};

	if (!op_router_fits(p))
		return err_set(ret_err, EINVAL, "router: what does not fit");
	return op_pool_dispatch(
		pool, c, &kernel, &push, push.n_expert * kernel.n_subgroups, p->n_rows, ret_err);
}
