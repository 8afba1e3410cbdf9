/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_ERR_H
#define PROTO_UTIL_ERR_H

/*
 * Why outside input was refused, in one line that a person can act on. Whatever judges a file, a
 * peer or a request fills one; the daemons and weightctl print it unchanged.
 */
#include <stddef.h>

enum { ERR_TEXT_BYTES = 512 };

/* text is one line without a line break, NUL-terminated; empty: nothing was refused. */
struct err {
	char text[ERR_TEXT_BYTES];
};

#define ERR_NULL ((struct err){.text = ""})

/*
 * Writes the line and returns -errnum, so that a judge can `return err_set(e, EINVAL, ...)`.
 * e may be NULL. Control characters (C0, DEL, C1) of the result are replaced by '?', so that a
 * hostile name cannot forge a second line; a text too long is cut and ends in "...". By convention
 * the format reads "WHERE: WHAT: expected X, found Y". Any thread.
 */
int err_set(struct err *e, int errnum, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the text that is there. e may be NULL. Any thread. */
void err_prefix(struct err *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
