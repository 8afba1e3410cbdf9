/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIGHTCTL_INPUT_H
#define WEIGHTCTL_INPUT_H

/*
 * What a command works on. A TEXT argument: itself, or standard input for "-", for texts longer
 * than an argument may be. A FILE: opened with the caller's own rights.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;

/* *ret_text is allocated (free it). -E2BIG above what a message to a worker holds. */
int must_check input_read(
	const char *argument, struct err *ret_err, char **ret_text, uint32_t *ret_n_bytes);

/* A FILE's bytes, likewise; an empty one is refused with -EINVAL. */
int must_check input_read_file(
	const char *path, struct err *ret_err, char **ret_text, uint32_t *ret_n_bytes);

/* Opened for reading; what it is, whoever reads it judges. -errno with the path in ret_err. */
int must_check input_open(
	const char *path, struct err *ret_err, int *ret_fd, uint64_t *ret_n_bytes);

#endif
