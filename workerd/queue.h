/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_QUEUE_H
#define WORKERD_QUEUE_H

/*
 * A queue between threads: any number push, one takes. The nodes are part of what is queued, so
 * that pushing allocates nothing and cannot fail; an eventfd tells a sleeping taker.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct queue;

/* First member of what is queued; in one queue at a time. */
struct queue_node {
	struct queue_node *next;
};

int must_check queue_new(struct queue **ret_queue);

/* Must be empty: its nodes are not the queue's. Accepts NULL; returns NULL. */
struct queue *queue_free(struct queue *q);

/* Any thread. The node is the taker's from here on. */
void queue_push(struct queue *q, struct queue_node *node);

/* The oldest node, NULL when there is none. The taking thread. */
struct queue_node *queue_take(struct queue *q);

/* Is there nothing to take just now? The taking thread. */
bool queue_is_empty(struct queue *q);

/* Sleeps until there is something to take. The taking thread. */
void queue_wait(struct queue *q);

/* The same until a time of CLOCK_MONOTONIC at most; UINT64_MAX: for ever. */
void queue_wait_until(struct queue *q, uint64_t deadline_ns);

/* Readable exactly while there is something to take. The queue's own. */
int queue_get_fd(const struct queue *q);

#endif
