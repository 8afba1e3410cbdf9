/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_SHOWN_H
#define WEIGHTD_SHOWN_H

/*
 * A model that a socket does not show and one that does not exist are refused in the same words.
 * Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct peer;
struct registry;

/* 0, or the refusal when the peer's socket does not show the model. */
int must_check shown_check(
	struct registry *r, const struct peer *p, const char *model, struct err *ret_err);

/*
 * What the registry said to the peer about a model. -ENOENT is said anew, with the names that the
 * peer's socket shows, where it hides any. Returns code.
 */
int must_check shown_refuse(
	struct registry *r, const struct peer *p, const char *model, int code, struct err *ret_err);

/* May the peer see another one, in Status? */
bool shown_peer(const struct peer *p, const struct peer *other);

/* And a process that holds, by its holder's id? */
bool shown_holder(const struct peer *p, uint64_t holder);

/* May the peer hear of the pids of others? */
bool shown_pids(const struct peer *p);

/* May the peer hear of a model's event? pid: of the peer that it is about; 0: of none. */
bool shown_event(const struct peer *p, const char *model, int32_t pid);

#endif
