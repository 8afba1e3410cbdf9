/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/matvec-format.h"

#include <stddef.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "proto/util/cleanup.h"
#include "shaders/abi.h"
#include "workerd/weights.h"

/* Bytes of a row of x and elements of a matrix's edge are counted in 32 bits. */
enum { MAX_EDGE = 1 << 28 };

#define BY_BYTES(name, align, order, group_words)                                          \
	{                                                                                  \
		DTYPE_##name, KERNELS_MATVEC_##name, KERNELS_MATVEC_EXPERTS_##name, align, \
			ABI_QUANT_ORDER_##order, OP_MATVEC_FORMAT_UNIT, group_words        \
	}
#define AS_IT_IS(name)                                                                            \
	{                                                                                         \
		DTYPE_##name, KERNELS_MATVEC_##name, KERNELS_N, 16, OP_MATVEC_FORMAT_NO_ORDER, 8, \
			0                                                                         \
	}

static const struct op_matvec_format formats[] = {
	AS_IT_IS(F16),
	AS_IT_IS(BF16),
	BY_BYTES(Q8_0, 4, PLAIN, 136),
	BY_BYTES(Q4_0, 4, PLAIN, 72),
	BY_BYTES(Q4_K, 16, PLAIN, 0),
	BY_BYTES(Q6_K, 4, PLAIN, 105),
	BY_BYTES(TQ2_0, 4, PLAIN, 33),
	BY_BYTES(Q2_0, 4, BY4, 36),
	BY_BYTES(Q1_0, 4, BY8, 18),
};

const struct op_matvec_format *op_matvec_format_find(uint32_t dtype)
{
	for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
		if (formats[i].dtype == dtype)
			return &formats[i];
	return NULL;
}

bool op_matvec_format_fits(const struct weights_tensor *t)
{
	const struct op_matvec_format *f = op_matvec_format_find(t->dtype);
	const struct dtype *dtype = dtype_find(t->dtype);
	uint64_t n_elements, n_bytes;

	if (!f || !dtype || t->layout != MANIFEST_LAYOUT_RAW || t->ne[0] == 0 || t->ne[1] == 0 ||
		t->ne[0] > MAX_EDGE || t->ne[1] > MAX_EDGE || t->ne[2] == 0 ||
		t->ne[2] > ABI_MAX_EXPERTS || t->ne[3] != 1 || t->ne[0] % f->n_unit != 0)
		return false;
	return dtype_tensor_bytes(dtype, 3, t->ne, &n_elements, &n_bytes) == 0 &&
	       n_bytes == t->n_bytes && t->address % f->n_align == 0 &&
	       n_bytes / (t->ne[1] * t->ne[2]) % f->n_align == 0;
}

uint64_t op_matvec_format_count_shared(
	const struct op_matvec_format *f, uint32_t n_rows, uint32_t n_unroll, uint32_t n_lanes)
{
	uint64_t n_raw = (f->n_group_words * n_unroll + 7) / 8;

	return f->n_group_words ? n_rows * n_raw * n_lanes * 4 + 4 : 0;
}
