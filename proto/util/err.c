/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/util/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/util/utf8.h"

/* n is what vsnprintf said the whole text needs. */
static void err_clean(struct err *e, int n)
{
	size_t n_clean = 0;

	for (const char *c = e->text; *c;) {
		int n_control = utf8_control(c);

		e->text[n_clean++] = n_control ? '?' : *c;
		c += n_control ? n_control : 1;
	}
	e->text[n_clean] = '\0';
	if (n >= (int)sizeof(e->text))
		memcpy(e->text + n_clean - 3, "...", 4);
}

int err_set(struct err *e, int errnum, const char *format, ...)
{
	va_list args;

	if (!e)
		return -errnum;
	va_start(args, format);
	int n = vsnprintf(e->text, sizeof(e->text), format, args);
	va_end(args);
	err_clean(e, n);
	return -errnum;
}

void err_prefix(struct err *e, const char *format, ...)
{
	struct err old;
	va_list args;

	if (!e)
		return;
	old = *e;
	va_start(args, format);
	int n = vsnprintf(e->text, sizeof(e->text), format, args);
	va_end(args);
	if (n >= 0 && (size_t)n < sizeof(e->text))
		n += snprintf(e->text + n, sizeof(e->text) - (size_t)n, ": %s", old.text);
	err_clean(e, n);
}
