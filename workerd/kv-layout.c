/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/kv-layout.h"

#include <errno.h>
#include <string.h>

static const char *const type_names[KV_LAYOUT_N_TYPES] = {
	[KV_LAYOUT_F16] = "f16",
	[KV_LAYOUT_Q8_0] = "q8_0",
};

int kv_layout_get(enum kv_layout_type type, uint32_t n_head_kv, uint32_t head_dim,
	struct kv_layout *ret_layout)
{
	uint64_t n_row_bytes = type == KV_LAYOUT_F16 ? 2ull * head_dim : head_dim;
	uint64_t n_scales = type == KV_LAYOUT_F16
				    ? 0
				    : ((uint64_t)head_dim + KV_LAYOUT_BLOCK - 1) / KV_LAYOUT_BLOCK;
	uint64_t n_rows = (uint64_t)n_head_kv * KV_PAGE_TOKENS;
	uint64_t n_bytes;

	n_row_bytes = (n_row_bytes + KV_LAYOUT_ALIGN - 1) / KV_LAYOUT_ALIGN * KV_LAYOUT_ALIGN;
	if (__builtin_mul_overflow(n_rows, n_row_bytes + n_scales * sizeof(uint16_t), &n_bytes) ||
		n_bytes > UINT32_MAX)
		return -EOVERFLOW;
	*ret_layout = (struct kv_layout){
		.n_row_bytes = (uint32_t)n_row_bytes,
		.n_scales = (uint32_t)n_scales,
		.scales_at = n_rows * n_row_bytes,
		.n_part_bytes = n_bytes,
	};
	return 0;
}

const char *kv_layout_type_name(enum kv_layout_type type)
{
	return type_names[type];
}

int kv_layout_parse_type(const char *name, enum kv_layout_type *ret_type)
{
	for (int i = 0; i < KV_LAYOUT_N_TYPES; i++) {
		if (strcmp(name, type_names[i]))
			continue;
		*ret_type = (enum kv_layout_type)i;
		return 0;
	}
	return -EINVAL;
}
