/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_MATRIX_ORDER_H
#define WORKERD_OPS_MATRIX_ORDER_H

/*
 * In which order the lanes of a subgroup have the numbers of the device's matrices of f16. The API
 * leaves that open, so it is tried out, on one subgroup. Engine thread, before anything is
 * recorded.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct vk_device;

/*
 * For matrices of 16 by 16 on subgroups of 32 where lane 4 g + t has rows g and g + 8 of x, of each
 * the numbers 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of k, and of W the same: ABI_MATRIX_SPEC_ORDER of
 * shaders/matrix-wide.glsl. Two bits each say which pair of the lane's numbers is (row g, lower
 * half of k), (g, upper), (g + 8, lower), (g + 8, upper), of x in bits 0 to 7, of W in bits 8
 * to 15. 0 on devices with others, and in builds without kernels for matrices. Errors of the
 * device, with ret_err.
 */
int must_check op_matrix_order_find(struct vk_device *d, struct err *ret_err, uint32_t *ret_order);

#endif
