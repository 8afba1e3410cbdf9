/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_GGUF_CURSOR_H
#define WEIGHTD_GGUF_CURSOR_H

/*
 * A position in the first bytes of a GGUF file. It tells "beyond the bytes read so far"
 * (GGUF_MORE) from "beyond the end of the file" (-EINVAL with the error's text), and walks values
 * of every type. `where` begins the text of an error: "key general.name". Any one thread.
 */
#include <stdint.h>

#include "proto/util/bytes.h"
#include "proto/util/cleanup.h"
#include "weightd/gguf.h"

struct err;

enum {
	GGUF_CURSOR_MAX_DEPTH = 4, /* arrays of arrays; nobody writes more than one level */
};

struct gguf_cursor {
	struct bytes bytes; /* the prefix that was read */
	uint64_t n_file_bytes;
	struct err *err;
};

/* All of these: 0, GGUF_MORE, -EINVAL. *ret_data is borrowed from the prefix. */
int must_check gguf_cursor_take(
	struct gguf_cursor *c, const char *where, uint64_t n_bytes, const uint8_t **ret_data);
int must_check gguf_cursor_take_u32(struct gguf_cursor *c, const char *where, uint32_t *ret);
int must_check gguf_cursor_take_u64(struct gguf_cursor *c, const char *where, uint64_t *ret);
int must_check gguf_cursor_take_string(
	struct gguf_cursor *c, const char *where, uint64_t max_bytes, struct gguf_string *ret);

/* Can n things of at least min_bytes each follow? To be asked before anything is sized by n. */
int must_check gguf_cursor_check_count(
	struct gguf_cursor *c, const char *where, uint64_t n, uint64_t min_bytes);

/* Takes a type id and the value behind it; fills all of *ret but its key. */
int must_check gguf_cursor_take_value(
	struct gguf_cursor *c, const char *where, struct gguf_kv *ret);

#endif
