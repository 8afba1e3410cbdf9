/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_IDENTITY_H
#define WORKERD_IDENTITY_H

/*
 * What a model is, in bytes that can be compared with those of another day and another process. Any
 * thread.
 */
#include <stdint.h>

#include "proto/util/digest.h"

struct manifest;
struct weights;

/* What its token ids mean: equal where manifest_has_same_tokens is true. */
void identity_get_tokens(const struct manifest *m, uint8_t ret[DIGEST_BYTES]);

/*
 * What its weights are: their identity where weightd has taken it. Where it has not: this generation
 * and no other, by its manifest's file, which the kernel does not give twice in a boot.
 */
void identity_get_weights(const struct weights *w, uint8_t ret[DIGEST_BYTES]);

#endif
