/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_SUM_FILE_H
#define WEIGHTD_SUM_FILE_H

/*
 * Sums of pieces of a file or memfd, read by several threads. Read, not mapped: a file that is cut
 * meanwhile would kill who reads its mapping. Any thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct sum_key;
struct sum_range;

/* fd is borrowed. -ENODATA: the file ends before a piece does; -errno of a read or a thread. */
int must_check sum_file_run(const struct sum_key *key, int fd, const struct sum_range *pieces,
	uint32_t n, struct err *ret_err, uint64_t *ret_sums /* [n] */);

#endif
