/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_SHIPPED_MODEL_H
#define TESTS_UNIT_SHIPPED_MODEL_H

/*
 * The committed model's manifest as a worker gets it from weightd, and files of the test data.
 * Failures fail the test.
 */
#include <jansson.h>

struct manifest;

/* Free it with manifest_free. */
struct manifest *shipped_model_open(void);

/* A JSON file of tests/data/ref; json_decref it. */
json_t *shipped_model_ref(const char *name);

#endif
