/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_PACE_H
#define WEIGHTD_PACE_H

/*
 * Requests a second of one listening socket, and the loop's time that they take. What comes faster
 * waits unread in the sockets of those who sent it: they cost nothing meanwhile, and nobody has to
 * handle a refusal. Those who wait have one request a turn, in the order in which they came; but
 * those whose last request took long (a Status of many peers does) wait in a line of their own, and
 * the two lines take turns. So neither another socket nor a peer that asks for little waits for
 * more than a slice or two, however many ask for much. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct event_base;
struct pace;
struct peer;

/*
 * A token bucket with room for one second's tokens, kept as one time (the generic cell rate
 * algorithm, ITU-T I.371): when it would be full again.
 */
struct pace_bucket {
	uint32_t n_per_s; /* 0: no limit */
	uint64_t full_ns;
};

/* ns until there is a token; 0: now. */
uint64_t pace_bucket_wait(const struct pace_bucket *b, uint64_t now_ns);
void pace_bucket_take(struct pace_bucket *b, uint64_t now_ns);

struct pace_callbacks {
	/* One packet of a peer that waited; true when there was one and the peer is still there. */
	bool (*read)(struct peer *p);
	/* It has nothing more to say for now: it is watched as before. */
	void (*resume)(struct peer *p);
	/* It closed while it waited, or cannot be watched. The peer is forgotten afterwards. */
	void (*close)(struct peer *p);
};

int must_check pace_new(struct event_base *base, uint32_t n_per_s,
	const struct pace_callbacks *callbacks, struct pace **ret_pace);

/* Before its peers are freed: nobody waits afterwards. Accepts NULL; returns NULL. */
struct pace *pace_free(struct pace *pace);

/* May a packet be read now? False too while others wait for that. */
bool pace_may_go(const struct pace *pace);

/* A packet was read. */
void pace_take(struct pace *pace);

/*
 * A packet of the peer is handled between the two. The thread's own time is what counts: that the
 * machine has other work is no fault of who asks. begin_ns: what pace_begin said.
 */
uint64_t pace_begin(void);
void pace_spend(struct pace *pace, struct peer *p, uint64_t begin_ns);

/* The peer has something to say and waits; the caller does not watch it meanwhile. */
void pace_park(struct pace *pace, struct peer *p);

/* The peer is about to be freed. */
void pace_forget(struct pace *pace, struct peer *p);

#endif
