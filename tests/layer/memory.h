/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_MEMORY_H
#define TESTS_LAYER_MEMORY_H

/* vkAllocateMemory, vkFreeMemory and vkMapMemory: judged, accounted, translated, logged. */
#include "tests/layer/dispatch-row.h"

struct dispatch_device;

/* Drops what the application did not free; its device is gone. */
void memory_forget(struct dispatch_device *d);

extern const struct dispatch_row memory_rows[];

#endif
