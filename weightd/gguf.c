/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/gguf.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/util/bytes.h"
#include "proto/util/err.h"
#include "weightd/gguf-cursor.h"

#define GGUF_MAGIC 0x46554747u /* "GGUF" */
#define GGUF_ALIGNMENT_KEY "general.alignment"

enum {
	DEFAULT_ALIGNMENT = 32,               /* the specification */
	KV_MIN_BYTES = 8 + 4 + 1,             /* key length, type, a one-byte value */
	TENSOR_MIN_BYTES = 8 + 4 + 8 + 4 + 8, /* name length, n_dims, one dimension, type, offset */
};

struct gguf_label gguf_label(struct gguf_string s)
{
	struct gguf_label label = {.text = ""};
	uint64_t max = sizeof(label.text) - 1;
	uint64_t n = s.n_bytes <= max ? s.n_bytes : max;

	for (uint64_t i = 0; i < n; i++)
		label.text[i] = s.data[i] >= 0x20 && s.data[i] < 0x7f ? s.data[i] : '?';
	if (n < s.n_bytes)
		memcpy(label.text + max - 3, "...", 3);
	return label;
}

static int compare_strings(struct gguf_string a, struct gguf_string b)
{
	uint64_t n = a.n_bytes < b.n_bytes ? a.n_bytes : b.n_bytes;
	int order = memcmp(a.data, b.data, n);

	return order ? order : (a.n_bytes > b.n_bytes) - (a.n_bytes < b.n_bytes);
}

static int compare_kv(const void *a, const void *b, void *userdata)
{
	const struct gguf_kv *kv = userdata;

	return compare_strings(kv[*(const uint32_t *)a].key, kv[*(const uint32_t *)b].key);
}

