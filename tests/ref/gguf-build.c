/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ref/gguf-build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"
#include "weightd/gguf.h"

struct buffer {
	uint8_t *data;
	uint64_t n_bytes;
	uint64_t n_room;
};

static void *grow(void *p, uint64_t n_bytes)
{
	void *grown = realloc(p, n_bytes + 1);

	if (!grown)
		abort();
	return grown;
}

static void put(struct buffer *b, const void *data, uint64_t n_bytes)
{
	if (b->n_bytes + n_bytes > b->n_room) {
		b->n_room = 2 * (b->n_bytes + n_bytes);
		b->data = grow(b->data, b->n_room);
	}
	if (n_bytes > 0)
		memcpy(b->data + b->n_bytes, data, n_bytes);
	b->n_bytes += n_bytes;
}

static void put_u32(struct buffer *b, uint32_t v)
{
	put(b, &v, sizeof(v));
}

static void put_u64(struct buffer *b, uint64_t v)
{
	put(b, &v, sizeof(v));
}

static void put_string(struct buffer *b, const void *data, uint64_t n_bytes)
{
	put_u64(b, n_bytes);
	put(b, data, n_bytes);
}

static uint64_t align(uint64_t n, uint64_t alignment)
{
	return (n + alignment - 1) / alignment * alignment;
}

struct gguf_build *gguf_build_new(void)
{
	struct gguf_build *b = calloc(1, sizeof(*b));

	if (!b)
		abort();
	memcpy(b->magic, "GGUF", 4);
	b->version = 3;
	b->alignment = 32;
	b->seed = 1;
	return b;
}

struct gguf_build *gguf_build_free(struct gguf_build *b)
{
	if (!b)
		return NULL;
	for (uint32_t i = 0; i < b->n_kv; i++) {
		free(b->kv[i].key);
		free(b->kv[i].value);
	}
	free(b->kv);
	free(b->tensors);
	free(b);
	return NULL;
}

static void *copy(const void *data, uint64_t n_bytes)
{
	void *p = grow(NULL, n_bytes);

	if (n_bytes > 0)
		memcpy(p, data, n_bytes);
	return p;
}

void gguf_build_add(struct gguf_build *b, const void *key, uint64_t n_key_bytes, uint32_t type,
	const void *value, uint64_t n_value_bytes)
{
	b->kv = grow(b->kv, (b->n_kv + 1) * sizeof(*b->kv));
	b->kv[b->n_kv++] = (struct gguf_build_kv){
		.key = copy(key, n_key_bytes),
		.n_key_bytes = n_key_bytes,
		.type = type,
		.value = copy(value, n_value_bytes),
		.n_value_bytes = n_value_bytes,
	};
}

/* n_kv when absent. */
static uint32_t find_kv(const struct gguf_build *b, const char *key)
{
	uint32_t i = 0;

	while (i < b->n_kv && (b->kv[i].n_key_bytes != strlen(key) ||
				      memcmp(b->kv[i].key, key, strlen(key)) != 0))
		i++;
	return i;
}

void gguf_build_set(struct gguf_build *b, const char *key, uint32_t type, const void *value,
	uint64_t n_value_bytes)
{
	uint32_t i = find_kv(b, key);

	if (i == b->n_kv) {
		gguf_build_add(b, key, strlen(key), type, value, n_value_bytes);
		return;
	}
	free(b->kv[i].value);
	b->kv[i].type = type;
	b->kv[i].value = copy(value, n_value_bytes);
	b->kv[i].n_value_bytes = n_value_bytes;
}

void gguf_build_set_u32(struct gguf_build *b, const char *key, uint32_t value)
{
	gguf_build_set(b, key, GGUF_U32, &value, sizeof(value));
}

void gguf_build_set_f32(struct gguf_build *b, const char *key, float value)
{
	gguf_build_set(b, key, GGUF_F32, &value, sizeof(value));
}

void gguf_build_set_bool(struct gguf_build *b, const char *key, bool value)
{
	uint8_t byte = value;

	gguf_build_set(b, key, GGUF_BOOL, &byte, sizeof(byte));
}

void gguf_build_set_string(struct gguf_build *b, const char *key, const char *value)
{
	struct buffer v = {.data = NULL};

	put_string(&v, value, strlen(value));
	gguf_build_set(b, key, GGUF_STRING, v.data, v.n_bytes);
	free(v.data);
}

void gguf_build_set_strings(
	struct gguf_build *b, const char *key, const char *const *values, uint64_t n)
{
	struct buffer v = {.data = NULL};

	put_u32(&v, GGUF_STRING);
	put_u64(&v, n);
	for (uint64_t i = 0; i < n; i++)
		put_string(&v, values[i], strlen(values[i]));
	gguf_build_set(b, key, GGUF_ARRAY, v.data, v.n_bytes);
	free(v.data);
}

