/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_TOP_TEXT_H
#define WEIGHTCTL_TOP_TEXT_H

/*
 * Lines of so many columns of a terminal. What others chose (names, messages) is cleaned: control
 * characters, those that change the direction of a text or are not seen, and bytes that are no
 * UTF-8 become '?'. Pure.
 */
#include <stdint.h>

enum { TOP_TEXT_MAX_BYTES = 2048 };

/* A line being made; what does not fit in is left out. */
struct top_text {
	uint32_t n_bytes;
	uint32_t n_columns;
	char text[TOP_TEXT_MAX_BYTES]; /* NUL-terminated */
};

/* Ours: printf, ASCII alone. */
void top_text_add(struct top_text *t, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Somebody else's; NULL is "". More than max_columns (at least 1) is cut and ends in '~'. */
void top_text_add_name(struct top_text *t, const char *name, uint32_t max_columns);

/* Blanks until there are n_columns. */
void top_text_pad(struct top_text *t, uint32_t n_columns);

/* Keeps the first n_columns, whole characters alone. */
void top_text_cut(struct top_text *t, uint32_t n_columns);

#endif
