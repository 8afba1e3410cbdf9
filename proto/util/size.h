/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_SIZE_H
#define PROTO_UTIL_SIZE_H

/*
 * Bytes as a person types them on a command line. Any thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

/*
 * "512M": a number above 0 with K, M, G or T (1024 each) behind it, or none. what begins the
 * sentence of a refusal. -EINVAL with ret_err.
 */
int must_check size_parse(
	const char *what, const char *text, struct err *ret_err, uint64_t *ret_bytes);

#endif
