/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_LOAD_SUMS_H
#define WEIGHTD_LOAD_SUMS_H

/*
 * The sums of an export that has just come into being: taken of what was loaded, or compared with
 * what was taken when an earlier weightd loaded it. Either way the export has its check afterwards,
 * and bytes that the next weightd compares with (export.sums):
 *
 *	u8[IDENTITY_BYTES] identity_describe of the file, then sums_pack
 *
 * Loader thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct checksum;
struct err;
struct export;
struct gguf;
struct source;
struct sum_key;
struct vk_device;

/* Borrowed for a call. */
struct load_sums_params {
	struct vk_device *device; /* of the export; NULL: it has no memory on one */
	const struct sum_key *key;
	struct checksum **checksum; /* of the device, made when it is first needed */
	struct source *source;      /* keeps the sums for later loads of the generation */
	struct export *export;
};

/* A condition: the device was lost. */
enum { LOAD_SUMS_DEVICE_LOST = 1 };

/* -EBADMSG: an earlier load of the generation had other bytes. -ENOMEM; errors of check_run. */
int must_check load_sums_take(
	const struct load_sums_params *params, const struct gguf *gguf, struct err *ret_err);

/*
 * What export.sums is to be, by all sums that there are by now: the export's own bytes are the loop
 * thread's once it has the export. *ret_bytes is the caller's. -ENOMEM.
 */
int must_check load_sums_pack(
	const struct export *e, struct err *ret_err, uint8_t **ret_bytes, uint32_t *ret_n_bytes);

/* As the export's own bytes say. -EBADMSG: memory has changed since; -ENODATA: it has none;
 * -EINVAL: they are not of this model. -ENOMEM; errors of check_run. */
int must_check load_sums_compare(const struct load_sums_params *params, struct err *ret_err);

#endif