static int compare_tensors(const void *a, const void *b, void *userdata)
{
	const struct gguf_tensor *t = userdata;

	return compare_strings(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static int compare_offsets(const void *a, const void *b, void *userdata)
{
	const struct gguf_tensor *t = userdata;
	uint64_t x = t[*(const uint32_t *)a].offset, y = t[*(const uint32_t *)b].offset;

	return (x > y) - (x < y);
}

/* 0 .. n-1 in the order of compare; NULL when out of memory. */
static uint32_t *sort_index(
	uint64_t n, int (*compare)(const void *, const void *, void *), void *items)
{
	uint32_t *index = calloc(n + 1, sizeof(*index));

	if (!index)
		return NULL;
	for (uint64_t i = 0; i < n; i++)
		index[i] = (uint32_t)i;
	qsort_r(index, n, sizeof(*index), compare, items);
	return index;
}

static int parse_version(struct gguf_cursor *c, struct gguf *g)
{
	uint32_t magic;
	int r = gguf_cursor_take_u32(c, "magic", &magic);

	if (r == 0 && magic != GGUF_MAGIC) {
		struct gguf_string found = {.data = (const char *)&magic, .n_bytes = 4};
		return err_set(c->err, EINVAL,
			"magic: expected \"GGUF\", found \"%s\" (0x%08" PRIx32 ")",
			gguf_label(found).text, magic);
	}
	if (r == 0)
		r = gguf_cursor_take_u32(c, "version", &g->version);
	if (r != 0 || g->version == 2 || g->version == 3)
		return r;
	uint32_t swapped = __builtin_bswap32(g->version);
	if (swapped >= 1 && swapped <= 3)
		return err_set(c->err, EINVAL,
			"version: expected 2 or 3 in little-endian order, found %" PRIu32
			" in big-endian order",
			swapped);
	return err_set(c->err, EINVAL, "version: expected 2 or 3, found %" PRIu32, g->version);
}

static int check_cap(struct gguf_cursor *c, const char *where, uint64_t n, uint64_t max)
{
	if (n > max)
		return err_set(c->err, EINVAL, "%s: expected at most %" PRIu64 ", found %" PRIu64,
			where, max, n);
	return 0;
}

static int parse_header(struct gguf_cursor *c, struct gguf *g)
{
	int r = parse_version(c, g);

	if (r == 0)
		r = gguf_cursor_take_u64(c, "tensor count", &g->n_tensors);
	if (r == 0)
		r = gguf_cursor_take_u64(c, "key count", &g->n_kv);
	if (r == 0)
		r = check_cap(c, "tensor count", g->n_tensors, GGUF_MAX_TENSORS);
	if (r == 0)
		r = check_cap(c, "key count", g->n_kv, GGUF_MAX_KV);
	return r;
}

static int parse_one_kv(struct gguf_cursor *c, uint64_t i, struct gguf_kv *kv)
{
	char where[GGUF_MAX_NAME_BYTES + 32];

	snprintf(where, sizeof(where), "key %" PRIu64, i);
	int r = gguf_cursor_take_string(c, where, GGUF_MAX_KEY_BYTES, &kv->key);
	if (r != 0)
		return r;
	snprintf(where, sizeof(where), "key %s", gguf_label(kv->key).text);
	return gguf_cursor_take_value(c, where, kv);
}

static int parse_kv(struct gguf_cursor *c, struct gguf *g)
{
	int r = gguf_cursor_check_count(c, "key count", g->n_kv, KV_MIN_BYTES);

	if (r != 0)
		return r;
	g->kv = calloc(g->n_kv + 1, sizeof(*g->kv));
	if (!g->kv)
		return err_set(c->err, ENOMEM, "file: no memory for %" PRIu64 " keys", g->n_kv);
	for (uint64_t i = 0; i < g->n_kv && r == 0; i++)
		r = parse_one_kv(c, i, &g->kv[i]);
	if (r != 0)
		return r;
	g->kv_index = sort_index(g->n_kv, compare_kv, g->kv);
	if (!g->kv_index)
		return err_set(c->err, ENOMEM, "file: no memory for %" PRIu64 " keys", g->n_kv);
	for (uint64_t i = 1; i < g->n_kv; i++) {
		struct gguf_string key = g->kv[g->kv_index[i]].key;
		if (compare_strings(g->kv[g->kv_index[i - 1]].key, key) == 0)
			return err_set(c->err, EINVAL, "key %s: expected once, found twice",
				gguf_label(key).text);
	}
	return 0;
}

static int parse_alignment(struct gguf_cursor *c, struct gguf *g)
{
	const struct gguf_kv *kv = gguf_find(g, GGUF_ALIGNMENT_KEY);

	g->alignment = DEFAULT_ALIGNMENT;
	if (!kv)
		return 0;
	if (kv->type != GGUF_U32)
		return err_set(c->err, EINVAL, "key %s: expected u32, found %s", GGUF_ALIGNMENT_KEY,
			gguf_describe_type(kv));
	memcpy(&g->alignment, kv->data, sizeof(g->alignment));
	if (g->alignment < GGUF_MIN_ALIGNMENT || g->alignment > GGUF_MAX_ALIGNMENT ||
		(g->alignment & (g->alignment - 1)) != 0)
		return err_set(c->err, EINVAL,
			"key %s: expected a power of two from %d to %d, found %" PRIu32,
			GGUF_ALIGNMENT_KEY, GGUF_MIN_ALIGNMENT, GGUF_MAX_ALIGNMENT, g->alignment);
	return 0;
}

/* Dimensions and block format to sizes; proto/dtype leaves room for padding. */
static int check_sizes(struct gguf_cursor *c, const char *where, struct gguf_tensor *t)
{
	uint64_t n_elements = 1;

	for (uint32_t d = 0; d < t->n_dims; d++) {
		if (t->ne[d] == 0)
			return err_set(c->err, EINVAL,
				"%s: dimension %" PRIu32 ": expected at least 1, found 0", where,
				d);
		if (__builtin_mul_overflow(n_elements, t->ne[d], &n_elements) ||
			n_elements > INT64_MAX)
			return err_set(c->err, EINVAL,
				"%s: element count overflows: expected at most %" PRId64
				", found [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 "]",
				where, INT64_MAX, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
	}
	int r = dtype_tensor_bytes(t->dtype, t->n_dims, t->ne, &t->n_elements, &t->n_bytes);
	if (r == -EINVAL)
		return err_set(c->err, EINVAL,
			"%s: row length: expected a multiple of %" PRIu32 " (%s), found %" PRIu64,
			where, t->dtype->n_block, t->dtype->name, t->ne[0]);
	if (r < 0)
		return err_set(c->err, EINVAL,
			"%s: padded size overflows: expected fewer than 2^64 bytes, found %" PRIu64
			" elements of %s",
			where, n_elements, t->dtype->name);
	return 0;
}

static int parse_dims(struct gguf_cursor *c, const char *where, struct gguf_tensor *t)
{
	int r = gguf_cursor_take_u32(c, where, &t->n_dims);

	if (r == 0 && (t->n_dims < 1 || t->n_dims > 4))
		return err_set(c->err, EINVAL, "%s: dimensions: expected 1 to 4, found %" PRIu32,
			where, t->n_dims);
	for (uint32_t d = 0; d < 4 && r == 0; d++) {
		t->ne[d] = 1;
		if (d < t->n_dims)
			r = gguf_cursor_take_u64(c, where, &t->ne[d]);
	}
	return r;
}

/* t->offset is the file's: from the start of the tensor data. */
static int parse_one_tensor(
	struct gguf_cursor *c, uint64_t i, uint32_t alignment, struct gguf_tensor *t)
{
	char where[GGUF_MAX_NAME_BYTES + 32];
	uint32_t type;

	snprintf(where, sizeof(where), "tensor %" PRIu64, i);
	int r = gguf_cursor_take_string(c, where, GGUF_MAX_NAME_BYTES, &t->name);
	if (r != 0)
		return r;
	if (t->name.n_bytes == 0)
		return err_set(c->err, EINVAL, "%s: name: expected 1 to %d bytes, found none",
			where, GGUF_MAX_NAME_BYTES);
	snprintf(where, sizeof(where), "tensor %s", gguf_label(t->name).text);
	r = parse_dims(c, where, t);
	if (r == 0)
		r = gguf_cursor_take_u32(c, where, &type);
	if (r == 0)
		r = gguf_cursor_take_u64(c, where, &t->offset);
	if (r != 0)
		return r;
	t->dtype = dtype_find(type);
	if (!t->dtype)
		return err_set(c->err, EINVAL,
			"%s: block format: expected a known type id, found %" PRIu32, where, type);
	if (t->offset % alignment != 0)
		return err_set(c->err, EINVAL,
			"%s: offset: expected a multiple of %" PRIu32 ", found %" PRIu64, where,
			alignment, t->offset);
	return check_sizes(c, where, t);
}

static int parse_tensors(struct gguf_cursor *c, struct gguf *g)
{
	int r = gguf_cursor_check_count(c, "tensor count", g->n_tensors, TENSOR_MIN_BYTES);

	if (r != 0)
		return r;
	g->tensors = calloc(g->n_tensors + 1, sizeof(*g->tensors));
	if (!g->tensors)
		return err_set(
			c->err, ENOMEM, "file: no memory for %" PRIu64 " tensors", g->n_tensors);
	for (uint64_t i = 0; i < g->n_tensors && r == 0; i++)
		r = parse_one_tensor(c, i, g->alignment, &g->tensors[i]);
	if (r != 0)
		return r;
	g->tensor_index = sort_index(g->n_tensors, compare_tensors, g->tensors);
	if (!g->tensor_index)
		return err_set(
			c->err, ENOMEM, "file: no memory for %" PRIu64 " tensors", g->n_tensors);
	for (uint64_t i = 1; i < g->n_tensors; i++) {
		struct gguf_string name = g->tensors[g->tensor_index[i]].name;
		if (compare_strings(g->tensors[g->tensor_index[i - 1]].name, name) == 0)
			return err_set(c->err, EINVAL, "tensor %s: expected once, found twice",
				gguf_label(name).text);
	}
	return 0;
}

/* Offsets become the file's; every tensor ends inside the file. */
static int locate_tensors(struct gguf_cursor *c, struct gguf *g)
{
	/* Cannot overflow: the metadata is inside the file and a file has fewer than 2^63 bytes. */
	uint64_t mask = g->alignment - 1;
	g->data_offset = (c->bytes.at + mask) & ~mask;
	for (uint64_t i = 0; i < g->n_tensors; i++) {
		struct gguf_tensor *t = &g->tensors[i];
		uint64_t offset, end;

		if (__builtin_add_overflow(g->data_offset, t->offset, &offset) ||
			__builtin_add_overflow(offset, t->n_bytes, &end) || end > g->n_file_bytes)
			return err_set(c->err, EINVAL,
				"tensor %s: data beyond end of file: expected %" PRIu64
				" bytes at offset %" PRIu64 " of the data at byte %" PRIu64
				", found a file of %" PRIu64 " bytes",
				gguf_label(t->name).text, t->n_bytes, t->offset, g->data_offset,
				g->n_file_bytes);
		t->offset = offset;
	}
	return 0;
}

static int check_overlaps(struct gguf_cursor *c, struct gguf *g)
{
	_cleanup_(cleanup_free)
	uint32_t *index = sort_index(g->n_tensors, compare_offsets, g->tensors);

	if (!index)
		return err_set(
			c->err, ENOMEM, "file: no memory for %" PRIu64 " tensors", g->n_tensors);
	for (uint64_t i = 1; i < g->n_tensors; i++) {
		const struct gguf_tensor *a = &g->tensors[index[i - 1]];
		const struct gguf_tensor *b = &g->tensors[index[i]];
		if (a->offset + a->n_bytes > b->offset)
			return err_set(c->err, EINVAL,
				"tensor %s: overlaps tensor %s: expected to begin at byte %" PRIu64
				" or later, found %" PRIu64,
				gguf_label(b->name).text, gguf_label(a->name).text,
				a->offset + a->n_bytes, b->offset);
	}
	return 0;
}

static int parse(struct gguf_cursor *c, struct gguf *g)
{
	int r = parse_header(c, g);

	if (r == 0)
		r = parse_kv(c, g);
	if (r == 0)
		r = parse_alignment(c, g);
	if (r == 0)
		r = parse_tensors(c, g);
	if (r == 0)
		r = locate_tensors(c, g);
	if (r == 0)
		r = check_overlaps(c, g);
	return r;
}

static void cleanup_gguf(struct gguf **g)
{
	gguf_free(*g);
}

int gguf_parse(const uint8_t *data, uint64_t n_bytes, uint64_t n_file_bytes, struct err *ret_err,
	struct gguf **ret_gguf)
{
	_cleanup_(cleanup_gguf)
	struct gguf *g = calloc(1, sizeof(*g));
	struct gguf_cursor c = {
		.bytes = {.data = data, .n_bytes = n_bytes < n_file_bytes ? n_bytes : n_file_bytes},
		.n_file_bytes = n_file_bytes,
		.err = ret_err,
	};

	if (!g)
		return err_set(ret_err, ENOMEM, "file: no memory for %zu bytes", sizeof(*g));
	if (n_file_bytes > INT64_MAX)
		return err_set(
			ret_err, EINVAL, "file: expected at most %" PRId64 " bytes", INT64_MAX);
	g->n_file_bytes = n_file_bytes;
	int r = parse(&c, g);
	if (r == 0)
		*ret_gguf = TAKE_PTR(g);
	return r;
}

struct gguf *gguf_free(struct gguf *g)
{
	if (!g)
		return NULL;
	free(g->kv);
	free(g->kv_index);
	free(g->tensors);
	free(g->tensor_index);
	free(g->metadata);
	free(g);
	return NULL;
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
	struct gguf_string want = {.data = key, .n_bytes = strlen(key)};
	uint64_t low = 0, high = g->n_kv;

	while (low < high) {
		uint64_t mid = low + (high - low) / 2;
		const struct gguf_kv *kv = &g->kv[g->kv_index[mid]];
		int order = compare_strings(want, kv->key);

		if (order == 0)
			return kv;
		if (order < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
	struct gguf_string want = {.data = name, .n_bytes = strlen(name)};
	uint64_t low = 0, high = g->n_tensors;

	while (low < high) {
		uint64_t mid = low + (high - low) / 2;
		const struct gguf_tensor *t = &g->tensors[g->tensor_index[mid]];
		int order = compare_strings(want, t->name);

		if (order == 0)
			return t;
		if (order < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return NULL;
}

const char *gguf_describe_type(const struct gguf_kv *kv)
{
	static const char *const scalars[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool",
		"string", "array", "u64", "i64", "f64"};
	static const char *const arrays[] = {"array of u8", "array of i8", "array of u16",
		"array of i16", "array of u32", "array of i32", "array of f32", "array of bool",
		"array of string", "array of arrays", "array of u64", "array of i64",
		"array of f64"};

	return kv->type == GGUF_ARRAY ? arrays[kv->element_type] : scalars[kv->type];
}

bool gguf_next_string(const struct gguf_kv *kv, uint64_t *at, struct gguf_string *ret)
{
	struct bytes b = {.data = kv->data, .n_bytes = kv->n_bytes, .at = *at};
	uint64_t n;

	if (kv->type != GGUF_ARRAY || kv->element_type != GGUF_STRING || !bytes_take_u64(&b, &n))
		return false;
	const uint8_t *p = bytes_take(&b, n);
	if (!p)
		return false;
	*ret = (struct gguf_string){.data = (const char *)p, .n_bytes = n};
	*at = b.at;
	return true;
}
