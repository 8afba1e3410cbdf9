/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_LEFTOVER_H
#define WEIGHTD_LEFTOVER_H

/*
 * Connections that weightd has ended while descriptors lay in them that nobody has read. The kernel
 * counts these against weightd until they are read or the other end is closed (unix(7),
 * ETOOMANYREFS), so they still are the process's share: else whoever is dropped again and again
 * would spend what belongs to all. Our end stays open, as only that tells when they are gone. Loop
 * thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct leftover;
struct peer;

enum { LEFTOVER_MAX = 256 }; /* then the oldest is closed, and no longer counted */

int must_check leftover_new(struct leftover **ret_leftover);

/* Closes them all. Accepts NULL; returns NULL. */
struct leftover *leftover_free(struct leftover *l);

/* The peer is about to be freed; n_fds of it are unread. Takes its socket, shut down for both. */
void leftover_take(struct leftover *l, struct peer *p, uint32_t n_fds);

/* Unread descriptors of ended connections of the peer's process. */
uint32_t leftover_count(struct leftover *l, const struct peer *p);

/* Those that have been read, or closed at the other end, are closed. To be called now and then. */
void leftover_prune(struct leftover *l);

#endif
