/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_UTF8_H
#define PROTO_UTIL_UTF8_H

/*
 * Well-formed UTF-8, as table 3-7 of the Unicode Standard has it: no surrogates, no overlong forms,
 * nothing above U+10FFFF.
 */
#include <stdint.h>

/* What utf8_char says of bytes that are no character; both <= 0. */
enum {
	UTF8_INVALID = 0, /* can never become one */
	UTF8_CUT = -1,    /* the beginning of one, the rest is missing */
};

/* Bytes (1 to 4) of the character at data[0], n_bytes > 0; or UTF8_INVALID, UTF8_CUT. */
static inline int utf8_char(const uint8_t *data, uint64_t n_bytes)
{
	uint8_t c = data[0], low = 0x80, high = 0xbf; /* of the second byte */
	int n;

	if (c < 0x80)
		return 1;
	if (c >= 0xc2 && c <= 0xdf) {
		n = 2;
	} else if ((c & 0xf0) == 0xe0) {
		n = 3;
		low = c == 0xe0 ? 0xa0 : low;
		high = c == 0xed ? 0x9f : high;
	} else if (c >= 0xf0 && c <= 0xf4) {
		n = 4;
		low = c == 0xf0 ? 0x90 : low;
		high = c == 0xf4 ? 0x8f : high;
	} else {
		return UTF8_INVALID;
	}
	for (int i = 1; i < n; i++) {
		if ((uint64_t)i >= n_bytes)
			return UTF8_CUT;
		if (data[i] < low || data[i] > high)
			return UTF8_INVALID;
		low = 0x80;
		high = 0xbf;
	}
	return n;
}

/*
 * Bytes of the control character at the NUL-terminated text, 0 when there is none: C0 and DEL, 1;
 * C1 (U+0080 to U+009F, "\x9b" is a terminal's "\x1b["), 2.
 */
static inline int utf8_control(const char *text)
{
	uint8_t a = (uint8_t)text[0], b = a ? (uint8_t)text[1] : 0;

	if (a == 0xc2 && b >= 0x80 && b <= 0x9f)
		return 2;
	return (a > 0 && a < 0x20) || a == 0x7f;
}

#endif
