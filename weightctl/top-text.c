/* SPDX-License-Identifier: Apache-2.0 */
#include "weightctl/top-text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/cleanup.h"
#include "proto/util/utf8.h"

struct range {
	uint32_t first, last;
};

/* East Asian Width W and F, as terminals have them, in whole blocks. */
static const struct range wide[] = {
	{0x1100, 0x115f},
	{0x2e80, 0x303e},
	{0x3041, 0xa4cf},
	{0xa960, 0xa97f},
	{0xac00, 0xd7a3},
	{0xf900, 0xfaff},
	{0xfe30, 0xfe6f},
	{0xff01, 0xff60},
	{0xffe0, 0xffe6},
	{0x1f300, 0x1f64f},
	{0x1f680, 0x1f6ff},
	{0x1f900, 0x1f9ff},
	{0x20000, 0x3fffd},
};

/* Combining marks: they lie over the character before. */
static const struct range none[] = {
	{0x300, 0x36f},
	{0x483, 0x489},
	{0x591, 0x5bd},
	{0x610, 0x61a},
	{0x64b, 0x65f},
	{0x1ab0, 0x1aff},
	{0x1dc0, 0x1dff},
	{0x20d0, 0x20ff},
	{0xfe00, 0xfe0f},
	{0xfe20, 0xfe2f},
};

/* Controls, and what is not seen or turns the text around. */
static const struct range hidden[] = {
	{0, 0x1f},
	{0x7f, 0x9f},
	{0xad, 0xad},
	{0x61c, 0x61c},
	{0x115f, 0x1160},
	{0x180e, 0x180e},
	{0x200b, 0x200f},
	{0x2028, 0x202e},
	{0x2060, 0x206f},
	{0x3164, 0x3164},
	{0xfeff, 0xfeff},
	{0xfff9, 0xfffb},
	{0xe0000, 0xe0fff},
};

static bool is_in(uint32_t c, const struct range *ranges, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (c >= ranges[i].first && c <= ranges[i].last)
			return true;
	return false;
}

/* Of n bytes that utf8_char has found. */
static uint32_t decode(const uint8_t *data, int n)
{
	static const uint8_t masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
	uint32_t c = data[0] & masks[n];

	for (int i = 1; i < n; i++)
		c = c << 6 | (data[i] & 0x3f);
	return c;
}

/* The character at text[0], not NUL: its bytes and columns; false: it is to be shown as '?'. */
static bool measure(const char *text, uint32_t *ret_n_bytes, uint32_t *ret_n_columns)
{
	const uint8_t *data = (const uint8_t *)text;
	int n = utf8_char(data, strnlen(text, 4));

	*ret_n_bytes = n > 0 ? (uint32_t)n : 1;
	*ret_n_columns = 1;
	if (n <= 0)
		return false;
	uint32_t c = decode(data, n);
	if (is_in(c, hidden, ARRAY_SIZE(hidden)))
		return false;
	if (is_in(c, none, ARRAY_SIZE(none)))
		*ret_n_columns = 0;
	else if (is_in(c, wide, ARRAY_SIZE(wide)))
		*ret_n_columns = 2;
	return true;
}

static void append(struct top_text *t, const char *bytes, uint32_t n_bytes, uint32_t n_columns)
{
	if (n_bytes >= sizeof(t->text) - t->n_bytes)
		return;
	memcpy(t->text + t->n_bytes, bytes, n_bytes);
	t->n_bytes += n_bytes;
	t->n_columns += n_columns;
	t->text[t->n_bytes] = '\0';
}

void top_text_add(struct top_text *t, const char *format, ...)
{
	size_t n_room = sizeof(t->text) - t->n_bytes;
	va_list args;

	va_start(args, format);
	int n = vsnprintf(t->text + t->n_bytes, n_room, format, args);
	va_end(args);
	if (n < 0)
		n = 0;
	if ((size_t)n >= n_room)
		n = (int)n_room - 1;
	t->n_bytes += (uint32_t)n;
	t->n_columns += (uint32_t)n;
	t->text[t->n_bytes] = '\0';
}

static uint32_t count_columns(const char *name)
{
	uint32_t n = 0;

	while (*name) {
		uint32_t n_bytes;
		uint32_t n_columns;

		(void)measure(name, &n_bytes, &n_columns);
		name += n_bytes;
		n += n_columns;
	}
	return n;
}

void top_text_add_name(struct top_text *t, const char *name, uint32_t max_columns)
{
	bool is_cut = name && count_columns(name) > max_columns;
	uint32_t n_left = max_columns - is_cut;

	while (name && *name) {
		uint32_t n_bytes;
		uint32_t n_columns;
		bool is_shown = measure(name, &n_bytes, &n_columns);

		if (n_columns > n_left)
			break;
		append(t, is_shown ? name : "?", is_shown ? n_bytes : 1, n_columns);
		name += n_bytes;
		n_left -= n_columns;
	}
	if (is_cut)
		append(t, "~", 1, 1);
}

void top_text_pad(struct top_text *t, uint32_t n_columns)
{
	while (t->n_columns < n_columns && t->n_bytes + 1 < sizeof(t->text))
		append(t, " ", 1, 1);
}

void top_text_cut(struct top_text *t, uint32_t n_columns)
{
	uint32_t at = 0;
	uint32_t n = 0;

	while (t->text[at]) {
		uint32_t n_char_bytes;
		uint32_t n_char_columns;

		(void)measure(t->text + at, &n_char_bytes, &n_char_columns);
		if (n + n_char_columns > n_columns)
			break;
		at += n_char_bytes;
		n += n_char_columns;
	}
	t->text[at] = '\0';
	t->n_bytes = at;
	t->n_columns = n;
}
