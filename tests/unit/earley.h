/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_EARLEY_H
#define TESTS_UNIT_EARLEY_H

/*
 * The reference that workerd/automaton is held to: which texts a rule table has, after J. Earley,
 * "An efficient context-free parsing algorithm" (1970), byte by byte, with no regard to speed.
 * Failures of memory fail the test.
 */
#include <stdbool.h>
#include <stdint.h>

struct earley;
struct gbnf;

/* g is borrowed. At the beginning of a text. */
struct earley *earley_new(const struct gbnf *g);
void earley_free(struct earley *e);

/* Goes on by a byte; false: no text of the grammar begins so (and the byte is not taken). */
bool earley_push(struct earley *e, uint8_t byte);

/* Back to the first n bytes. */
void earley_truncate(struct earley *e, uint32_t n);

/* Is what was pushed a whole text? */
bool earley_is_complete(const struct earley *e);

/* Has the grammar this text? */
bool earley_matches(const struct gbnf *g, const char *text, uint64_t n_bytes);

#endif
