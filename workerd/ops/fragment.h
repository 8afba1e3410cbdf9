/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_FRAGMENT_H
#define WORKERD_OPS_FRAGMENT_H

/*
 * Which elements of the device's matrices which lane of a subgroup has: Vulkan leaves it to the
 * driver, so shaders/fragment.comp asks. Where it is as below, a kernel can put an A [m][k] and a
 * B [k][n] together out of registers (shaders/skinny.comp).
 *
 * n_lanes neighbours share a row of A, and a column of B: lane l has rows l / n_lanes, and every
 * subgroup / n_lanes from there on. Of a row it has k / n_lanes numbers, the same ones in A and in
 * B, in elements one behind the other.
 *
 * Engine thread.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "vk/device.h"

struct err;
struct op_pool;

struct op_fragment {
	uint32_t n_lanes; /* 0: the device has no such matrices */
	struct vk_device_matrix matrix;
};

/* Asks; n_lanes is 0 too where the build has no kernel for it. -errno of a dispatch, lost device.
 */
int must_check op_fragment_find(struct vk_device *d, struct op_pool *pool, struct err *ret_err,
	struct op_fragment *ret_fragment);

/* What found says of one matrix and number of lanes; words: of shaders/fragment.comp. */
bool op_fragment_fits(const uint32_t *words, uint32_t n_subgroup,
	const struct vk_device_matrix *matrix, uint32_t n_lanes);

#endif
