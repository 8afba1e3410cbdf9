/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_LOG_H
#define PROTO_UTIL_LOG_H

/*
 * One line a record on stderr: "PROGRAM: level: text". Libraries (proto, vk) log at debug only;
 * a daemon logs once, where the error is handled. Never a prompt or a completion.
 */
enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Program name and threshold; called once before threads start. */
void log_init(const char *program, enum log_level level);

/* "error", "warn", "info", "debug" to a level; -EINVAL for anything else. */
int log_parse_level(const char *text, enum log_level *ret_level)
	__attribute__((warn_unused_result));

/* Any thread; a line is written whole. */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

#endif
