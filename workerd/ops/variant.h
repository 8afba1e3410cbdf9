/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_VARIANT_H
#define WORKERD_OPS_VARIANT_H

/*
 * Which reading of a weight matrix a kernel takes: its block format, and whether its rows allow
 * whole words (shaders/dtype.glsl). Engine thread, when commands are recorded.
 */
#include "proto/util/cleanup.h"

struct err;
struct weights_tensor;

enum op_variant {
	OP_VARIANT_F32,
	OP_VARIANT_F32_X4,
	OP_VARIANT_F16,
	OP_VARIANT_F16_X2,
	OP_VARIANT_Q8_0,
	OP_VARIANT_Q8_0_X2,
	OP_VARIANT_BF16,
	OP_VARIANT_BF16_X2,
	OP_VARIANT_Q4_0,
	OP_VARIANT_Q4_0_X2,
	OP_VARIANT_Q4_K,
	OP_VARIANT_Q5_K,
	OP_VARIANT_Q6_K,
	OP_VARIANT_TQ2_0,
	OP_VARIANT_Q2_0,
	OP_VARIANT_Q1_0,
	OP_VARIANT_N,
};

/*
 * The fastest reading that the address and row length of the tensor allow; one of ne[2] matrices
 * has all of them read alike. -ENOTSUP with ret_err for a block format or layout without kernels,
 * -EINVAL for a shape that does not fit its bytes.
 */
int must_check op_variant_choose(
	const struct weights_tensor *t, struct err *ret_err, enum op_variant *ret_variant);

#endif
