/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_ARCH_QWEN3MOE_H
#define WORKERD_ARCH_QWEN3MOE_H

/*
 * qwen3moe: qwen3 (workerd/arch-stack.h) with a mixture of experts in each layer, as llama.cpp
 * computes it:
 *
 *	h = rms_norm(x) ffn_norm
 *	p = softmax(ffn_gate_inp h), e_1 ... the n_expert_used largest, w = p scaled to a sum of 1
 * there x = x + sum over i of w[e_i] ffn_down_exps[e_i] (silu(ffn_gate_exps[e_i] h) *
 *							 (ffn_up_exps[e_i] h))
 */
#include "proto/util/cleanup.h"

struct err;
struct graph;
struct weights;

/* An arch_build_fn; errors as arch_stack_build, and -EINVAL for numbers of experts. */
int must_check arch_qwen3moe_build(const struct weights *w, struct graph *g, struct err *ret_err);

#endif
