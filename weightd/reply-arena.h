/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_REPLY_ARENA_H
#define WEIGHTD_REPLY_ARENA_H

/* Memory of one reply: everything that it is made of goes at once. Any thread. */
#include <stdbool.h>
#include <stddef.h>

struct reply_block;

/* Empty when zero. */
struct reply_arena {
	struct reply_block *blocks;
	bool is_failed; /* an allocation has failed; it can be asked once, at the end */
};

void reply_arena_fini(struct reply_arena *a);

/* n zeroed items, as aligned as any message; NULL (and is_failed) without memory. n == 0 gives a
 * pointer too. */
void *reply_arena_alloc(struct reply_arena *a, size_t n, size_t n_item_bytes);

#endif
