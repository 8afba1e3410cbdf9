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

struct uring_read_params {
	int fd;
	void *data; /* both borrowed until uring_wait or uring_poll returned the tag */
	uint64_t n_bytes;
	uint64_t offset; /* of fd */
	/* data is in a shared mapping of a file with holes. Whoever reads makes the pages, so that
	 * those of several reads are made side by side, and takes them out of the mapping again.
	 * Where no memory can be had for them the read fails with -ENOMEM, without a signal. */
	bool is_fresh;
	uint64_t tag;
};

/* Starts one. -EAGAIN: depth reads are in flight already; -EINVAL: no bytes, or over INT_MAX. */
int must_check uring_read(struct uring *u, const struct uring_read_params *params);

uint32_t uring_get_n_in_flight(const struct uring *u);

/*
 * Waits until one of the reads is complete, in any order; short reads are continued. -ENODATA: the
 * file ended before its bytes did; other -errno of the read, with ret_tag set in both cases.
 * -EINVAL, ret_tag untouched: nothing is in flight.
 */
int must_check uring_wait(struct uring *u, uint64_t *ret_tag);

/* The same without waiting: -EAGAIN, ret_tag untouched, where none is complete yet. */
int must_check uring_poll(struct uring *u, uint64_t *ret_tag);

#endif
