/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WEIGHTS_BATON_H
#define PROTO_WEIGHTS_BATON_H

/*
 * The baton of a device over a client of weightd (proto/weights-client.h, whose errors, threads and
 * rules hold here).
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct weights_client;

/* The descriptor of its memory (proto/baton.h), the caller's. -ENOTSUP: not weightd's device. */
int must_check weights_baton_take(
	struct weights_client *c, const uint8_t device_uuid[16], struct err *ret_err, int *ret_fd);

#endif
