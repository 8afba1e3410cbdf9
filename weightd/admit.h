/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_ADMIT_H
#define WEIGHTD_ADMIT_H

/*
 * Who goes where a device's memory is wanted; how much of it anybody gets is weightd/admission's:
 *	- the least recently used generations that nobody has, that are not pinned and that nobody
 *	  waits for go, no more of them than it takes, before all others those that a load replaces;
 *	- if that is not enough and a load replaces a generation, that one drains first: the load
 *	  begins when its memory is back, Acquire waits meanwhile;
 *	- if even that is not enough nobody goes.
 * The loop thread's.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct service;

/*
 * Bytes of the device of that slot that could go for the load of the generation, what it replaces
 * among them.
 */
uint64_t admit_count(struct service *s, uint64_t id, uint32_t slot);

/*
 * Generations that give n_bytes of the device of that slot are given up, for the load of the
 * generation or for workers (0). False: nobody is.
 */
bool admit_evict(struct service *s, uint64_t id, uint32_t slot, uint64_t n_bytes);

/*
 * The generation that the load of id for the first device replaces drains, where what it and those
 * that nobody has give is n_bytes: the load begins anew when it is gone. False: nothing was done.
 */
bool admit_drain(struct service *s, uint64_t id, uint64_t n_bytes);

/* Generations have gone: loads that waited for them begin, or end where nobody wants them. */
void admit_resume(struct service *s);

/* Who has what such a load waits for is asked again. To be called every second or so. */
void admit_tick(struct service *s);

/* The warm generation of the model is heated; 0 as well when it is not there, or when a generation
 * loads that will take its place. Errors of loader_ask. */
int must_check admit_heat(struct service *s, const char *model, struct err *ret_err);

/* Adds to a refusal for want of memory who has it: models with processes and bytes, and pins. */
void admit_explain(struct service *s, uint64_t id, struct err *err);

#endif
