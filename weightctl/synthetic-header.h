/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_SYNTHETIC_HEADER_H
#define WEIGHTCTL_SYNTHETIC_HEADER_H

/*
 * What stands before the data of a synthetic GGUF file: keys, a vocabulary and the tensor table.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct synthetic_shape;
struct synthetic_tensor;
struct synthetic_type;

enum { SYNTHETIC_ALIGN = 32 }; /* of tensors: GGUF's default */

/* Padded to SYNTHETIC_ALIGN. The caller frees the bytes. -ENOMEM. */
int must_check synthetic_header_make(const struct synthetic_shape *shape,
	const struct synthetic_type *type, const struct synthetic_tensor *tensors,
	uint32_t n_tensors, uint8_t **ret_bytes, uint64_t *ret_n_bytes);

#endif
