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
	PACE_SLICE_NS = 1000000,  /* or so long; and as long without waiting */
	PACE_PERIOD_NS = 5000000, /* in so much time */
	PACE_LONG_NS = 100000,    /* of a request that most are far below */
};

enum pace_line { PACE_SHORT, PACE_LONG, PACE_N_LINES };

struct pace {
	struct event_base *base;
	struct event *timer;
	struct pace_callbacks callbacks;
	struct pace_bucket bucket;
	uint64_t slice_ns; /* when the slice began */
	uint64_t spent_ns; /* of it */
	TAILQ_HEAD(, peer) waiting[PACE_N_LINES];
	enum pace_line last; /* whose turn it was */
	uint64_t long_ns;    /* that PACE_LONG took in this slice */
	uint64_t rest_ns;    /* until then it has no turn */
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

static bool pace_is_empty(const struct pace *pace)
{
	return TAILQ_EMPTY(&pace->waiting[PACE_SHORT]) && TAILQ_EMPTY(&pace->waiting[PACE_LONG]);
}

bool pace_may_go(const struct pace *pace)
{
	uint64_t now_ns = clock_now_ns();
	bool has_time = pace->spent_ns < PACE_SLICE_NS || now_ns - pace->slice_ns >= PACE_PERIOD_NS;

	return has_time && pace_is_empty(pace) && pace_bucket_wait(&pace->bucket, now_ns) == 0;
}

uint64_t pace_begin(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * PACE_NS + (uint64_t)t.tv_nsec;
}

void pace_spend(struct pace *pace, struct peer *p, uint64_t begin_ns)
{
	uint64_t elapsed_ns = pace_begin() - begin_ns;
	uint64_t now_ns = clock_now_ns();

	if (now_ns - pace->slice_ns >= PACE_PERIOD_NS) {
		pace->slice_ns = now_ns - elapsed_ns;
		pace->spent_ns = 0;
	}
	pace->spent_ns += elapsed_ns;
	p->asks_long = elapsed_ns >= PACE_LONG_NS;
	if (p->asks_long)
		pace->long_ns += elapsed_ns;
}

void pace_take(struct pace *pace)
{
	pace_bucket_take(&pace->bucket, clock_now_ns());
}

static void pace_remove(struct pace *pace, struct peer *p)
{
	p->is_parked = false;
	/* Since it waits it has asked for nothing: the line is the same. */
	TAILQ_REMOVE(&pace->waiting[p->asks_long], p, pace_entry);
	if (p->closed_event)
		event_free(p->closed_event);
	p->closed_event = NULL;
}

/* Is it somebody's turn? Half of the loop's time is not for those who ask long: a weightd that
 * never sleeps is the one that other processes are preferred to. */
static bool pace_is_due(const struct pace *pace, enum pace_line line, uint64_t now_ns)
{
	return !TAILQ_EMPTY(&pace->waiting[line]) &&
	       (line == PACE_SHORT || now_ns >= pace->rest_ns);
}

static void pace_wait(struct pace *pace)
{
	uint64_t now_ns = clock_now_ns();
	uint64_t wait_ns = pace_bucket_wait(&pace->bucket, now_ns);

	if (TAILQ_EMPTY(&pace->waiting[PACE_SHORT]) && pace->rest_ns > now_ns + wait_ns)
		wait_ns = pace->rest_ns - now_ns;
	/* Rounded up: a timer that comes too early finds nothing to do. 0: when the loop has looked
	 * at the others. */
	const struct timeval timeout = {.tv_sec = (time_t)(wait_ns / PACE_NS),
		.tv_usec = (suseconds_t)(wait_ns ? wait_ns % PACE_NS / 1000 + 1 : 0)};

	if (!pace_is_empty(pace) && !event_pending(pace->timer, EV_TIMEOUT, NULL))
		(void)event_add(pace->timer, &timeout);
}

/* One packet of the first that waits in the line whose turn it is. False: it is nobody's. */
static bool pace_turn(struct pace *pace, uint64_t now_ns)
{
	enum pace_line line = pace->last == PACE_SHORT ? PACE_LONG : PACE_SHORT;
	struct peer *p;

	if (!pace_is_due(pace, line, now_ns))
		line = pace->last;
	if (!pace_is_due(pace, line, now_ns))
		return false;
	pace->last = line;
	p = TAILQ_FIRST(&pace->waiting[line]);
	pace_remove(pace, p);
	if (pace->callbacks.read(p))
		pace_park(pace, p);
	else if (p->is_broken)
		pace->callbacks.close(p);
	else
		pace->callbacks.resume(p);
	return true;
}

static void pace_on_timer(evutil_socket_t fd, short what, void *userdata)
{
	struct pace *pace = userdata;
	uint64_t start_ns = clock_now_ns(), now_ns = start_ns;

	(void)fd;
	(void)what;
	pace->long_ns = 0;
	for (int i = 0; i < PACE_PACKETS_A_TURN && now_ns - start_ns < PACE_SLICE_NS; i++) {
		if (pace_bucket_wait(&pace->bucket, now_ns) > 0 || !pace_turn(pace, now_ns))
			break;
		now_ns = clock_now_ns();
	}
	if (pace->long_ns > 0)
		pace->rest_ns = now_ns + pace->long_ns;
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
	TAILQ_INSERT_TAIL(&pace->waiting[p->asks_long], p, pace_entry);
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
	TAILQ_INIT(&pace->waiting[PACE_SHORT]);
	TAILQ_INIT(&pace->waiting[PACE_LONG]);
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
	while ((p = TAILQ_FIRST(&pace->waiting[PACE_SHORT])) ||
		(p = TAILQ_FIRST(&pace->waiting[PACE_LONG])))
		pace_remove(pace, p);
	event_free(pace->timer);
	free(pace);
	return NULL;
}
