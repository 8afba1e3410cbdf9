/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_SESSION_H
#define WEIGHTCTL_SESSION_H

/*
 * The session of ask, chat and complete: a new one, or what --load names; --save keeps it.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct options;
struct worker_client;

struct session {
	uint64_t id;
	uint32_t n_tokens; /* that were loaded */
};

/* Where keys and values of a loaded session cannot be used, stderr says why. */
int must_check session_begin(const struct options *o, struct worker_client *c, struct err *ret_err,
	struct session *ret_session);

/*
 * A turn of the user at the end of the session. Behind a turn of the model a line ends first, as
 * the chat templates that workers know have it.
 */
struct worker_client_message;
int must_check session_add_turn(struct worker_client *c, const struct session *s,
	const struct worker_client_message *message, bool is_first, struct err *ret_err);

/* Done with it: keeps it under --save's name. */
int must_check session_end(const struct options *o, struct worker_client *c,
	const struct session *s, struct err *ret_err);

#endif
