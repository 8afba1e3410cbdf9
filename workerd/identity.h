/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_IDENTITY_H
#define WORKERD_IDENTITY_H

/*
 * What a model's tokens are, in bytes that can be compared with those of another day and another
 * process. Any thread.
 */
#include <stdint.h>

#include "proto/util/digest.h"

struct manifest;

/* What its token ids mean: equal where manifest_has_same_tokens is true. */
void identity_get_tokens(const struct manifest *m, uint8_t ret[DIGEST_BYTES]);

#endif
