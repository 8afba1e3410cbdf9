/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_SCHEDULER_BRANCH_H
#define WORKERD_SCHEDULER_BRANCH_H

/*
 * Several completions of one prompt. The client's session computes it and has the first; the others
 * begin when its logits are there, each in a session of its own that shares the prompt's pages, has
 * the client's session as its parent and ends with its completion. For workerd/scheduler.c alone;
 * engine thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct message;
struct scheduler;
struct session;

/* Is there room for the completions behind the first? Makes their messages. -EAGAIN, -ENOMEM. */
int must_check scheduler_branch_promise(
	struct scheduler *s, struct message *generate, struct err *ret_err);

/*
 * The prompt of session is computed: the promised completions begin, with a token of the step's
 * wanted row i. Errors are the device's; a completion without pages fails by itself.
 */
int must_check scheduler_branch_start(
	struct scheduler *s, const struct session *session, uint32_t i, struct err *ret_err);

/*
 * A completion has ended; takes m. The client's own message owns the lists of all and goes out with
 * the last: where others run, it becomes that of one of them, and theirs goes out in its place.
 */
void scheduler_branch_send(struct scheduler *s, struct message *m);

#endif