void gguf_build_set_array(struct gguf_build *b, const char *key, uint32_t element_type,
	const void *elements, uint64_t n, uint32_t element_bytes)
{
	struct buffer v = {.data = NULL};

	put_u32(&v, element_type);
	put_u64(&v, n);
	put(&v, elements, n * element_bytes);
	gguf_build_set(b, key, GGUF_ARRAY, v.data, v.n_bytes);
	free(v.data);
}

void gguf_build_drop(struct gguf_build *b, const char *key)
{
	uint32_t i = find_kv(b, key);

	if (i == b->n_kv)
		return;
	free(b->kv[i].key);
	free(b->kv[i].value);
	b->n_kv--;
	memmove(&b->kv[i], &b->kv[i + 1], (b->n_kv - i) * sizeof(*b->kv));
}

struct gguf_build_tensor *gguf_build_add_tensor(
	struct gguf_build *b, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne)
{
	struct gguf_build_tensor t = {.n_dims = n_dims, .type = type};
	const struct dtype *dtype = dtype_find(type);
	uint64_t n_elements;

	snprintf(t.name, sizeof(t.name), "%s", name);
	memcpy(t.ne, ne, n_dims * sizeof(*ne));
	if (!dtype || dtype_tensor_bytes(dtype, n_dims, ne, &n_elements, &t.n_bytes) < 0)
		abort();
	t.offset = align(gguf_build_data_bytes(b), b->alignment);
	b->tensors = grow(b->tensors, (b->n_tensors + 1) * sizeof(*b->tensors));
	b->tensors[b->n_tensors] = t;
	return &b->tensors[b->n_tensors++];
}

struct gguf_build_tensor *gguf_build_find_tensor(struct gguf_build *b, const char *name)
{
	for (uint32_t i = 0; i < b->n_tensors; i++)
		if (strcmp(b->tensors[i].name, name) == 0)
			return &b->tensors[i];
	abort();
}

void gguf_build_drop_tensor(struct gguf_build *b, const char *name)
{
	struct gguf_build_tensor *t = gguf_build_find_tensor(b, name);

	b->n_tensors--;
	memmove(t, t + 1, (size_t)(&b->tensors[b->n_tensors] - t) * sizeof(*t));
}

uint8_t *gguf_build_metadata(const struct gguf_build *b, uint64_t *ret_n_bytes)
{
	static const uint8_t zeroes[1 << 16];
	struct buffer out = {.data = NULL};

	put(&out, b->magic, 4);
	put_u32(&out, b->version);
	put_u64(&out, b->n_tensors_claimed ? b->n_tensors_claimed : b->n_tensors);
	put_u64(&out, b->n_kv_claimed ? b->n_kv_claimed : b->n_kv);
	for (uint32_t i = 0; i < b->n_kv; i++) {
		put_string(&out, b->kv[i].key, b->kv[i].n_key_bytes);
		put_u32(&out, b->kv[i].type);
		put(&out, b->kv[i].value, b->kv[i].n_value_bytes);
	}
	for (uint32_t i = 0; i < b->n_tensors; i++) {
		const struct gguf_build_tensor *t = &b->tensors[i];
		put_string(&out, t->name, strlen(t->name));
		put_u32(&out, t->n_dims);
		put(&out, t->ne, t->n_dims * sizeof(*t->ne));
		put_u32(&out, t->type);
		put_u64(&out, t->offset);
	}
	put(&out, zeroes, align(out.n_bytes, b->alignment) - out.n_bytes);
	*ret_n_bytes = out.n_bytes;
	return out.data;
}

uint64_t gguf_build_data_bytes(const struct gguf_build *b)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < b->n_tensors; i++) {
		/* A tensor put out of reach on purpose has no data. */
		uint64_t end = b->tensors[i].offset + b->tensors[i].n_bytes;
		if (end > n && end < (uint64_t)1 << 40)
			n = end;
	}
	return n;
}

uint8_t *gguf_build_file(const struct gguf_build *b, uint64_t *ret_n_bytes)
{
	uint64_t n_metadata, n_data = gguf_build_data_bytes(b), rng = b->seed | 1;
	uint8_t *file = gguf_build_metadata(b, &n_metadata);

	file = grow(file, n_metadata + n_data);
	memset(file + n_metadata, 0, n_data);
	for (uint32_t i = 0; i < b->n_tensors; i++) {
		const struct gguf_build_tensor *t = &b->tensors[i];
		const struct dtype *dtype = dtype_find(t->type);
		float sigma = t->n_dims == 1 ? 0.05f : 1 / sqrtf((float)t->ne[0]);

		if (!dtype || t->offset > n_data || t->n_bytes > n_data - t->offset)
			continue;
		if (!gguf_build_fill_rope_factors(b, t, file + n_metadata + t->offset))
			gguf_build_fill(t->type, t->n_dims == 1 ? 1 : 0, sigma,
				t->n_bytes / dtype->n_bytes, &rng, file + n_metadata + t->offset);
	}
	*ret_n_bytes = n_metadata + n_data;
	return file;
}
