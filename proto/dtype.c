/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/dtype.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>

#include "proto/util/cleanup.h"

/*
 * A tensor is padded to general.alignment, any u32, and element counts and sizes are signed 64 bit
 * to most readers of the format: below this, no rounding up can overflow.
 */
#define DTYPE_MAX_BYTES ((uint64_t)INT64_MAX - UINT32_MAX)

static const struct dtype dtypes[] = {
	{DTYPE_F32, "f32", 1, 4, true},
	{DTYPE_F16, "f16", 1, 2, true},
	{DTYPE_Q4_0, "q4_0", 32, 18, true},
	{3, "q4_1", 32, 20, false},
	{6, "q5_0", 32, 22, false},
	{7, "q5_1", 32, 24, false},
	{DTYPE_Q8_0, "q8_0", 32, 34, true},
	{9, "q8_1", 32, 36, false},
	{10, "q2_K", 256, 84, false},
	{11, "q3_K", 256, 110, false},
	{DTYPE_Q4_K, "q4_K", 256, 144, true},
	{DTYPE_Q5_K, "q5_K", 256, 176, true},
	{DTYPE_Q6_K, "q6_K", 256, 210, true},
	{15, "q8_K", 256, 292, false},
	{16, "iq2_xxs", 256, 66, false},
	{17, "iq2_xs", 256, 74, false},
	{18, "iq3_xxs", 256, 98, false},
	{19, "iq1_s", 256, 50, false},
	{20, "iq4_nl", 32, 18, false},
	{21, "iq3_s", 256, 110, false},
	{22, "iq2_s", 256, 82, false},
	{23, "iq4_xs", 256, 136, false},
	{24, "i8", 1, 1, false},
	{25, "i16", 1, 2, false},
	{26, "i32", 1, 4, false},
	{27, "i64", 1, 8, false},
	{28, "f64", 1, 8, false},
	{29, "iq1_m", 256, 56, false},
	{DTYPE_BF16, "bf16", 1, 2, true},
	{34, "tq1_0", 256, 54, false},
	{DTYPE_TQ2_0, "tq2_0", 256, 66, true},
	{39, "mxfp4", 32, 17, false},
	{40, "nvfp4", 64, 36, false},
	{DTYPE_Q1_0, "q1_0", 128, 18, true},
	{DTYPE_Q2_0, "q2_0", 64, 18, true},
};

const struct dtype *dtype_find(uint32_t id)
{
	for (size_t i = 0; i < ARRAY_SIZE(dtypes); i++)
		if (dtypes[i].id == id)
			return &dtypes[i];
	return NULL;
}

void dtype_list_supported(char ret[static DTYPE_LIST_BYTES])
{
	uint32_t n_left = 0;
	size_t at = 0;

	for (size_t i = 0; i < ARRAY_SIZE(dtypes); i++)
		n_left += dtypes[i].is_supported;
	ret[0] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(dtypes) && at < DTYPE_LIST_BYTES; i++) {
		if (!dtypes[i].is_supported)
			continue;
		n_left--;
		at += (size_t)snprintf(ret + at, DTYPE_LIST_BYTES - at, "%s%s", dtypes[i].name,
			n_left == 0 ? "" : (n_left == 1 ? " or " : ", "));
	}
}

int dtype_tensor_bytes(const struct dtype *t, uint32_t n_dims, const uint64_t *ne,
	uint64_t *ret_n_elements, uint64_t *ret_n_bytes)
{
	uint64_t n_elements = 1, n_bytes;

	for (uint32_t i = 0; i < n_dims; i++)
		if (__builtin_mul_overflow(n_elements, ne[i], &n_elements))
			return -EOVERFLOW;
	if (n_elements > INT64_MAX)
		return -EOVERFLOW;
	if ((n_dims > 0 ? ne[0] : 1) % t->n_block != 0)
		return -EINVAL;
	if (__builtin_mul_overflow(n_elements / t->n_block, (uint64_t)t->n_bytes, &n_bytes) ||
		n_bytes > DTYPE_MAX_BYTES)
		return -EOVERFLOW;
	*ret_n_elements = n_elements;
	*ret_n_bytes = n_bytes;
	return 0;
}
