/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_SYNTHETIC_H
#define WEIGHTCTL_SYNTHETIC_H

/*
 * Models of well-known shapes with random weights, made in memory: what a model's speed is, without
 * the model. "llama-8b:q4_k_m": a shape (weightctl/synthetic-shape.h) and a type. Every matrix has
 * mean 0 and a standard deviation near 1 / sqrt(row length), so that values stay in range through
 * all layers; the tokens are the 256 bytes, fillers and a few control tokens.
 *
 * Any thread; starts threads of its own and ends them.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

/*
 * A GGUF file in a memfd, position 0; the same bytes for the same name and seed, however many
 * threads write them. The caller owns *ret_fd. -EINVAL with the names that there are; -ENOMEM.
 */
int must_check synthetic_make(
	const char *name, uint64_t seed, struct err *ret_err, int *ret_fd, uint64_t *ret_n_bytes);

/* Would synthetic_make know the name? -EINVAL with the names that there are. */
int must_check synthetic_check(const char *name, struct err *ret_err);

#endif
