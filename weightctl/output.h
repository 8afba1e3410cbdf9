/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_OUTPUT_H
#define WEIGHTCTL_OUTPUT_H

/*
 * What goes to stdout.
 */
#include <stdint.h>

#include <jansson.h>

#include "proto/util/cleanup.h"

struct err;

/* A JSON string of any bytes: what is no UTF-8 becomes U+FFFD, a byte each. NULL: no memory. */
json_t *output_string(const char *text, uint64_t n_bytes);

/* The same of a NUL-terminated text; NULL is "". */
json_t *output_name(const char *text);

json_t *output_ids(const uint32_t *ids, uint64_t n_ids);

/* Prints an object on one line; takes the reference. -ENOMEM when object is NULL. */
int must_check output_json(json_t *object);

/* Prints a text that somebody else chose, control characters as '?'. */
void output_clean(const char *text);

/* Everything was written? Else -errno with ret_err. */
int must_check output_flush(struct err *ret_err);

#endif
