/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_CHECKER_H
#define WEIGHTD_CHECKER_H

/*
 * What a loader thread checks its exports with: the device's kernel, made when it is first needed,
 * and the scrub. Loader thread, or the loop thread while there is none.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "weightd/scrub.h"

struct check_report;
struct checksum;
struct err;
struct export;
struct sum_key;
struct vk_device;

/* For period_ns: off for software devices, an hour for others. */
#define CHECKER_DEFAULT_NS UINT64_MAX

struct checker {
	const struct sum_key *key;
	const atomic_bool *is_given_up;
	struct checksum *checksum; /* of the device; NULL before it was needed */
	struct scrub scrub;
};

void checker_init(struct checker *c, const struct sum_key *key, const atomic_bool *is_given_up);

void checker_start_scrub(
	struct checker *c, uint64_t period_ns, uint32_t budget_percent, bool is_software);

/* Before the device goes. */
void checker_drop_device(struct checker *c);

/* A whole pass; what differs makes the export suspect. d may be NULL: then its memory is gone.
 * Errors of check_run; CHECK_DEVICE_LOST. *ret_report is written in any case. */
int must_check checker_run(struct checker *c, struct vk_device *d, struct export *e,
	struct err *ret_err, struct check_report *ret_report);

/* Is a step of the scrub due, and of which export? first: as for scrub_find. NULL: not now. */
struct export *checker_find_due(struct checker *c, struct export *first);

/* When the next one will be, CLOCK_MONOTONIC; UINT64_MAX: never. */
uint64_t checker_get_due_ns(struct checker *c, struct export *first);

/* A step. Errors of scrub_run. */
int must_check checker_scrub(struct checker *c, struct vk_device *d, struct export *e,
	uint64_t n_total_bytes, struct err *ret_err, struct check_report *ret_report);

#endif
