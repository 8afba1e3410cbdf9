/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_LOOP_H
#define WORKERD_LOOP_H

/*
 * The loop thread: clients, what the other threads send, weightd's connection and signals, from
 * ready to the end.
 *
 * The end, by SIGTERM, SIGINT or a failed engine: no more requests; the text thread stops, then the
 * engine, whose generations finish as cancelled; what was answered is written; the loop returns.
 */
#include "proto/util/cleanup.h"

struct engine;
struct err;
struct link_params;
struct loop;
struct queue;
struct rpc_worker;
struct text;
struct weights_client;

struct loop_params {
	const char *path;               /* of the client socket */
	struct rpc_worker *worker;      /* is_weightd_connected is kept here */
	struct weights_client *weightd; /* taken on success */
	const struct link_params *link; /* but the base */
	struct text *text;
	struct engine *engine;
	struct queue *text_queue; /* what they take from */
	struct queue *engine_queue;
	struct queue *in; /* what they send */
};

/* Listens for clients and tells weightd of the worker; all borrowed but weightd. */
int must_check loop_new(
	const struct loop_params *params, struct err *ret_err, struct loop **ret_loop);
struct loop *loop_free(struct loop *l);

/* Until the end. The engine's error, with its sentence, when that was why. */
int must_check loop_run(struct loop *l, struct err *ret_err);

#endif
