/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_SCHEDULER_STEP_H
#define WORKERD_SCHEDULER_STEP_H

/*
 * The steps of the scheduler. While one is computed, the next is submitted behind it where each
 * session's next token is one that the device picks: all of them decode, without a choice that
 * needs the host. The host picks nevertheless when the logits are there; what was computed ahead
 * with another token, or of a generation that has ended, is thrown away, and its cells in the KV
 * cache are taken back, or written again.
 *
 * scheduler_step and scheduler_step_settle are in workerd/scheduler.h; this is for the scheduler
 * alone. Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct scheduler;
struct session;

/* False: no memory; scheduler_step_fini either way. */
bool scheduler_step_init(struct scheduler *s);
void scheduler_step_fini(struct scheduler *s);

/* The session's rows of steps that are under way are thrown away. */
void scheduler_step_drop(struct scheduler *s, const struct session *session);

/* The session is about to be closed: there are no cells to take back. */
void scheduler_step_forget(struct scheduler *s, const struct session *session);

/* The session's next token out of the step's wanted row i. Errors are the device's. */
int must_check scheduler_step_pick(
	struct scheduler *s, struct session *session, uint32_t i, struct err *ret_err);

#endif
