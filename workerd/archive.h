/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_ARCHIVE_H
#define WORKERD_ARCHIVE_H

/*
 * Sessions to files (workerd/snapshot.h) and back. What is read is looked at whole before anything
 * of it is used by a generation: a file that is damaged leaves no session.
 *
 * Engine thread, between steps, which wait for it.
 */
#include "proto/util/cleanup.h"

struct engine;
struct err;
struct message;

/*
 * MESSAGE_SAVE: the tokens of an idle session, and their keys and values as far as they are
 * computed. -ENOTSUP without --sessions-dir; -EBUSY, -ESTALE, -ENOENT as scheduler_append; errors
 * of workerd/store.h and of writing.
 */
int must_check archive_save(struct engine *e, struct message *m, struct err *ret_err);

/*
 * MESSAGE_RESTORE: a new session. Keys and values that this worker cannot use are left out, and
 * computed anew by the next generation; m says why. -ENOTSUP, -ESTALE for another model's file,
 * -EBADMSG for a damaged one, -ENOSPC where the context does not hold it, -EAGAIN.
 */
int must_check archive_restore(struct engine *e, struct message *m, struct err *ret_err);

#endif
