/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_LEASE_H
#define WORKERD_LEASE_H

/*
 * What the worker has of weightd, for the day when another weightd wants to know: written by the
 * thread that has the stack, read by the link's when it tells a weightd that came back. The weights
 * may go while that is on its way, so it has descriptors of its own. Any thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "proto/weights-client.h"

struct err;
struct lease;
struct weights;

int must_check lease_new(struct lease **ret_lease);
/* Accepts NULL; returns NULL. */
struct lease *lease_free(struct lease *l);

/* The weights are borrowed until lease_clear; with what was granted beside them, and the report. */
void lease_set(struct lease *l, const struct weights *w, uint64_t n_granted_bytes,
	const struct weights_client_report *report);

/* Before the weights go: nothing is leased and nothing granted, the report is of a worker without.
 */
void lease_clear(struct lease *l);

/* Rises with each change. */
uint64_t lease_get_serial(struct lease *l);

struct lease_copy {
	uint64_t serial;
	struct weights_client_report report;
	uint64_t generation; /* 0: nothing is leased */
	uint64_t n_granted_bytes;
	int manifest_fd;
	uint32_t n_allocs;
	int *fds; /* [n_allocs] by index; the same where allocations share a file */
};

/* With duplicates of the descriptors. -EMFILE, -ENOMEM, ... with ret_err. */
int must_check lease_take(struct lease *l, struct err *ret_err, struct lease_copy *ret_copy);
void lease_copy_fini(struct lease_copy *c);

#endif
