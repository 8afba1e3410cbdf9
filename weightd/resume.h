/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_RESUME_H
#define WEIGHTD_RESUME_H

/*
 * Resume: a worker whose connection ended comes back for the lease that it had, and brings the
 * descriptors where weightd has lost its own. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct fdlist;
struct peer;
struct service;

struct resume_params {
	uint64_t request;
	const char *model;
	uint64_t generation;
	const uint8_t *device_uuid; /* [16], the peer's */
	const uint8_t *driver_uuid; /* [16] */
	uint64_t n_reserved_bytes;  /* that it was granted on the device, as it says */
	uint64_t manifest_inode;
	uint32_t first; /* of the allocations beside it */
	bool has_manifest;
	bool more;
};

/*
 * Answers, now or when the generation is there, or takes what one packet of several brought. The
 * descriptors that it keeps are taken out of fds. -ENOENT: the generation is not to be had, or on
 * its way back and not for a process that held nothing of it; -EDQUOT: its grant, or its lease;
 * -EINVAL: descriptors that are not what was exported.
 */
int must_check resume_handle(struct service *s, struct peer *p, const struct resume_params *params,
	struct fdlist *fds, struct err *ret_err);

/*
 * The peer has its lease again, on a generation that was replaced perhaps while it could not hear
 * of that.
 */
void resume_tell_replaced(struct service *s, struct peer *p, uint64_t generation);

#endif
