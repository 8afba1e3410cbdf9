/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_BATONS_H
#define WEIGHTD_BATONS_H

/*
 * The memory by which the workers of a device agree whose turn it is (proto/baton.h): one for each
 * of weightd's devices, made for the first worker that asks. Loop thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct service;

void batons_init(struct service *s);
void batons_fini(struct service *s);

/* The descriptor, borrowed, of the device's. -ENOTSUP: it is none of weightd's; -errno. */
int must_check batons_get(
	struct service *s, const uint8_t device_uuid[16], struct err *ret_err, int *ret_fd);

#endif
