/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_ENGINE_H
#define WORKERD_ENGINE_H

/*
 * The engine thread: owns the device, the stack on it and the sessions from engine_new to
 * engine_free. Between steps it serves the requests in its queue (all kinds but those that the text
 * thread alone answers), in order.
 *
 * It parks: while nobody generates, because weightd says that others need memory or because nobody
 * has for long, the stack is dropped, lease and grant are given back, and sessions keep their
 * tokens. The next request that computes makes the stack anew, and what it needs of the session is
 * computed again; where it cannot be made, that request is refused with the reason.
 *
 * It moves to a newer generation when nobody generates, if no session is open or token ids mean the
 * same there; else when the last session is closed. A generation that is lost, corrupt or no longer
 * leased is dropped at once: generations (of text) go on when the newest generation is known to
 * hold the same (weights_client_has_same_contents), computed anew; else they end as FAILED, for no
 * answer is of two models. One that a weightd which came back does not know is let go of when
 * nobody generates.
 *
 * When the device is lost or a step fails, every generation ends as FAILED, MESSAGE_FAILED goes
 * out once, and every further request is refused: the process is to end.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct engine;
struct err;
struct lease;
struct loan;
struct queue;
struct stack;
struct scheduler_limits;
struct stack_params;
struct store;

struct engine_params {
	const struct stack_params *site; /* copied; its client comes by loan */
	struct stack *stack;
	struct loan *loan;
	struct lease *lease;    /* what of it is told to a weightd that came back */
	uint64_t park_after_ns; /* without a generation; 0: only when others need memory */
	bool no_park;           /* not even then */
	struct store *store;    /* of saved sessions; NULL: none are saved */
	const struct scheduler_limits *limits; /* copied; NULL: none */
	bool shares_prefixes;                  /* of all clients; else of those of one scope */
	struct queue *in;
	struct queue *text; /* where another model's manifest goes */
	struct queue *out;  /* answers, tokens and finished generations, to the loop */
};

/*
 * Starts the thread. The stack is the engine's from then on; all else is borrowed, and the device
 * is not to be touched until engine_free.
 */
int must_check engine_new(
	const struct engine_params *params, struct err *ret_err, struct engine **ret_engine);

/*
 * The thread ends when it has served what is in its queue, every generation cancelled and every
 * session closed; MESSAGE_STOP is the last that it sends. Does nothing the second time.
 */
void engine_stop(struct engine *e);

/* Stops and waits for the thread. Accepts NULL; returns NULL. */
struct engine *engine_free(struct engine *e);

#endif
