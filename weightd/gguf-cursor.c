/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/gguf-cursor.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "proto/util/err.h"

enum { STRING_MIN_BYTES = 8, ARRAY_MIN_BYTES = 12 };

/* Bytes of a value; of strings and arrays the least they take. */
static const uint8_t gguf_cursor_type_bytes[] = {
	[GGUF_U8] = 1,
	[GGUF_I8] = 1,
	[GGUF_U16] = 2,
	[GGUF_I16] = 2,
	[GGUF_U32] = 4,
	[GGUF_I32] = 4,
	[GGUF_F32] = 4,
	[GGUF_BOOL] = 1,
	[GGUF_STRING] = STRING_MIN_BYTES,
	[GGUF_ARRAY] = ARRAY_MIN_BYTES,
	[GGUF_U64] = 8,
	[GGUF_I64] = 8,
	[GGUF_F64] = 8,
};

int gguf_cursor_take(
	struct gguf_cursor *c, const char *where, uint64_t n_bytes, const uint8_t **ret_data)
{
	uint64_t n_left = c->n_file_bytes - c->bytes.at;

	if (n_bytes > n_left)
		return err_set(c->err, EINVAL,
			"%s: beyond end of file: expected %" PRIu64 " bytes at byte %" PRIu64
			", found %" PRIu64,
			where, n_bytes, c->bytes.at, n_left);
	const uint8_t *p = bytes_take(&c->bytes, n_bytes);
	if (!p)
		return GGUF_MORE;
	*ret_data = p;
	return 0;
}

int gguf_cursor_take_u32(struct gguf_cursor *c, const char *where, uint32_t *ret)
{
	const uint8_t *p = NULL;
	int r = gguf_cursor_take(c, where, sizeof(*ret), &p);

	if (r == 0)
		memcpy(ret, p, sizeof(*ret));
	return r;
}

int gguf_cursor_take_u64(struct gguf_cursor *c, const char *where, uint64_t *ret)
{
	const uint8_t *p = NULL;
	int r = gguf_cursor_take(c, where, sizeof(*ret), &p);

	if (r == 0)
		memcpy(ret, p, sizeof(*ret));
	return r;
}

int gguf_cursor_take_string(
	struct gguf_cursor *c, const char *where, uint64_t max_bytes, struct gguf_string *ret)
{
	const uint8_t *p = NULL;
	uint64_t n;
	int r = gguf_cursor_take_u64(c, where, &n);

	if (r != 0)
		return r;
	if (n > max_bytes)
		return err_set(c->err, EINVAL,
			"%s: expected at most %" PRIu64 " bytes, found %" PRIu64, where, max_bytes,
			n);
	r = gguf_cursor_take(c, where, n, &p);
	if (r != 0)
		return r;
	*ret = (struct gguf_string){.data = (const char *)p, .n_bytes = n};
	return 0;
}

int gguf_cursor_check_count(
	struct gguf_cursor *c, const char *where, uint64_t n, uint64_t min_bytes)
{
	uint64_t n_left = c->n_file_bytes - c->bytes.at;

	if (n > n_left / min_bytes)
		return err_set(c->err, EINVAL,
			"%s: expected at most %" PRIu64 " in the %" PRIu64
			" bytes left of the file, found %" PRIu64,
			where, n_left / min_bytes, n_left, n);
	return n > bytes_left(&c->bytes) / min_bytes ? GGUF_MORE : 0;
}

static int check_type(struct gguf_cursor *c, const char *where, uint32_t type)
{
	if (type >= ARRAY_SIZE(gguf_cursor_type_bytes))
		return err_set(c->err, EINVAL, "%s: type: expected 0 to %zu, found %" PRIu32, where,
			ARRAY_SIZE(gguf_cursor_type_bytes) - 1, type);
	return 0;
}

/* n values of a type of fixed size. */
static int skip_fixed(struct gguf_cursor *c, const char *where, enum gguf_type type, uint64_t n)
{
	const uint8_t *p = NULL;
	int r = gguf_cursor_check_count(c, where, n, gguf_cursor_type_bytes[type]);

	if (r == 0)
		r = gguf_cursor_take(c, where, n * gguf_cursor_type_bytes[type], &p);
	if (r != 0)
		return r;
	for (uint64_t i = 0; type == GGUF_BOOL && i < n; i++)
		if (p[i] > 1)
			return err_set(c->err, EINVAL, "%s: bool: expected 0 or 1, found %" PRIu8,
				where, p[i]);
	return 0;
}

/* The rest of an array: elements of one type. */
struct span {
	enum gguf_type type;
	uint64_t n_left;
};

static int take_array_header(struct gguf_cursor *c, const char *where, struct span *ret)
{
	uint32_t type;
	uint64_t n;
	int r = gguf_cursor_take_u32(c, where, &type);

	if (r == 0)
		r = check_type(c, where, type);
	if (r == 0)
		r = gguf_cursor_take_u64(c, where, &n);
	if (r == 0)
		r = gguf_cursor_check_count(c, where, n, gguf_cursor_type_bytes[type]);
	if (r == 0)
		*ret = (struct span){.type = type, .n_left = n};
	return r;
}

static int skip_elements(struct gguf_cursor *c, const char *where, struct span outer)
{
	struct span stack[GGUF_CURSOR_MAX_DEPTH] = {outer};
	struct gguf_string s;
	uint32_t depth = 1;
	int r = 0;

	while (depth > 0 && r == 0) {
		struct span *top = &stack[depth - 1];

		if (top->n_left == 0) {
			depth--;
		} else if (top->type == GGUF_STRING) {
			r = gguf_cursor_take_string(c, where, UINT64_MAX, &s);
			top->n_left--;
		} else if (top->type != GGUF_ARRAY) {
			r = skip_fixed(c, where, top->type, top->n_left);
			top->n_left = 0;
		} else if (depth == GGUF_CURSOR_MAX_DEPTH) {
			r = err_set(c->err, EINVAL,
				"%s: array: expected at most %d levels, found more", where,
				GGUF_CURSOR_MAX_DEPTH);
		} else {
			top->n_left--;
			r = take_array_header(c, where, &stack[depth]);
			depth++;
		}
	}
	return r;
}

int gguf_cursor_take_value(struct gguf_cursor *c, const char *where, struct gguf_kv *ret)
{
	struct gguf_kv kv = {.key = ret->key, .n_elements = 1};
	struct gguf_string s;
	struct span array;
	uint32_t type;
	int r = gguf_cursor_take_u32(c, where, &type);

	if (r == 0)
		r = check_type(c, where, type);
	if (r == 0 && type == GGUF_ARRAY)
		r = take_array_header(c, where, &array);
	if (r != 0)
		return r;
	kv.type = type;
	uint64_t start = c->bytes.at;
	if (type == GGUF_ARRAY) {
		kv.element_type = array.type;
		kv.n_elements = array.n_left;
		r = skip_elements(c, where, array);
	} else if (type == GGUF_STRING) {
		r = gguf_cursor_take_string(c, where, UINT64_MAX, &s);
	} else {
		r = skip_fixed(c, where, type, 1);
	}
	if (r != 0)
		return r;
	kv.data = c->bytes.data + start;
	kv.n_bytes = c->bytes.at - start;
	*ret = kv;
	return 0;
}
