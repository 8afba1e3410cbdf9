/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_GATHER_H
#define WORKERD_GATHER_H

/*
 * The rows of a `paged` embedding that a step needs, put into io memory before it: a table of those
 * alone, and rows that name them by their place. Engine thread.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/weights.h"

struct abi_row;
struct err;
struct gather;
struct vk_device;

/* t: of w, paged; n_rows: the most of a step. w is borrowed for the gather's life. */
int must_check gather_new(struct vk_device *d, const struct weights *w,
	const struct weights_tensor *t, uint32_t n_rows, struct err *ret_err,
	struct gather **ret_gather);

/* No submitted work may use it any more. Accepts NULL; returns NULL. */
struct gather *gather_free(struct gather *g);

/* What the embedding is recorded with: [n_rows][k] in t's format, and [n_rows] struct abi_row. */
const struct weights_tensor *gather_get_tensor(const struct gather *g);
uint64_t gather_get_rows_address(const struct gather *g);

/* Before the step is submitted. -EIO where the file has been cut. */
int must_check gather_fill(
	struct gather *g, const struct abi_row *rows, uint32_t n_rows, struct err *ret_err);

uint64_t gather_get_bytes(const struct gather *g); /* gathered since the start */

#endif
