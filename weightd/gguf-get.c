/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "weightd/gguf.h"

static int refuse_type(struct err *e, const struct gguf_kv *kv, const char *expected)
{
	return err_set(e, EINVAL, "key %s: expected %s, found %s", gguf_label(kv->key).text,
		expected, gguf_describe_type(kv));
}

/* An integer value sign-extended to 64 bits; false for other types. */
static bool load_integer(const struct gguf_kv *kv, uint64_t *ret, bool *ret_negative)
{
	uint64_t v = 0;
	bool is_signed = false;

	switch (kv->type) {
	case GGUF_I8:
	case GGUF_I16:
	case GGUF_I32:
	case GGUF_I64: is_signed = true; break;
	case GGUF_U8:
	case GGUF_U16:
	case GGUF_U32:
	case GGUF_U64: break;
	default: return false;
	}
	memcpy(&v, kv->data, kv->n_bytes);
	uint32_t shift = 64 - 8 * (uint32_t)kv->n_bytes;
	if (is_signed)
		v = (uint64_t)((int64_t)(v << shift) >> shift);
	*ret_negative = is_signed && (int64_t)v < 0;
	*ret = v;
	return true;
}

int gguf_get_u64(const struct gguf_kv *kv, struct err *ret_err, uint64_t *ret)
{
	uint64_t v;
	bool negative;

	if (!load_integer(kv, &v, &negative))
		return refuse_type(ret_err, kv, "an integer");
	if (negative)
		return err_set(ret_err, EINVAL, "key %s: expected 0 or more, found %" PRId64,
			gguf_label(kv->key).text, (int64_t)v);
	*ret = v;
	return 0;
}

int gguf_get_f64(const struct gguf_kv *kv, struct err *ret_err, double *ret)
{
	float f;

	if (kv->type == GGUF_F64) {
		memcpy(ret, kv->data, sizeof(*ret));
		return 0;
	}
	if (kv->type != GGUF_F32)
		return refuse_type(ret_err, kv, "f32 or f64");
	memcpy(&f, kv->data, sizeof(f));
	*ret = f;
	return 0;
}

int gguf_get_bool(const struct gguf_kv *kv, struct err *ret_err, bool *ret)
{
	if (kv->type != GGUF_BOOL)
		return refuse_type(ret_err, kv, "bool");
	*ret = kv->data[0] != 0;
	return 0;
}

int gguf_get_string(const struct gguf_kv *kv, struct err *ret_err, struct gguf_string *ret)
{
	if (kv->type != GGUF_STRING)
		return refuse_type(ret_err, kv, "string");
	*ret = (struct gguf_string){.data = (const char *)kv->data + 8, .n_bytes = kv->n_bytes - 8};
	return 0;
}
