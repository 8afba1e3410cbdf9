/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/queue.h"
#include "proto/util/clock.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

enum { MAX_WAIT_MS = 1 << 30 };

struct queue {
	pthread_mutex_t lock;
	struct queue_node *first; /* oldest; under lock */
	struct queue_node *last;  /* valid while first is not NULL; under lock */
	int event_fd;             /* count 1 while first is not NULL, else 0 */
};

int queue_new(struct queue **ret_queue)
{
	struct queue *q = calloc(1, sizeof(*q));

	if (!q)
		return -ENOMEM;
	q->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (q->event_fd < 0) {
		int r = -errno;

		free(q);
		return r;
	}
	pthread_mutex_init(&q->lock, NULL);
	*ret_queue = q;
	return 0;
}

struct queue *queue_free(struct queue *q)
{
	if (!q)
		return NULL;
	assert(!q->first);
	close(q->event_fd);
	pthread_mutex_destroy(&q->lock);
	free(q);
	return NULL;
}

void queue_push(struct queue *q, struct queue_node *node)
{
	node->next = NULL;
	pthread_mutex_lock(&q->lock);
	bool was_empty = !q->first;
	if (was_empty)
		q->first = node;
	else
		q->last->next = node;
	q->last = node;
	/* Under the lock: the fd says the same as the list at any time. */
	if (was_empty)
		eventfd_write(q->event_fd, 1);
	pthread_mutex_unlock(&q->lock);
}

struct queue_node *queue_take(struct queue *q)
{
	eventfd_t count;

	pthread_mutex_lock(&q->lock);
	struct queue_node *node = q->first;
	if (node) {
		q->first = node->next;
		if (!q->first)
			eventfd_read(q->event_fd, &count);
	}
	pthread_mutex_unlock(&q->lock);
	return node;
}

bool queue_is_empty(struct queue *q)
{
	pthread_mutex_lock(&q->lock);
	bool is_empty = !q->first;
	pthread_mutex_unlock(&q->lock);
	return is_empty;
}

void queue_wait(struct queue *q)
{
	queue_wait_until(q, UINT64_MAX);
}

void queue_wait_until(struct queue *q, uint64_t deadline_ns)
{
	struct pollfd p = {.fd = q->event_fd, .events = POLLIN};
	int timeout_ms, n;

	do {
		uint64_t now_ns = clock_now_ns();
		uint64_t left_ms = 0;

		if (now_ns < deadline_ns)
			left_ms = (deadline_ns - now_ns + 999999) / 1000000;
		timeout_ms = left_ms < MAX_WAIT_MS ? (int)left_ms : MAX_WAIT_MS;
		if (deadline_ns == UINT64_MAX)
			timeout_ms = -1;
		n = poll(&p, 1, timeout_ms);
	} while ((n < 0 && errno == EINTR) || (n == 0 && timeout_ms == MAX_WAIT_MS));
}

int queue_get_fd(const struct queue *q)
{
	return q->event_fd;
}
