/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_ARCH_LLAMA_H
#define WORKERD_ARCH_LLAMA_H

/*
 * llama, the dense model, as llama.cpp computes it: workerd/arch-stack.h without norms of the
 * heads, a rotation of neighbours (its converter orders the rows of attn_q and attn_k for that) and
 * the dense feed-forward part. With rope_freqs.weight, as Llama 3.1 and later have it, the angle of
 * pair i is divided by number i of it.
 */
#include "proto/util/cleanup.h"

struct err;
struct graph;
struct weights;

/* An arch_build_fn; errors as arch_qwen3_build. */
int must_check arch_llama_build(const struct weights *w, struct graph *g, struct err *ret_err);

#endif
