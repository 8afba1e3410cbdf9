/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_KV_LAYOUT_H
#define WORKERD_KV_LAYOUT_H

/*
 * Where keys and values lie in a page of the KV cache. Kernels compute the same (shaders/kv.glsl).
 *
 *	page: [n_layers][2: k, v] parts
 *	part: rows [n_head_kv][KV_PAGE_TOKENS][n_row_bytes], then
 *	      scales [n_head_kv][KV_PAGE_TOKENS][n_scales] f16
 *
 * A row is one head of one token, padded to 16 bytes, so that every load of a kernel is one of 16
 * aligned bytes; what is behind head_dim is not defined. F16: head_dim f16 and no scales. Q8_0:
 * head_dim i8, and a scale for every 32 of them: number i is scale[i / 32] * row[i]. A scale is
 * the largest magnitude / 127, as in GGML's Q8_0, whose blocks have scale and numbers together.
 *
 * Any thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

enum kv_layout_type {
	KV_LAYOUT_F16,
	KV_LAYOUT_Q8_0,
	KV_LAYOUT_N_TYPES,
};

enum {
	KV_PAGE_TOKENS = 32,
	KV_LAYOUT_BLOCK = 32, /* numbers that have one scale */
	KV_LAYOUT_ALIGN = 16, /* of a row */
};

struct kv_layout {
	uint32_t n_row_bytes;
	uint32_t n_scales;     /* of a row */
	uint64_t scales_at;    /* in a part */
	uint64_t n_part_bytes; /* a multiple of 64 */
};

/* -EOVERFLOW for sizes that no device has: more than 2^32 bytes a part. */
int must_check kv_layout_get(enum kv_layout_type type, uint32_t n_head_kv, uint32_t head_dim,
	struct kv_layout *ret_layout);

/* "f16" or "q8_0". */
const char *kv_layout_type_name(enum kv_layout_type type);

/* By name; -EINVAL. */
int must_check kv_layout_parse_type(const char *name, enum kv_layout_type *ret_type);

#endif
