/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_UTF8_CLASS_H
#define WORKERD_UTF8_CLASS_H

/*
 * Sets of code points as automata over the bytes of UTF-8, so that whoever goes by bytes need not
 * know where a character begins. Only well-formed UTF-8 passes (Unicode 15, table 3-7): no
 * surrogates, no overlong forms. Any thread, one at a time.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

enum {
	UTF8_CLASS_DEAD = 0, /* no code point of the set begins so */
	UTF8_CLASS_DONE = 1, /* the code point is whole */
	UTF8_CLASS_MAX_STATES = 8192,
	UTF8_CLASS_MAX = 0x10ffff,
};

struct utf8_class_range {
	uint32_t first; /* code points, both included */
	uint32_t last;
};

/* Zero is empty. */
struct utf8_class_table {
	uint16_t (*next)[256]; /* [n_states][256]: the state behind a byte */
	uint32_t n_states;
	uint32_t n_room;
	uint16_t any[4]; /* states that any i continuation bytes finish; 0: not made yet */
};

void utf8_class_fini(struct utf8_class_table *t);

/*
 * Sorts, joins and, with is_negated, turns over n ranges in place; surrogates are never in the
 * result. Room for n + 2 ranges. Returns how many there are.
 */
uint32_t utf8_class_normalise(struct utf8_class_range *ranges, uint32_t n, bool is_negated);

/*
 * Adds the automaton of normalised ranges; *ret_start is its first state, DEAD for the empty set.
 * -E2BIG above UTF8_CLASS_MAX_STATES, -ENOMEM; states that were added until then stay.
 */
int must_check utf8_class_add(struct utf8_class_table *t, const struct utf8_class_range *ranges,
	uint32_t n, uint16_t *ret_start);

/* The bytes of a code point that is no surrogate; returns how many, 1 to 4. */
uint32_t utf8_class_encode(uint32_t code, uint8_t ret_bytes[4]);

/*
 * The code point that n_bytes begin with; returns its length, 0 where they begin with none that is
 * well-formed.
 */
uint32_t utf8_class_decode(const char *bytes, uint64_t n_bytes, uint32_t *ret_code);

#endif
