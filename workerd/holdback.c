/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/holdback.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "workerd/tokenizer.h"

enum {
	/* Held between two tokens: less than a stop string, and before it a cut character. */
	MAX_HELD_BYTES = MESSAGE_MAX_STOP_BYTES + 3,
};

void holdback_fini(struct holdback *h)
{
	free(h->text);
	*h = (struct holdback){0};
}

int holdback_start(struct holdback *h, const struct message_stop *stops, uint32_t n_stops,
	uint32_t max_piece_bytes)
{
	uint32_t n_room;

	if (__builtin_add_overflow(max_piece_bytes, (uint32_t)MAX_HELD_BYTES, &n_room))
		return -ENOMEM;
	if (n_room > h->n_room) {
		char *text = realloc(h->text, n_room);

		if (!text)
			return -ENOMEM;
		h->text = text;
		h->n_room = n_room;
	}
	h->stops = stops;
	h->n_stops = n_stops;
	return 0;
}

bool holdback_add(struct holdback *h, const char *bytes, uint32_t n_bytes)
{
	const char *first = NULL;

	assert(n_bytes <= h->n_room - h->n_bytes);
	if (n_bytes)
		memcpy(h->text + h->n_bytes, bytes, n_bytes);
	h->n_bytes += n_bytes;
	for (uint32_t i = 0; i < h->n_stops; i++) {
		const char *at =
			memmem(h->text, h->n_bytes, h->stops[i].bytes, h->stops[i].n_bytes);
		if (at && (!first || at < first))
			first = at;
	}
	if (first)
		h->n_bytes = (uint32_t)(first - h->text);
	return first != NULL;
}

/* The longest end of the text that is the start of a stop string. */
static uint32_t holdback_get_started(const struct holdback *h)
{
	uint32_t n_longest = 0;

	for (uint32_t i = 0; i < h->n_stops; i++) {
		uint32_t n = h->stops[i].n_bytes - 1;

		if (n > h->n_bytes)
			n = h->n_bytes;
		while (n > n_longest && memcmp(h->text + h->n_bytes - n, h->stops[i].bytes, n))
			n--;
		if (n > n_longest)
			n_longest = n;
	}
	return n_longest;
}

uint32_t holdback_get_ready(const struct holdback *h, bool is_last)
{
	uint32_t n = h->n_bytes;

	if (!is_last)
		n -= holdback_get_started(h);
	return n ? (uint32_t)tokenizer_whole_utf8(h->text, n) : 0;
}

void holdback_drop(struct holdback *h, uint32_t n_bytes)
{
	h->n_bytes -= n_bytes;
	if (h->n_bytes)
		memmove(h->text, h->text + n_bytes, h->n_bytes);
}

int holdback_copy(const struct holdback *from, struct holdback *to)
{
	char *text;

	if (!from->n_bytes)
		return 0;
	text = malloc(from->n_room);
	if (!text)
		return -ENOMEM;
	memcpy(text, from->text, from->n_bytes);
	*to = (struct holdback){.text = text, .n_bytes = from->n_bytes, .n_room = from->n_room};
	return 0;
}

void holdback_clear(struct holdback *h)
{
	h->n_bytes = 0;
}
