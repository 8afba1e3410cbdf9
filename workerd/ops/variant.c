/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/variant.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#include "proto/dtype.h"
#include "proto/manifest.h"
#include "proto/util/err.h"
#include "shaders/abi.h"
#include "workerd/weights.h"

/* A block format's readings. */
struct reading {
	uint32_t dtype;
	uint32_t n_align;    /* bytes, of the address */
	enum op_variant any; /* rows of any length that the format allows */
	uint32_t n_whole;    /* rows of whole such numbers are whole words, 0: of no interest */
	enum op_variant by_words; /* those, where the address is a multiple of 4 */
};

static const struct reading readings[] = {
	{DTYPE_F32, 4, OP_VARIANT_F32, 4, OP_VARIANT_F32_X4},
	{DTYPE_F16, 2, OP_VARIANT_F16, 2, OP_VARIANT_F16_X2},
	{DTYPE_BF16, 2, OP_VARIANT_BF16, 2, OP_VARIANT_BF16_X2},
	{DTYPE_Q8_0, 2, OP_VARIANT_Q8_0, 64, OP_VARIANT_Q8_0_X2},
	{DTYPE_Q4_0, 2, OP_VARIANT_Q4_0, 64, OP_VARIANT_Q4_0_X2},
	{DTYPE_Q4_K, 16, OP_VARIANT_Q4_K, 0, OP_VARIANT_Q4_K},
	{DTYPE_Q5_K, 16, OP_VARIANT_Q5_K, 0, OP_VARIANT_Q5_K},
	{DTYPE_Q6_K, 2, OP_VARIANT_Q6_K, 0, OP_VARIANT_Q6_K},
	{DTYPE_TQ2_0, 2, OP_VARIANT_TQ2_0, 0, OP_VARIANT_TQ2_0},
	{DTYPE_Q2_0, 2, OP_VARIANT_Q2_0, 0, OP_VARIANT_Q2_0},
	{DTYPE_Q1_0, 2, OP_VARIANT_Q1_0, 0, OP_VARIANT_Q1_0},
};

/* Kernels count the bytes of a row in 32 bits, of x and y too, which are f32. */
enum { MAX_EDGE = 1 << 28 };

/* A manifest is somebody else's word: its bytes must be those of its shape. */
static int check_shape(
	const struct weights_tensor *t, const struct reading *reading, struct err *ret_err)
{
	const struct dtype *dtype = dtype_find(t->dtype);
	uint64_t n_elements, n_bytes;

	if (t->address % reading->n_align)
		return err_set(ret_err, EINVAL, "address: not aligned for %s", dtype->name);
	if (t->ne[0] == 0 || t->ne[0] > MAX_EDGE || t->ne[1] == 0 || t->ne[1] > MAX_EDGE ||
		t->ne[2] == 0 || t->ne[2] > ABI_MAX_EXPERTS || t->ne[3] != 1)
		return err_set(ret_err, EINVAL,
			"shape: expected 1 to %d each and up to %d of them, found %" PRIu64
			" x %" PRIu64 " x %" PRIu64 " x %" PRIu64,
			MAX_EDGE, ABI_MAX_EXPERTS, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
	int r = dtype_tensor_bytes(dtype, 3, t->ne, &n_elements, &n_bytes);
	if (r)
		return err_set(ret_err, -r, "shape: rows of %" PRIu64 " are no whole %s blocks",
			t->ne[0], dtype->name);
	if (n_bytes != t->n_bytes)
		return err_set(ret_err, EINVAL, "shape: expected %" PRIu64 " bytes, found %" PRIu64,
			n_bytes, t->n_bytes);
	return 0;
}

static const struct reading *find_reading(uint32_t dtype)
{
	for (size_t i = 0; i < ARRAY_SIZE(readings); i++)
		if (readings[i].dtype == dtype)
			return &readings[i];
	return NULL;
}

int op_variant_choose(
	const struct weights_tensor *t, struct err *ret_err, enum op_variant *ret_variant)
{
	const struct reading *reading = find_reading(t->dtype);
	char supported[DTYPE_LIST_BYTES];

	if (!reading) {
		dtype_list_supported(supported);
		return err_set(ret_err, ENOTSUP, "block format: expected %s, found id %u",
			supported, t->dtype);
	}
	if (t->layout != MANIFEST_LAYOUT_RAW)
		return err_set(ret_err, ENOTSUP, "layout: expected raw (%d), found %u",
			MANIFEST_LAYOUT_RAW, t->layout);
	int r = check_shape(t, reading, ret_err);
	if (r)
		return r;
	/* Rows that are whole words keep those of a further matrix aligned too. */
	bool is_by_words =
		reading->n_whole && t->ne[0] % reading->n_whole == 0 && t->address % 4 == 0;
	*ret_variant = is_by_words ? reading->by_words : reading->any;
	return 0;
}
