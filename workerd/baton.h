/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_BATON_H
#define WORKERD_BATON_H

/*
 * Whose turn it is on a device that several workers decode on. A device that has work of two
 * processes changes between them every millisecond or so, and each change costs it a tenth of that
 * and more (docs/decisions.md). So workers with short steps compute one after the other: who has
 * the baton has a turn of some milliseconds, of one step at least, and as long as nobody waits for
 * it. Long steps are made without it, and share the device with whoever has it.
 *
 * The memory (proto/baton.h) is anybody's who may compute, so nothing there is believed for long:
 * who does not hand on, or has died, is passed by after BATON_PATIENCE_NS, and who meets that again
 * and again, or waits for most of a second, does without a baton for a while. It saves time, and
 * nothing depends on it.
 *
 * All calls accept NULL: a worker without a baton. Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct baton;
struct err;

#define BATON_TURN_NS UINT64_C(6000000) /* by default */
#define BATON_PATIENCE_NS UINT64_C(40000000)

struct baton_counters {
	uint64_t n_turns;  /* that began */
	uint64_t n_waits;  /* for one, whether it came or not */
	uint64_t n_passed; /* workers that were passed by */
	uint64_t wait_ns;
};

/* Takes fd on success. -EPROTO: it is not such memory; -errno. */
int must_check baton_new(int fd, uint64_t turn_ns, struct err *ret_err, struct baton **ret_baton);

/* Hands on. Returns NULL. */
struct baton *baton_free(struct baton *b);

/* Would a step that takes so long be short? It is one at least in each turn. */
bool baton_is_short(const struct baton *b, uint64_t step_ns);

/*
 * Before a step is submitted where none of this worker is under way: waits until it is this
 * worker's turn, or hands on for a step that is not short. How long it has waited.
 */
uint64_t baton_begin(struct baton *b, bool is_short);

/* Would baton_begin wait for a short step? By a look: it may be otherwise then. */
bool baton_would_wait(const struct baton *b);

/*
 * Does another step behind the one that is under way belong to the same turn, or need none? Else it
 * begins with baton_begin, when none is under way.
 */
bool baton_may_go_on(const struct baton *b, bool is_short);

/*
 * A step of the turn is done, step_ns after it, or the end of the one before it; is_last: none is
 * under way. The turn may end with it.
 */
void baton_end(struct baton *b, uint64_t step_ns, bool is_last);

/* No step follows soon: hands on. */
void baton_rest(struct baton *b);

void baton_get_counters(const struct baton *b, struct baton_counters *ret_counters);

#endif
