/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_WARM_H
#define WORKERD_WARM_H

/*
 * A GPU that had nothing to do runs at a fraction of its clock (a sixth, measured on an H200) and
 * takes half a second of work to rise; a pipeline that is compiled is long enough for it to sink.
 * So whoever measures calls warm_up before each thing that is timed. A software driver has no such
 * clock: nothing is done there.
 *
 * Engine thread, between two steps.
 */
#include "proto/util/cleanup.h"

struct err;
struct vk_device;
struct warm;

/* Has a pipeline and a little memory of its own. d outlives it. Errors as of op_pool_new. */
int must_check warm_new(struct vk_device *d, struct err *ret_err, struct warm **ret_warm);

/* Accepts NULL; returns NULL. */
struct warm *warm_free(struct warm *w);

/*
 * Computes for half a second the first time. Later, until the same work takes as long as it did
 * then, which a clock that has not sunk shows in one run of 3 ms, and half a second at most.
 * -ENOTSUP without timestamps, VK_DEVICE_LOST.
 */
int must_check warm_up(struct warm *w, struct err *ret_err);

#endif
