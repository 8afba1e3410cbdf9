/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_SCRUB_H
#define WEIGHTD_SCRUB_H

/*
 * The periodic check of everything that a loader's device and host memory hold: a few pieces at a
 * time, while nothing else is to be done. A round looks at every piece of every export once and
 * takes about the period, longer where the device's time would not suffice. Loader thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct check_means;
struct check_report;
struct err;
struct export;

enum { SCRUB_MAX_PERCENT = 100 };

struct scrub {
	uint64_t period_ns;      /* 0: off */
	uint32_t budget_percent; /* of the device's time, 1 to SCRUB_MAX_PERCENT */
	uint64_t round;          /* from 1 */
	uint64_t next_ns;        /* CLOCK_MONOTONIC: before it nothing is to be done */
};

/* first: of the loader's exports, linked by `entry`; NULL: none. The one whose turn it is; NULL
 * where there is nothing to look at. May begin the next round. */
struct export *scrub_find(struct scrub *s, struct export *first);

/* A condition of scrub_run: something differs, and the report is of the whole export. */
enum { SCRUB_DIFFERS = 2 };

/*
 * One step of the export. n_total_bytes: scrub_count_bytes. Sets next_ns. Errors of check_step,
 * CHECK_DEVICE_LOST, SCRUB_DIFFERS; after any but 0 the export is not looked at any more.
 */
int must_check scrub_run(struct scrub *s, struct export *e, const struct check_means *means,
	uint64_t n_total_bytes, struct err *ret_err, struct check_report *ret_report);

/* Of tensors of all exports that are looked at. */
uint64_t scrub_count_bytes(const struct export *first);

/* ---- pure ---- */

/* Pieces of a step: a step a second, or eight a period where that is more. At least 1. */
uint32_t scrub_get_pieces(const struct scrub *s, uint64_t n_total_bytes);

/*
 * When the next step is due, after one that began at start_ns, summed n_bytes and took elapsed_ns
 * of the device's time.
 */
uint64_t scrub_get_next(const struct scrub *s, uint64_t start_ns, uint64_t n_bytes,
	uint64_t n_total_bytes, uint64_t elapsed_ns);

#endif
