/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/reply-arena.h"

#include <stdint.h>
#include <stdlib.h>

struct reply_block {
	struct reply_block *next;
	uint64_t data[]; /* aligned for every message */
};

void reply_arena_fini(struct reply_arena *a)
{
	while (a->blocks) {
		struct reply_block *next = a->blocks->next;
		free(a->blocks);
		a->blocks = next;
	}
}

void *reply_arena_alloc(struct reply_arena *a, size_t n, size_t n_item_bytes)
{
	size_t n_bytes;
	struct reply_block *b = NULL;

	if (!__builtin_mul_overflow(n, n_item_bytes, &n_bytes) &&
		!__builtin_add_overflow(n_bytes, sizeof(*b) + 1, &n_bytes))
		b = calloc(1, n_bytes);
	if (!b) {
		a->is_failed = true;
		return NULL;
	}
	b->next = a->blocks;
	a->blocks = b;
	return b->data;
}
