/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/pace.h"

#include <errno.h>
#include <event2/event.h>
#include <time.h>

#include "proto/util/clock.h"
#include "weightd/peer.h"

enum {
	PACE_NS = 1000000000,
	PACE_PACKETS_A_TURN = 64, /* of all who wait, before the loop looks at others */
};

struct pace {
	struct event_base *base;
	struct event *timer;
	struct pace_callbacks callbacks;
	struct pace_bucket bucket;
	TAILQ_HEAD(, peer) waiting;
};

uint64_t pace_bucket_wait(const struct pace_bucket *b, uint64_t now_ns)
{
	if (b->n_per_s == 0)
		return 0;
	uint64_t begin_ns = b->full_ns > now_ns ? b->full_ns : now_ns;
	uint64_t end_ns = begin_ns + PACE_NS / b->n_per_s;
	return end_ns > now_ns + PACE_NS ? end_ns - now_ns - PACE_NS : 0;
}

void pace_bucket_take(struct pace_bucket *b, uint64_t now_ns)
{
	if (b->n_per_s == 0)
		return;
	uint64_t begin_ns = b->full_ns > now_ns ? b->full_ns : now_ns;
	b->full_ns = begin_ns + PACE_NS / b->n_per_s;
}

bool pace_may_go(const struct pace *pace)
{
	return TAILQ_EMPTY(&pace->waiting) && pace_bucket_wait(&pace->bucket, clock_now_ns()) == 0;
}

void pace_take(struct pace *pace)
{
	pace_bucket_take(&pace->bucket, clock_now_ns());
}

static void pace_remove(struct pace *pace, struct peer *p)
{
	p->is_parked = false;
	TAILQ_REMOVE(&pace->waiting, p, pace_entry);
	if (p->closed_event)
		event_free(p->closed_event);
	p->closed_event = NULL;
}

static void pace_wait(struct pace *pace)
{
	uint64_t wait_ns = pace_bucket_wait(&pace->bucket, clock_now_ns());
	/* Rounded up: a timer that comes too early finds nothing to do. */
	const struct timeval timeout = {.tv_sec = (time_t)(wait_ns / PACE_NS),
		.tv_usec = (suseconds_t)(wait_ns % PACE_NS / 1000 + 1)};

	if (!TAILQ_EMPTY(&pace->waiting) && !event_pending(pace->timer, EV_TIMEOUT, NULL))
		(void)event_add(pace->timer, &timeout);
}

/* One packet of the first that waits. */
static void pace_turn(struct pace *pace)
{
	struct peer *p = TAILQ_FIRST(&pace->waiting);

	pace_remove(pace, p);
	if (pace->callbacks.read(p))
		pace_park(pace, p);
	else if (p->is_broken)
		pace->callbacks.close(p);
	else
		pace->callbacks.resume(p);
}

static void pace_on_timer(evutil_socket_t fd, short what, void *userdata)
{
	struct pace *pace = userdata;

	(void)fd;
	(void)what;
	for (int i = 0; i < PACE_PACKETS_A_TURN && !TAILQ_EMPTY(&pace->waiting) &&
			pace_bucket_wait(&pace->bucket, clock_now_ns()) == 0;
		i++)
		pace_turn(pace);
	pace_wait(pace);
}

/* Nobody reads a peer that waits, and so nobody would see its end. */
static void pace_on_closed(evutil_socket_t fd, short what, void *userdata)
{
	struct peer *p = userdata;
	struct pace *pace = p->pace;

	(void)fd;
	(void)what;
	peer_break(p, "%s", "it closed while it waited for its turn");
	pace_remove(pace, p);
	pace->callbacks.close(p);
}

void pace_park(struct pace *pace, struct peer *p)
{
	TAILQ_INSERT_TAIL(&pace->waiting, p, pace_entry);
	p->is_parked = true;
	p->closed_event = event_new(pace->base, p->fd, EV_CLOSED | EV_PERSIST, pace_on_closed, p);
	if (!p->closed_event || event_add(p->closed_event, NULL) < 0)
		peer_break(p, "%s", "out of memory");
	pace_wait(pace);
}

void pace_forget(struct pace *pace, struct peer *p)
{
	if (p->is_parked)
		pace_remove(pace, p);
}

int pace_new(struct event_base *base, uint32_t n_per_s, const struct pace_callbacks *callbacks,
	struct pace **ret_pace)
{
	struct pace *pace = calloc(1, sizeof(*pace));

	if (!pace)
		return -ENOMEM;
	TAILQ_INIT(&pace->waiting);
	pace->base = base;
	pace->callbacks = *callbacks;
	pace->bucket.n_per_s = n_per_s;
	pace->timer = event_new(base, -1, 0, pace_on_timer, pace);
	if (!pace->timer) {
		free(pace);
		return -ENOMEM;
	}
	*ret_pace = pace;
	return 0;
}

struct pace *pace_free(struct pace *pace)
{
	struct peer *p;

	if (!pace)
		return NULL;
	while ((p = TAILQ_FIRST(&pace->waiting)))
		pace_remove(pace, p);
	event_free(pace->timer);
	free(pace);
	return NULL;
}
