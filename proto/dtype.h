/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_DTYPE_H
#define PROTO_DTYPE_H

/*
 * The one table of block formats. Ids are GGUF's (ggml.h, enum ggml_type); ids that GGUF removed
 * have no row. Sizes are those of the GGUF specification's block structures; of the newest, which
 * it does not have yet (q1_0, q2_0), those of ggml 0.25 (ggml-common.h).
 */
#include <stdbool.h>
#include <stdint.h>

enum dtype_id {
	DTYPE_F32 = 0,
	DTYPE_F16 = 1,
	DTYPE_Q4_0 = 2,
	DTYPE_Q8_0 = 8,
	DTYPE_Q4_K = 12,
	DTYPE_Q5_K = 13,
	DTYPE_Q6_K = 14,
	DTYPE_BF16 = 30,
	DTYPE_TQ2_0 = 35,
	DTYPE_Q1_0 = 41,
	DTYPE_Q2_0 = 42,
};

enum { DTYPE_LIST_BYTES = 128 };

struct dtype {
	uint32_t id;
	const char *name;  /* "q8_0" */
	uint32_t n_block;  /* elements a block */
	uint32_t n_bytes;  /* bytes a block */
	bool is_supported; /* the engine has kernels for it */
};

/* The row of an id, NULL for an unknown or removed one. Borrowed, static. Any thread. */
const struct dtype *dtype_find(uint32_t id);

/* The names of all that is supported, in the order of the table: "f32, f16 or q8_0". Any thread. */
void dtype_list_supported(char ret[static DTYPE_LIST_BYTES]);

/*
 * Bytes of a tensor of n_dims dimensions ne (ne[0] the row length): -EOVERFLOW when a product
 * overflows, -EINVAL when ne[0] is not whole blocks. Any thread.
 */
int dtype_tensor_bytes(const struct dtype *t, uint32_t n_dims, const uint64_t *ne,
	uint64_t *ret_n_elements, uint64_t *ret_n_bytes) __attribute__((warn_unused_result));

#endif
