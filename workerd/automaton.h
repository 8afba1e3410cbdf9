/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_AUTOMATON_H
#define WORKERD_AUTOMATON_H

/*
 * A grammar as a deterministic automaton over bytes, made while it is walked. A state is a set of
 * stacks: each says which element comes next and what is to come behind it. Equal sets are one
 * state, so that a byte which was seen in a state before costs one look-up.
 *
 * Tables are of a fixed size (at most about 6 MiB, as far as they are used). When they are full,
 * automaton_flush empties them but for the states that are pinned.
 *
 * What would nest deeper than AUTOMATON_MAX_DEPTH is not gone into. One thread at a time.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct automaton;
struct err;
struct gbnf;

enum {
	AUTOMATON_UNKNOWN = 0,
	AUTOMATON_DEAD = 1, /* the bytes so far begin no text of the grammar */
	AUTOMATON_MAX_STATES = 4096,
	AUTOMATON_MAX_STACKS = 4096, /* that one byte may lead to */
	AUTOMATON_MAX_NODES = 1 << 15,
	AUTOMATON_MAX_KEPT = 1 << 17, /* stacks of all states */
	AUTOMATON_MAX_DEPTH = 256,
};

/* A state that survives automaton_flush, under another number perhaps. */
struct automaton_pin {
	uint16_t state;
	struct automaton_pin *next;
	struct automaton_pin *previous;
};

/* g is borrowed for the automaton's life. -ENOMEM. */
int must_check automaton_new(const struct gbnf *g, struct automaton **ret_automaton);
struct automaton *automaton_free(struct automaton *a);

/* Pins the state before the first byte. Errors as automaton_step. */
int must_check automaton_pin(struct automaton *a, struct automaton_pin *pin);
void automaton_unpin(struct automaton *a, struct automaton_pin *pin);

/*
 * How many stacks may be looked at from now on, over all steps: a grammar can be made so that each
 * byte takes thousands, and whoever asks has to answer others too. Without it: none.
 */
void automaton_set_budget(struct automaton *a, uint64_t n_stacks);

/*
 * The state behind a byte. -ENOBUFS: the tables are full (flush, and begin again from a pin);
 * -E2BIG: more stacks than AUTOMATON_MAX_STACKS; -EOVERFLOW: the budget is spent.
 */
int must_check automaton_step(
	struct automaton *a, uint16_t state, uint8_t byte, uint16_t *ret_state);

/* What automaton_step found for the byte before; AUTOMATON_UNKNOWN: nothing yet. */
uint16_t automaton_look_up(const struct automaton *a, uint16_t state, uint8_t byte);

/* May the text end here? */
bool automaton_is_complete(const struct automaton *a, uint16_t state);

/* Must it? */
bool automaton_is_final(const struct automaton *a, uint16_t state);

/* Forgets all states but the pinned ones; others' numbers mean nothing any more. -ENOMEM. */
int must_check automaton_flush(struct automaton *a);

#endif
