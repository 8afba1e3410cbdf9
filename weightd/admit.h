/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_ADMIT_H
#define WEIGHTD_ADMIT_H

/*
 * Room for what is loaded. The loader plans with what is free and says what is missing; then
 *	- the least recently used generations that nobody has and that are not pinned go, no more of
 *	  them than it takes, and the load begins anew;
 *	- if that is not enough and the load replaces a generation, that one drains first: the load
 *	  begins when its memory is back, Acquire waits meanwhile;
 *	- if even that is not enough nobody goes, and the policy decides what lives in host memory.
 * The loop thread's.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct loader_result;
struct service;

/* The load of a generation that is LOADING. Errors of loader_ask. */
int must_check admit_begin(struct service *s, uint64_t id, struct err *ret_err);

/* The loader found too little room for it (LOADER_SHORT). */
void admit_make_room(struct service *s, uint64_t id, const struct loader_result *r);

/* Generations have gone: loads that waited for them begin, or end where nobody wants them. */
void admit_resume(struct service *s);

/* The warm generation of the model is heated; 0 as well when it is not there, or when a generation
 * loads that will take its place. Errors of loader_ask. */
int must_check admit_heat(struct service *s, const char *model, struct err *ret_err);

/* Adds to a refusal for want of memory who has it: models with processes and bytes, and pins. */
void admit_explain(struct service *s, uint64_t id, struct err *err);

#endif
