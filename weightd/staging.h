/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTD_STAGING_H
#define WEIGHTD_STAGING_H

/* The memfds that weights are staged in. Any thread. */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

/* A memfd that is for writing and keeps its size, all of it a hole. -errno. */
int must_check staging_new_memfd(
	const char *name, uint64_t n_bytes, struct err *ret_err, int *ret_memfd);

/* -errno with what could not be done to one. */
int must_check staging_refuse(struct err *ret_err, const char *what);

#endif
