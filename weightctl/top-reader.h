/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_TOP_READER_H
#define WEIGHTCTL_TOP_READER_H

/*
 * Asks one daemon for its status, again and again, on a thread of its own: the clients of proto/
 * block, and a daemon that is stopped answers nothing for as long as it is. Whoever asks never
 * waits. The connection is kept between questions, and made anew after a failure.
 *
 * A reader belongs to one thread. Signals that are blocked when it is made are blocked for it too.
 */
#include <stdbool.h>

#include "proto/util/cleanup.h"

struct err;
struct top_reader;
struct weights_client_status;
struct worker_client_status;

/* wake_fd (borrowed, for as long as the process lives): an eventfd that each answer adds 1 to. */
int must_check top_reader_new_worker(
	const char *path, int wake_fd, struct err *ret_err, struct top_reader **ret_reader);
int must_check top_reader_new_weightd(
	const char *path, int wake_fd, struct err *ret_err, struct top_reader **ret_reader);

/* Accepts NULL; returns NULL. A question that is under way ends by itself, for nobody. */
struct top_reader *top_reader_free(struct top_reader *r);

/* Nothing while a question is under way. */
void top_reader_ask(struct top_reader *r);

/*
 * Has the last question come to an end since the last call? Then *ret_r is 0, and *ret_status the
 * caller's, or -errno with ret_err. Of the kind that the reader was made for.
 */
bool top_reader_take_worker(struct top_reader *r, struct err *ret_err, int *ret_r,
	struct worker_client_status *ret_status);
bool top_reader_take_weightd(struct top_reader *r, struct err *ret_err, int *ret_r,
	struct weights_client_status *ret_status);

#endif
