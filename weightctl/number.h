/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_NUMBER_H
#define WEIGHTCTL_NUMBER_H

/*
 * Numbers as a person types them, the whole text or nothing: no sign, blank or suffix that strtoull
 * would swallow. -EINVAL: no number; -ERANGE: outside the range.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

int must_check number_parse_u64(const char *text, uint64_t *ret_value); /* decimal */
int must_check number_parse_u32(const char *text, uint32_t *ret_value);

/* low <= value <= high; never a NaN. The decimal point is '.', whatever the locale. */
int must_check number_parse_f32(const char *text, float low, float high, float *ret_value);

#endif
