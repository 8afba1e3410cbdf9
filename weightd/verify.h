/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_VERIFY_H
#define WEIGHTD_VERIFY_H

/*
 * Verify requests: a check of the newest generation on every loader that has memory of it, one
 * answer when all have ended. A generation is checked once at a time, whoever asks: what a client
 * can make loaders do is bounded. And what checks found, whoever asked for them. Loop thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct loader_result;
struct peer;
struct service;

/*
 * The answer goes to the peer, also that of a check that cannot begin. -ENOENT: no generation of
 * the model is ready; -EAGAIN: the peer waits for too much.
 */
int must_check verify_begin(struct service *s, struct peer *p, uint64_t request, const char *model,
	struct err *ret_err);

/* A LOADER_CHECKED of the slot (service_generation.residencies). Frees its report. */
void verify_take(struct service *s, uint32_t slot, const struct loader_result *r);

/* The peer is about to be freed. NULL: all of them. */
void verify_forget(struct service *s, const struct peer *p);

#endif
