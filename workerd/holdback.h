/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_HOLDBACK_H
#define WORKERD_HOLDBACK_H

/*
 * The text of a generation between the tokens and the client: held back while it could be the start
 * of a stop string, or of a character whose rest is to come. Pure. Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/message.h"

/* Zero is empty. text[0..n_bytes) is held. */
struct holdback {
	char *text;
	uint32_t n_bytes;
	uint32_t n_room;
	const struct message_stop *stops; /* borrowed */
	uint32_t n_stops;
};

void holdback_fini(struct holdback *h);

/*
 * A generation begins: its stop strings (borrowed until the next start), and the longest piece that
 * will be added, for which room is made here. A cut character that is held stays. -ENOMEM.
 */
int must_check holdback_start(struct holdback *h, const struct message_stop *stops,
	uint32_t n_stops, uint32_t max_piece_bytes);

/*
 * Adds the bytes of one token, at most max_piece_bytes. True: a stop string is complete; the text
 * is cut before the first one.
 */
bool holdback_add(struct holdback *h, const char *bytes, uint32_t n_bytes);

/*
 * How many bytes at the front may go out: whole characters that are part of no stop string to come.
 * is_last: nothing will be added, so that only a cut character stays.
 */
uint32_t holdback_get_ready(const struct holdback *h, bool is_last);

/* Removes what went out. */
void holdback_drop(struct holdback *h, uint32_t n_bytes);

/* to, which is empty, holds what from does; stop strings are not copied. -ENOMEM. */
int must_check holdback_copy(const struct holdback *from, struct holdback *to);

/* Forgets what is held: other text follows. */
void holdback_clear(struct holdback *h);

#endif
