/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_ENGINE_INTERNAL_H
#define WORKERD_ENGINE_INTERNAL_H

/* The engine, for the files of the engine thread alone. Engine thread. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/err.h"
#include "workerd/engine.h"
#include "workerd/stack.h"

struct bencher;
struct guests;
struct manifest;
struct message;
struct scheduler;
struct tuner;
struct vk_command;
struct vk_memory;

/* See workerd/publisher.h. */
struct publisher {
	struct message *message; /* MESSAGE_PUBLISH that is under way; NULL: none */
	uint64_t session;
	bool is_computed;
	int code; /* not 0: it could not be, and why says why */
	struct err why;
	struct vk_memory *memory;
	struct vk_command *command;
	uint32_t n_copied;        /* pages */
	uint64_t n_granted_bytes; /* without what was reserved for it; 0: nothing was */
};

struct engine {
	struct engine_params params;
	struct stack_params site;  /* its client is the one that was lent last */
	struct stack *stack;       /* NULL: parked */
	struct manifest *manifest; /* a reference: of the stack there is, or of the last */
	uint64_t generation;       /* likewise; 0: of a weightd that is no more */
	struct weights_client_contents contents; /* likewise */
	uint64_t epoch;                          /* see message.epoch */
	uint64_t newest;                         /* generation that weightd has told of */
	uint64_t unfit; /* newer generation that open sessions cannot move to */
	uint64_t lost;  /* generation not to be computed with */
	struct err lost_why;
	uint64_t unleased; /* generation to be let go of when nobody generates */
	struct err unleased_why;
	bool is_pressed;
	uint64_t idle_ns; /* since when nobody generates, or parking was tried */
	struct scheduler *scheduler;
	struct guests *guests;
	struct publisher publisher;
	struct bencher *bencher; /* NULL: nobody measures */
	struct tuner *tuner;     /* NULL: nobody tunes */
	/* Messages that go out when the device has something to do, oldest first. */
	struct queue_node *held;
	struct queue_node *last_held; /* valid while held is not NULL */
	bool is_holding;
	struct message *stop;    /* MESSAGE_STOP until it is sent; the stopping thread's */
	struct message *failure; /* MESSAGE_FAILED until it is sent */
	int code;                /* not 0: failed, and error says why */
	struct err error;
	bool is_cache_due; /* a first generation has made the driver compile everything */
	bool is_cache_saved;
	pthread_t thread;
};

/* code: -errno or VK_DEVICE_LOST. The first failure counts; the thread acts on it. */
void engine_set_failed(struct engine *e, int code, const struct err *why);

/* Whose prefixes a session that m opens may find (workerd/prefix.h). */
uint64_t engine_get_scope(const struct engine *e, const struct message *m);

/* Takes m, to the loop, now or when the next step is under way; NULL is a failure of the engine. */
void engine_send(struct engine *e, struct message *m);

#endif
