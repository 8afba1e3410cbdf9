/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_PLAN_SAMPLE_H
#define WORKERD_PLAN_SAMPLE_H

/* From how many rows on a plan copies weights ahead of their use, for workerd/plan alone. Engine
 * thread. */
#include "proto/util/cleanup.h"

struct err;
struct plan;

/*
 * Measures it with some layers of the plan, which has a stream and no step under way, and with rows
 * of a slot that nobody has yet, into its counters' stream_rows.
 */
int must_check plan_sample_measure(struct plan *p, struct err *ret_err);

#endif
