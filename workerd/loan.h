/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_LOAN_H
#define WORKERD_LOAN_H

/*
 * Who has the client of weightd, which belongs to one thread at a time: the loop thread, which
 * watches its connection for events and its end; while the engine thread makes blocking calls
 * (Acquire, Reserve, Release), that one. Events that arrive meanwhile are the engine's to pass on:
 * the client's event function runs on whichever thread has it.
 *
 *	home -> wanted -> lent -> returned -> home        engine: take, give_back; loop: settle
 *	any but lent -> closed -> home; lent is closed when it comes back
 */
#include <stdbool.h>

#include "proto/util/cleanup.h"

struct err;
struct loan;
struct weights_client;

/* It is home. */
int must_check loan_new(struct loan **ret_loan);

/* Nobody has or wants it. Accepts NULL; returns NULL. */
struct loan *loan_free(struct loan *l);

/* Waits until the loop lends it. -ENOTCONN: weightd is gone, or the loop ends. Engine thread. */
int must_check loan_take(struct loan *l, struct err *ret_err, struct weights_client **ret_client);
void loan_give_back(struct loan *l);

/* ---- the loop thread's ---- */

/* Readable when loan_settle has something to say. */
int loan_get_fd(const struct loan *l);

enum loan_news {
	LOAN_NOTHING,
	LOAN_IS_WANTED, /* stop watching, then loan_lend */
	LOAN_IS_BACK,   /* watch again, and see what has come meanwhile */
};
enum loan_news loan_settle(struct loan *l);

void loan_lend(struct loan *l, struct weights_client *client);

/*
 * There is no weightd any more. True: the engine has it now, and is to be disturbed by a shutdown
 * of the connection if it is not to be waited for.
 */
bool loan_close(struct loan *l);

/* There is one again. */
void loan_open(struct loan *l);

#endif
