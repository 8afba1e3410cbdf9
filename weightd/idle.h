/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_IDLE_H
#define WEIGHTD_IDLE_H

/*
 * What nobody has used for long: its weights go to host memory and it is warm, its device memory is
 * free; after longer it goes altogether. The loop thread's.
 */
#include "proto/util/cleanup.h"

struct loader_result;
struct registry_generation;
struct service;

/* To be called every second or so. */
void idle_check(struct service *s);

/* The loader has staged the generation, or could not (goal LOAD_COOL). */
void idle_finish(struct service *s, struct registry_generation *g, const struct loader_result *r);

#endif
