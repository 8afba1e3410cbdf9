/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_NOTICE_H
#define WORKERD_NOTICE_H

/*
 * What weightd tells without being asked, as messages to the engine. On the thread that has the
 * client (workerd/loan.h).
 */
#include <stdint.h>

struct queue;
struct weights_client_contents;
struct weights_client_event;

/* Borrowed while the client lives. */
struct notice_params {
	const char *model; /* of others nothing is told */
	struct queue *engine;
};

/* After an absence of weightd, on the loop thread. What it said of the generation that is leased
 * again; 0: none is. */
void notice_tell_back(const struct notice_params *params, uint64_t generation,
	const struct weights_client_contents *contents);

/* The weightd that is there now does not know the generation, as it said. Loop thread. */
void notice_tell_unleased(const struct notice_params *params, uint64_t generation, const char *why);

/* A weights_client_event_fn; userdata is a struct notice_params. */
void notice_on_event(const struct weights_client_event *event, void *userdata);

#endif
