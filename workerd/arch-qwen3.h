/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_ARCH_QWEN3_H
#define WORKERD_ARCH_QWEN3_H

/*
 * qwen3, the dense model, as llama.cpp computes it: workerd/arch-stack.h with norms of the heads, a
 * rotation of halves and the dense feed-forward part.
 */
#include "proto/util/cleanup.h"

struct err;
struct graph;
struct weights;

/*
 * An arch_build_fn: -ENOENT for a tensor that is missing, -EINVAL for one of another shape,
 * -ENOTSUP for heads of different key and value sizes.
 */
int must_check arch_qwen3_build(const struct weights *w, struct graph *g, struct err *ret_err);

#endif
