/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_DTYPE_H
#define PROTO_DTYPE_H

/*
 * The one table of block formats. Ids are GGUF's (ggml.h, enum ggml_type); ids that GGUF removed
 * have no row. Sizes are those of the GGUF specification's block structures.
 */
#include <stdbool.h>
#include <stdint.h>

enum dtype_id {
	DTYPE_F32 = 0,
	DTYPE_F16 = 1,
	DTYPE_Q4_0 = 2,
	DTYPE_Q8_0 = 8,
	DTYPE_Q4_K = 12,
	DTYPE_Q6_K = 14,
	DTYPE_BF16 = 30,
};

struct dtype {
	uint32_t id;
	const char *name;  /* "q8_0" */
	uint32_t n_block;  /* elements a block */
	uint32_t n_bytes;  /* bytes a block */
	bool is_supported; /* the engine has kernels for it */
};

/* The row of an id, NULL for an unknown or removed one. Borrowed, static. Any thread. */
const struct dtype *dtype_find(uint32_t id);

/*
 * Bytes of a tensor of n_dims dimensions ne (ne[0] the row length): -EOVERFLOW when a product
 * overflows, -EINVAL when ne[0] is not whole blocks. Any thread.
 */
int dtype_tensor_bytes(const struct dtype *t, uint32_t n_dims, const uint64_t *ne,
	uint64_t *ret_n_elements, uint64_t *ret_n_bytes) __attribute__((warn_unused_result));

#endif
