/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/arch-llama.h"

#include "workerd/arch-stack.h"

int arch_llama_build(const struct weights *w, struct graph *g, struct err *ret_err)
{
	static const struct arch_stack_kind kind = {.add_ffn = arch_stack_add_dense,
		.is_rope_interleaved = true,
		.may_have_rope_factors = true};

	return arch_stack_build(w, g, &kind, ret_err);
}
