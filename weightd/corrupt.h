/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_CORRUPT_H
#define WEIGHTD_CORRUPT_H

/*
 * What follows when bytes of a generation are not what was loaded: who may have it hears of it, it
 * is lost, and the model is loaded anew into other memory. Loop thread.
 */
#include <stdbool.h>
#include <stdint.h>

struct check_report;
struct err;
struct service;

/*
 * slot: of service_generation.residencies. The new generation comes from the model file while that
 * is what it was; where the file itself holds what differs, or has changed, from the memfd if that
 * has all of it; else there is none. Nothing happens for a generation that is gone or lost already.
 */
void corrupt_found(
	struct service *s, uint64_t generation, uint32_t slot, const struct check_report *report);

/*
 * The same for a generation that an earlier weightd loaded, ready or draining, when that is found
 * as it comes back. holders: why, and who may have it, for those who may know. clean_ns:
 * CLOCK_MONOTONIC, when it was right; 0: not known. reloads: nothing else takes its place already.
 */
void corrupt_returned(struct service *s, uint64_t generation, const struct err *why,
	const struct err *holders, uint64_t clean_ns, bool reloads);

#endif
