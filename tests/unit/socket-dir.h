/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_SOCKET_DIR_H
#define TESTS_UNIT_SOCKET_DIR_H

/*
 * A directory of the case's own with a place for one socket in it; /tmp where $TMPDIR is so deep
 * that a socket's path (108 bytes) would not fit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/case.h"

struct socket_dir {
	char dir[80];
	char path[96]; /* dir/s: nothing there yet */
};

static inline struct socket_dir socket_dir_new(void)
{
	const char *base = getenv("TMPDIR");
	struct socket_dir d;

	if (!base || strlen(base) > 50)
		base = "/tmp";
	snprintf(d.dir, sizeof(d.dir), "%s/weightd-test-XXXXXX", base);
	assert_non_null(mkdtemp(d.dir));
	snprintf(d.path, sizeof(d.path), "%s/s", d.dir);
	return d;
}

static inline void socket_dir_free(struct socket_dir *d)
{
	unlink(d->path);
	assert_int_equal(rmdir(d->dir), 0);
}

#endif
