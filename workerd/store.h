/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_STORE_H
#define WORKERD_STORE_H

/*
 * The directory of --sessions-dir: a file of mode 0600 a saved session, in a directory of mode 0700
 * a user,
 *
 *	DIR/uid-UID/NAME
 *
 * so that no client reads what another user has saved. A file is written under another name and
 * renamed when it is whole. It is not waited for that it reaches the disk: it outlives the worker,
 * not a power cut, after which it may be damaged (and found to be).
 *
 * Any thread, one at a time.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct store;

enum {
	STORE_MAX_NAME_BYTES = 64,
	STORE_MAX_FILES = 256, /* of a user */
};

/* The directory must be there. -errno with a sentence. */
int must_check store_new(const char *dir, struct err *ret_err, struct store **ret_store);
struct store *store_free(struct store *s);

/*
 * A new file, not seen under its name until store_commit; *ret_fd is the caller's. scope: a
 * client's (workerd/client.h); -EACCES for one that is no user's, and of all of these where the
 * user's directory is another user's than the process's, or others may write to it. -EINVAL for a
 * name that is not 1 to 64 of A-Z a-z 0-9 . _ - or begins with a dot; -EDQUOT for one more than
 * STORE_MAX_FILES. What was begun and not written to for an
 * hour is removed.
 */
int must_check store_create(
	struct store *s, uint64_t scope, const char *name, struct err *ret_err, int *ret_fd);

/* What store_create began is whole: it replaces what had the name. */
int must_check store_commit(struct store *s, uint64_t scope, const char *name, struct err *ret_err);

/* What store_create began is to be forgotten. */
void store_abandon(struct store *s, uint64_t scope, const char *name);

/* A regular file, to be read, and its size. -ENOENT. */
int must_check store_open(struct store *s, uint64_t scope, const char *name, struct err *ret_err,
	int *ret_fd, uint64_t *ret_n_bytes);

#endif
