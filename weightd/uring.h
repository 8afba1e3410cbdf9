/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_URING_H
#define WEIGHTD_URING_H

/*
 * Several reads of files in flight: by io_uring where the kernel lets us, else by pread on threads,
 * behind the same calls. The only file that knows liburing. One thread at a time.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct uring;

enum { URING_MAX_DEPTH = 64 };

/*
 * depth: the most reads in flight, 1 to URING_MAX_DEPTH. With use_pread, or when the kernel refuses
 * a ring (containers do by seccomp: EPERM, ENOSYS, and ENOMEM under a small memlock limit), reads
 * go by pread; uring_get_refusal says why. -ENOMEM, -EINVAL.
 */
int must_check uring_new(uint32_t depth, bool use_pread, struct uring **ret_uring);

/* Waits for every read in flight, so that their buffers may go. Accepts NULL; returns NULL. */
struct uring *uring_free(struct uring *u);

/* 0 with io_uring; the errno of the refusal; -1 when pread was asked for. */
int uring_get_refusal(const struct uring *u);

/*
 * Starts a read of n_bytes at offset of fd into data, both borrowed until uring_wait returned the
 * tag. -EAGAIN: depth reads are in flight already; -EINVAL: no bytes, or more than INT_MAX.
 */
int must_check uring_read(
	struct uring *u, int fd, void *data, uint64_t n_bytes, uint64_t offset, uint64_t tag);

uint32_t uring_get_n_in_flight(const struct uring *u);

/*
 * Waits until one of the reads is complete, in any order; short reads are continued. -ENODATA: the
 * file ended before its bytes did; other -errno of the read, with ret_tag set in both cases.
 * -EINVAL, ret_tag untouched: nothing is in flight.
 */
int must_check uring_wait(struct uring *u, uint64_t *ret_tag);

#endif
