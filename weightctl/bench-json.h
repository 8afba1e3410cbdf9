/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_BENCH_JSON_H
#define WEIGHTCTL_BENCH_JSON_H

/*
 * Results with every sample, for programs.
 */
#include <jansson.h>

struct bench_result;

/* One test. NULL: no memory. */
json_t *bench_json_get_result(const struct bench_result *r);

#endif
