/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_MANIFEST_CHECK_H
#define PROTO_MANIFEST_CHECK_H

/*
 * Judges a manifest (proto/manifest.h) whose sections are already found inside the block: after
 * this, every id, offset and string in it may be followed without a further look. One pass over
 * each section. For proto/manifest.c alone. Any thread.
 */
#include "proto/util/cleanup.h"

struct err;
struct manifest;

/* -EINVAL with section, row, field, expected and found. */
int must_check manifest_check(const struct manifest *m, struct err *ret_err);

#endif
