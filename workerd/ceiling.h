/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_CEILING_H
#define WORKERD_CEILING_H

/*
 * What the device gives to a kernel that does one thing alone: reads memory that no cache holds
 * (shaders/memory.comp), multiplies and adds in registers (shaders/fma.comp), multiplies the
 * device's matrices there (shaders/matrix-peak.comp). What kernels of a model reach is held against
 * it, measured in the same run: a device is not always as fast. A GPU works for half a second
 * before it is measured (workerd/warm.h).
 *
 * Engine thread, between two steps.
 */
#include "proto/util/cleanup.h"

struct err;
struct op_pool;
struct vk_device;

/* A second; 0: not measured. */
struct ceiling_rates {
	double read_bytes;
	double fma_flops;    /* f32 */
	double matrix_flops; /* f16 matrices; 0: this device, or this build, has no kernel of them
			      */
};

/* The best of some runs. -ENOTSUP without timestamps, -ENOMEM, VK_DEVICE_LOST. */
int must_check ceiling_measure(struct vk_device *d, struct op_pool *pool, struct err *ret_err,
	struct ceiling_rates *ret_rates);

#endif
