/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_ADMISSION_H
#define WEIGHTD_ADMISSION_H

/*
 * Who may take memory of weightd's devices, and when: the account of each device (weightd/account)
 * with its peers, loads and registry around it. Devices that are not weightd's have no account.
 *
 * A device's budget is what its driver says, less --reserve, or the heap's size; at most
 * --device-budget. It is looked at only while nothing is granted, for from then on the driver takes
 * off what workers allocate, which the account has counted already. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct account;
struct err;
struct export;
struct loader_result;
struct peer;
struct service;
struct service_remnant;

/* Accounts for service_params.loaders, before anybody asks for anything. -ENOMEM. */
int must_check admission_init(struct service *s);
void admission_fini(struct service *s);

/* Of the loader's device; NULL for the foreign slot. */
const struct account *admission_get_account(const struct service *s, uint32_t slot);

/* Granted to the peer, of all devices together. */
uint64_t admission_count_grants(const struct service *s, const struct peer *p);

struct admission_params {
	uint64_t request;
	const uint8_t *device_uuid; /* [16] */
	uint64_t n_bytes;           /* in all */
	uint64_t n_least_bytes;     /* at most n_bytes */
	bool is_modest;
	const char *model; /* of a grant that comes back, for people */
};

/*
 * Reserve: answered by Reserved, or by an Error with who holds what, at once or within some
 * seconds. -ENOMEM, -ENOSPC, -EBUSY, -EAGAIN, -EDQUOT as account_request, service_check_pending and
 * quota_check_reserve.
 */
int must_check admission_reserve(struct service *s, struct peer *p,
	const struct admission_params *params, struct err *ret_err);

/*
 * Begins the load of a generation for a device, in what is free of it: errors of loader_ask. When
 * the file has been read and judged, and its weights want more than that, admission_on_short makes
 * room if others could: generations that nobody has go, or what it replaces drains
 * (weightd/admit.h); else idle workers are asked to park. Then it is loaded anew; after the
 * account's wait it gets what there is, and its placement decides what becomes of it. What would
 * not fit beside nobody disturbs nobody.
 */
int must_check admission_load(
	struct service *s, uint64_t generation, uint32_t slot, struct err *ret_err);
void admission_on_short(
	struct service *s, uint64_t generation, uint32_t slot, const struct loader_result *r);

/* A load that waits has failed with -ECANCELED now: true. False: it does not wait. */
bool admission_cancel(struct service *s, uint64_t generation);

/* The load has ended: with an export, or NULL and without. */
void admission_settle(
	struct service *s, uint64_t generation, uint32_t slot, const struct export *e);

/* Who was granted what, behind the text of a load that found no room on the device. */
void admission_explain(struct service *s, uint32_t slot, struct err *err);

/* Weights that were there before this weightd; the registry may not know of them yet. */
void admission_adopt(
	struct service *s, uint64_t generation, uint32_t slot, const char *model, uint64_t n_bytes);

/* Nobody has the remnant any more, if there was one: its bytes, which are free. */
uint64_t admission_drop_remnant(
	struct service *s, uint64_t generation, uint32_t slot, struct service_remnant *remnant);

/* The export is on its way to loader_release. */
void admission_leave(struct service *s, uint64_t generation, uint32_t slot);

/* n_bytes of a prefix (weightd/prefixes), out of what the peer was granted: at least as much. */
void admission_charge(struct service *s, struct peer *p, uint64_t prefix, uint32_t slot,
	const char *model, uint64_t n_bytes);

/* The end of those, if they were charged. */
void admission_discharge(struct service *s, uint64_t prefix, uint32_t slot);

/* Loaders have freed exports, perhaps. */
void admission_collect(struct service *s);

/* As service_close and service_exit. */
void admission_close(struct service *s, const struct peer *p, uint64_t holder);
void admission_exit(struct service *s, uint64_t holder);

/*
 * The process behind the holder's id was granted so much of the device by the weightd before: it
 * counts until the process is gone or comes back (admission_resume), and says then what it has.
 */
void admission_recall(struct service *s, uint64_t holder, int32_t pid, const uint8_t *device_uuid,
	uint64_t n_bytes, const char *model);

/*
 * The peer's process had a connection before, to this weightd (holder: its id among the holders, or
 * 0) or to one before it: it has its grant again, or what it says that it has, where that grant was
 * of the weightd before. is_known: it had a lease before, so that it may say so. -EDQUOT.
 */
int must_check admission_resume(struct service *s, struct peer *p, uint64_t holder, bool is_known,
	const struct admission_params *params, struct err *ret_err);

/* To be called every second or so: ends what waits too long. */
void admission_tick(struct service *s);

#endif
