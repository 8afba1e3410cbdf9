/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_MAPPING_H
#define TESTS_LAYER_MAPPING_H

/* What lies behind a host pointer or a descriptor, as /proc/self shows it. */
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

enum mapping_kind {
	MAPPING_NONE,    /* not mapped */
	MAPPING_ANON,    /* no file, private or shared */
	MAPPING_PRIVATE, /* MAP_PRIVATE and writable, of any file: importing it copies every page */
	MAPPING_MEMFD,
	MAPPING_TMPFS,
	MAPPING_FILE, /* any other */
	MAPPING_N_KINDS,
};

/* Of the first area behind the pointer, but kinds. */
struct mapping {
	enum mapping_kind kind;
	bool is_writable;
	uint64_t inode;
	uint64_t offset; /* of the pointer, in the file */
	uint32_t n_areas;
	uint32_t kinds; /* mapping_bit() of every area of the range */
	char path[PATH_MAX];
};

/* "none", "anon", "private", "memfd", "tmpfs", "file" */
const char *mapping_kind_name(enum mapping_kind kind);

static inline uint32_t mapping_bit(enum mapping_kind kind, bool is_writable)
{
	return UINT32_C(1) << (2 * kind + is_writable);
}

/* The areas of [pointer, pointer + n_bytes); a gap is one of MAPPING_NONE. -errno: no such file. */
int must_check mapping_find(const void *pointer, uint64_t n_bytes, struct mapping *ret_mapping);

/* kind (file, tmpfs, memfd; none: no regular file), inode and path of a descriptor. */
int must_check mapping_of_fd(int fd, struct mapping *ret_mapping);

#endif
