/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/arch-qwen3.h"

#include "workerd/arch-stack.h"

int arch_qwen3_build(const struct weights *w, struct graph *g, struct err *ret_err)
{
	static const struct arch_stack_kind kind = {
		.add_ffn = arch_stack_add_dense, .has_head_norms = true};

	return arch_stack_build(w, g, &kind, ret_err);
}
