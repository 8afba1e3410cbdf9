/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_GGUF_H
#define WEIGHTD_GGUF_H

/*
 * The GGUF container, versions 2 and 3, little endian: keys, values and the tensor table. Judges
 * the container alone (counts, sizes, strings, alignment, offsets, overlaps); what a model needs is
 * weightd/validate's. Source: the GGUF specification (ggml's docs/gguf.md).
 *
 * The metadata is parsed from a private copy that is read, never from a mapping: a file that
 * somebody truncates meanwhile would kill a process that reads its mapping. Any one thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct dtype;
struct err;

enum gguf_type {
	GGUF_U8,
	GGUF_I8,
	GGUF_U16,
	GGUF_I16,
	GGUF_U32,
	GGUF_I32,
	GGUF_F32,
	GGUF_BOOL,
	GGUF_STRING,
	GGUF_ARRAY,
	GGUF_U64,
	GGUF_I64,
	GGUF_F64,
};

/* Borrowed from the gguf; not NUL-terminated, any bytes. */
struct gguf_string {
	const char *data;
	uint64_t n_bytes;
};

struct gguf_kv {
	struct gguf_string key;
	enum gguf_type type;
	enum gguf_type element_type; /* of an array */
	uint64_t n_elements;         /* of an array, else 1 */
	const uint8_t *data;         /* the value's bytes in the file; strings with their lengths */
	uint64_t n_bytes;
};

struct gguf_tensor {
	struct gguf_string name;
	const struct dtype *dtype; /* never NULL */
	uint32_t n_dims;
	uint64_t ne[4]; /* unused are 1 */
	uint64_t n_elements;
	uint64_t offset; /* from the start of the file */
	uint64_t n_bytes;
};

struct gguf {
	uint32_t version;
	uint32_t alignment;
	uint64_t n_file_bytes;
	uint64_t data_offset; /* of the tensor data in the file */
	uint64_t n_kv;
	struct gguf_kv *kv; /* in file order */
	uint32_t *kv_index; /* [n_kv] sorted by key, memcmp order */
	uint64_t n_tensors;
	struct gguf_tensor *tensors; /* in file order */
	uint32_t *tensor_index;      /* [n_tensors] sorted by name, memcmp order */
	uint8_t *metadata;           /* owned copy, or NULL when the bytes are borrowed */
};

enum {
	GGUF_MAX_KV = 1 << 16, /* real files have some 30 keys and at most some 3,000 tensors */
	GGUF_MAX_TENSORS = 1 << 16,
	GGUF_MAX_KEY_BYTES = 65535, /* the specification's limits */
	GGUF_MAX_NAME_BYTES = 64,
	GGUF_MIN_ALIGNMENT = 8, /* the specification: a multiple of 8 */
	GGUF_MAX_ALIGNMENT = 1 << 24,
	GGUF_MAX_METADATA_BYTES = 1 << 28, /* a 260,000-token vocabulary takes some 16 MiB */
};

/*
 * Parses data[0..n_bytes), the start of a file of n_file_bytes; data is borrowed by the result.
 * GGUF_MORE: the metadata goes on beyond n_bytes; come back with more. -EINVAL with ret_err.
 * Allocates at most a small multiple of n_bytes, whatever the counts in the file say.
 */
enum { GGUF_MORE = 1 };
int must_check gguf_parse(const uint8_t *data, uint64_t n_bytes, uint64_t n_file_bytes,
	struct err *ret_err, struct gguf **ret_gguf);

/*
 * Reads the metadata of a regular file: a directory, a device, an empty file are refused with what
 * was found. fd is borrowed.
 */
int must_check gguf_read(int fd, struct err *ret_err, struct gguf **ret_gguf);

struct gguf *gguf_free(struct gguf *g);

/* NULL when absent. Hash or binary search, not linear in the number of keys. */
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* A value as a type; -EINVAL with key, expected and found type. Any integer type fits get_u64. */
int must_check gguf_get_u64(const struct gguf_kv *kv, struct err *ret_err, uint64_t *ret);
int must_check gguf_get_f64(const struct gguf_kv *kv, struct err *ret_err, double *ret);
int must_check gguf_get_bool(const struct gguf_kv *kv, struct err *ret_err, bool *ret);
int must_check gguf_get_string(
	const struct gguf_kv *kv, struct err *ret_err, struct gguf_string *ret);

/* For error texts: s as printable ASCII, cut to fit. */
struct gguf_label {
	char text[GGUF_MAX_NAME_BYTES + 4];
};
struct gguf_label gguf_label(struct gguf_string s);

/* The type of a value in words: "u32", "array of string". Borrowed, static. */
const char *gguf_describe_type(const struct gguf_kv *kv);

/* Walks an array of strings from front to back: *at is 0 at first; false at the end. */
bool gguf_next_string(const struct gguf_kv *kv, uint64_t *at, struct gguf_string *ret);

#endif
