/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_ACQUIRE_H
#define WEIGHTD_ACQUIRE_H

/*
 * Leases: which residency of a generation serves the peer's device, what of it the peer can import,
 * and who waits until it is there. Loop thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/export.h"

struct err;
struct peer;
struct service;

struct acquire_params {
	uint64_t request;
	const char *model;
	const uint8_t *device_uuid; /* [16], the peer's */
	const uint8_t *driver_uuid; /* [16] */
	struct export_importer importer;
};

/*
 * Begins a lease; the answer (Acquired or Error) goes to the peer at once or when the model has
 * loaded, for its device too. A device that is none of weightd's gets host memory alone, if the
 * peer imports memfds; else -ENODEV with both uuids. Windows of the file that the peer takes as
 * memfds alone are copied first; where there is no room for that, they are to be read. -ENOTSUP:
 * the peer takes opaque descriptors only, and there are others. Errors of registry_acquire;
 * -EAGAIN.
 */
int must_check acquire_begin(struct service *s, struct peer *p, const struct acquire_params *params,
	struct err *ret_err);

/* Something about the model has changed. why: what became of its load, NULL when it is ready. */
void acquire_wake(struct service *s, const char *model, int code, const struct err *why);

/* The load for the slot's device has failed. */
void acquire_fail(
	struct service *s, const char *model, uint32_t slot, int code, const struct err *why);

/* The copy for the slot's device has failed: those who wait do without, who comes later asks anew.
 * acquire_wake follows. */
void acquire_give_up_copy(struct service *s, const char *model, uint32_t slot);

/* The model could not be heated, whatever device it is wanted for. */
void acquire_fail_all(struct service *s, const char *model, int code, const struct err *why);

/* Of a generation, by its data in the registry: see quota_bytes_fn. */
uint64_t acquire_get_bytes(const void *generation);

/* The peer is about to be freed. */
void acquire_forget(struct service *s, const struct peer *p);

#endif
