/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_UTIL_CLEANUP_H
#define PROTO_UTIL_CLEANUP_H

/*
 * Ownership of locals. A local marked _cleanup_(f) is given to f when it goes out of scope;
 * TAKE_FD and TAKE_PTR hand it to somebody else and leave the local empty.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))

/* On every function that returns int (0, -errno, or a documented condition > 0). */
#define must_check __attribute__((warn_unused_result))

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#define TAKE_PTR(p)                                \
	({                                         \
		__typeof__(p) *take_at_ = &(p);    \
		__typeof__(p) take_v_ = *take_at_; \
		*take_at_ = NULL;                  \
		take_v_;                           \
	})

#define TAKE_FD(fd)                      \
	({                               \
		int *take_at_ = &(fd);   \
		int take_v_ = *take_at_; \
		*take_at_ = -1;          \
		take_v_;                 \
	})

/* Closes *fd if it is open. Any thread. */
static inline void cleanup_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Frees what *(void **)p points to; p is the address of any pointer local. Any thread. */
static inline void cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void cleanup_fclose(FILE **f)
{
	if (*f)
		fclose(*f);
}

#endif
