/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PUBLISHER_H
#define WORKERD_PUBLISHER_H

/*
 * Publishes a prefix: its whole pages are computed in a session of its own, beside whatever else is
 * computed, copied a piece between two steps into an allocation of their own (exporting memory
 * exposes all of it), and given to weightd; then the session goes, and the worker uses what it
 * published as any other does (workerd/guests.h). One at a time.
 *
 * Engine thread.
 */
#include <stdbool.h>

#include "proto/util/cleanup.h"

struct engine;
struct err;
struct message;

/* What the engine's own sessions belong to: no connection has it. */
enum { PUBLISHER_CLIENT = 0 };

/*
 * MESSAGE_PUBLISH: takes m on success, and sends it when it is done or has failed. *ret_is_done: m
 * is answered already, and the caller's. -EBUSY: another is being published; -EINVAL for less than
 * a page, -ENOSPC with the figures, -ESTALE, errors of scheduler_open and scheduler_generate.
 */
int must_check publisher_begin(
	struct engine *e, struct message *m, struct err *ret_err, bool *ret_is_done);

/* Takes the MESSAGE_GENERATE of its session, which has finished. Within a step. */
void publisher_take_finished(struct engine *e, struct message *generate);

/* A piece of what is to be done between steps. */
void publisher_attend(struct engine *e);

/* Is there a piece to be done now? */
bool publisher_is_due(const struct engine *e);

/* The stack is about to go; what is not computed goes on behind that. */
void publisher_suspend(struct engine *e);

/* The engine ends: m is answered. */
void publisher_stop(struct engine *e);

#endif
