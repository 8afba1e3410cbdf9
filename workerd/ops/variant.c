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

/* Kernels count the bytes of a row in 32 bits, of x and y too, which are f32. */
enum { MAX_EDGE = 1 << 28 };

/* A manifest is somebody else's word: its bytes must be those of its shape. */
static int check_shape(
	const struct weights_tensor *t, const struct dtype *dtype, struct err *ret_err)
{
	uint64_t n_elements, n_bytes;

	if (t->address % (t->dtype == DTYPE_F32 ? 4 : 2))
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

int op_variant_choose(
	const struct weights_tensor *t, struct err *ret_err, enum op_variant *ret_variant)
{
	/* Rows that are whole words keep those of a further matrix aligned too. */
	bool is_by_words = t->address % 4 == 0;
	enum op_variant variant;

	switch (t->dtype) {
	case DTYPE_F32: variant = t->ne[0] % 4 == 0 ? OP_VARIANT_F32_X4 : OP_VARIANT_F32; break;
	case DTYPE_F16:
		variant = t->ne[0] % 2 == 0 && is_by_words ? OP_VARIANT_F16_X2 : OP_VARIANT_F16;
		break;
	case DTYPE_Q8_0:
		variant = t->ne[0] % 64 == 0 && is_by_words ? OP_VARIANT_Q8_0_X2 : OP_VARIANT_Q8_0;
		break;
	default:
		return err_set(ret_err, ENOTSUP,
			"block format: expected f32, f16 or q8_0, found id %u", t->dtype);
	}
	if (t->layout != MANIFEST_LAYOUT_RAW)
		return err_set(ret_err, ENOTSUP, "layout: expected raw (%d), found %u",
			MANIFEST_LAYOUT_RAW, t->layout);
	int r = check_shape(t, dtype_find(t->dtype), ret_err);
	if (r)
		return r;
	*ret_variant = variant;
	return 0;
}
