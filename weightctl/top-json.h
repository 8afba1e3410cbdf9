/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_TOP_JSON_H
#define WEIGHTCTL_TOP_JSON_H

/* A sample of `top` as an object. Rates that are not known are null. */
#include <stdint.h>

#include <jansson.h>

struct top_sample;

/* NULL: no memory. */
json_t *top_json_make(const struct top_sample *s, uint64_t now_ns);

#endif
