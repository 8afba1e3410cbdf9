/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/util/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/util/cleanup.h"

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static const char *log_program = "weightd";
static enum log_level log_threshold = LOG_INFO;

void log_init(const char *program, enum log_level level)
{
	log_program = program;
	log_threshold = level;
}

int log_parse_level(const char *text, enum log_level *ret_level)
{
	for (unsigned i = 0; i < ARRAY_SIZE(level_names); i++) {
		if (!strcmp(text, level_names[i])) {
			*ret_level = (enum log_level)i;
			return 0;
		}
	}
	return -EINVAL;
}

void log_write(enum log_level level, const char *format, ...)
{
	char line[2048];
	va_list args;

	if (level > log_threshold)
		return;
	int n = snprintf(line, sizeof(line), "%s: %s: ", log_program, level_names[level]);
	va_start(args, format);
	n += vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
	va_end(args);
	if (n > (int)sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n++] = '\n';
	/* One write, so that lines of several threads and processes do not mix. */
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return;
}
