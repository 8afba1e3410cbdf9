/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_BYTES_H
#define PROTO_UTIL_BYTES_H

/*
 * Reading bytes that somebody else chose: a view with a cursor that never passes its end, and
 * little-endian loads at any alignment. Sizes are in bytes.
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* A borrowed view: data[0..n_bytes), at is the next byte to read, at <= n_bytes always. */
struct bytes {
	const uint8_t *data;
	uint64_t n_bytes;
	uint64_t at;
};

static inline uint64_t bytes_left(const struct bytes *b)
{
	return b->n_bytes - b->at;
}

/* Borrows the next n bytes and moves on; NULL and no move when fewer are left. */
static inline const uint8_t *bytes_take(struct bytes *b, uint64_t n)
{
	if (n > bytes_left(b))
		return NULL;
	const uint8_t *p = b->data + b->at;
	b->at += n;
	return p;
}

/* memcpy loads: weightd runs on little-endian machines only (the build checks). */
#define BYTES_DEFINE_TAKE(name, type)                                    \
	static inline bool bytes_take_##name(struct bytes *b, type *ret) \
	{                                                                \
		const uint8_t *p = bytes_take(b, sizeof(type));          \
		if (p)                                                   \
			memcpy(ret, p, sizeof(type));                    \
		return p != NULL;                                        \
	}
BYTES_DEFINE_TAKE(u8, uint8_t)
BYTES_DEFINE_TAKE(u16, uint16_t)
BYTES_DEFINE_TAKE(u32, uint32_t)
BYTES_DEFINE_TAKE(u64, uint64_t)
#undef BYTES_DEFINE_TAKE

/* Rounds n up to a multiple of align, a power of two; false when that overflows. */
static inline bool bytes_align(uint64_t n, uint64_t align, uint64_t *ret)
{
	uint64_t sum;

	if (__builtin_add_overflow(n, align - 1, &sum))
		return false;
	*ret = sum & ~(align - 1);
	return true;
}

#endif
