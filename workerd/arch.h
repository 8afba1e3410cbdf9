/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_ARCH_H
#define WORKERD_ARCH_H

/*
 * The architectures that the engine knows: each writes the graph of its model from the weights.
 */
#include "proto/util/cleanup.h"

struct err;
struct graph;
struct weights;

/* Fills an empty graph; on failure the caller calls graph_fini. */
typedef int (*arch_build_fn)(const struct weights *w, struct graph *g, struct err *ret_err);

struct arch {
	const char *name; /* general.architecture of the GGUF file */
	arch_build_fn build;
};

/* By the manifest's name. -ENOTSUP with what is known. */
int must_check arch_find(
	const struct weights *w, struct err *ret_err, const struct arch **ret_arch);

#endif
