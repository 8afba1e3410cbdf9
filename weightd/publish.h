/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_PUBLISH_H
#define WEIGHTD_PUBLISH_H

/*
 * Prefixes that workers share: who may publish, see and take them, and what they cost. weightd
 * looks at the tokens, which it hashes, and never into the memory. The bytes are charged to the
 * device's account and to the publisher's socket, in place of as many that the publisher had
 * reserved; what nobody has goes first when others need room, and all of a generation goes with it,
 * or when its weights cannot be trusted any more. After a restart there are none: whoever has one
 * publishes it again. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/prefixes.h"

struct err;
struct fdlist;
struct peer;
struct service;

/* Prefixes for the service, before anybody asks for any. -ENOMEM. */
int must_check publish_init(struct service *s);
void publish_fini(struct service *s);

struct publish_params {
	const char *model;
	uint64_t generation;
	const uint8_t *device_uuid; /* [16] */
	const uint8_t *driver_uuid; /* [16] */
	const char *name;
	bool is_shared;
	uint32_t n_tokens;
	const uint8_t *layout; /* [n_layout_bytes] */
	uint64_t n_layout_bytes;
	struct prefix_memory memory;
};

/*
 * fds: the tokens and the memory, which are taken on success where ret_existed is false. The peer
 * has a lease on it then. -ENOENT, -EPERM, -EINVAL, -ENOTSUP; -ENOSPC where so
 * much was not reserved.
 */
int must_check publish_add(struct service *s, struct peer *p, const struct publish_params *params,
	struct fdlist *fds, struct err *ret_err, uint64_t *ret_id, bool *ret_existed);

/* May the peer have it? */
bool publish_shows(const struct peer *p, const struct prefix *x);

/* A lease, and what it is: good until the next change. -ENOENT, -EDQUOT, -ENOSPC. */
int must_check publish_take(struct service *s, struct peer *p, uint64_t id, struct err *ret_err,
	const struct prefix **ret_prefix);

/* -ENOENT. */
int must_check publish_drop(struct service *s, struct peer *p, uint64_t id, struct err *ret_err);

/* -ENOENT, also for one that the peer may not remove. */
int must_check publish_remove(struct service *s, struct peer *p, uint64_t id, struct err *ret_err);

/* The generation is gone, or not to be trusted: so are its prefixes. */
void publish_forget(struct service *s, uint64_t generation);

/* Gives up what nobody has, until n_bytes of the device are free or there is no more. How many
 * bytes that was. */
uint64_t publish_evict(struct service *s, uint32_t slot, uint64_t n_bytes);

/* As service_close and service_exit. */
void publish_close(struct service *s, const struct peer *p, uint64_t holder);
void publish_exit(struct service *s, uint64_t holder);

#endif
