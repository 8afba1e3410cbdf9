/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_COPY_H
#define WEIGHTD_COPY_H

/*
 * A memfd with pages of the model file at the file's offsets, for workers whose drivers do not
 * import them from the file. It is a file with holes and takes memory for what was copied alone.
 * What is there may be read by others at any time and is never written again. One thread at a time.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "proto/util/cleanup.h"

struct err;

struct copy_range {
	uint64_t begin;
	uint64_t end;
};

struct copy {
	int fd; /* owned; -1: nothing was copied yet */
	struct stat identity;
	uint32_t n_ranges;
	struct copy_range *ranges; /* what is there: in order, none touches the next; owned */
};

void copy_init(struct copy *c);
void copy_fini(struct copy *c);

struct copy_params {
	int file; /* borrowed */
	uint64_t n_file_bytes;
	/* What is wanted, in whole pages that may end behind the file's end. */
	uint64_t offset;
	uint64_t n_bytes;
	bool use_pread;
	const atomic_bool *is_given_up; /* may be NULL: it is not */
};

/*
 * Copies what of it is not there. -EINVAL: it is not of the file; -ENODATA: the file is shorter
 * than it was; -ECANCELED; -ENOMEM, ... After a failure what was not there takes no memory.
 */
int must_check copy_add(struct copy *c, const struct copy_params *params, struct err *ret_err);

/* Bytes of [offset, offset + n_bytes) that are not there. */
uint64_t copy_count_missing(const struct copy *c, uint64_t offset, uint64_t n_bytes);

#endif
