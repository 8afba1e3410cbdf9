/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_CLOCK_H
#define PROTO_UTIL_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds that pass also while nothing runs; their zero means nothing. Any thread. */
static inline uint64_t clock_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

#endif
