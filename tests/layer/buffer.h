/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LAYER_BUFFER_H
#define TESTS_LAYER_BUFFER_H

/* Buffers as the driver may know them, and the memory types that it names for them. */
#include "tests/layer/dispatch-row.h"

extern const struct dispatch_row buffer_rows[];

#endif
