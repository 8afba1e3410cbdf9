/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_SUBMIT_H
#define TESTS_LAYER_SUBMIT_H

/*
 * Submissions to simulated queues. The driver's one queue runs in order, so work goes to it only
 * when every semaphore that it waits for is signalled or will be by work that went there before.
 */
#include "tests/layer/dispatch-row.h"

struct queues;

/* Frees what is left; the device is gone. */
void submit_fini(struct queues *q);

extern const struct dispatch_row submit_rows[];

#endif
