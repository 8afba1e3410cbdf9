/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_ROUTE_H
#define WORKERD_OPS_ROUTE_H

/* The experts that rows take, with their weights (shaders/route.comp). */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct op_pool;
struct vk_command;

struct op_route_params {
	uint64_t logits; /* device address of [m][n_expert] f32 */
	uint64_t choice; /* of [m][n_used] struct abi_choice */
	uint64_t m;      /* of u32: rows of the step */
	uint32_t n_expert;
	uint32_t n_used;
	uint32_t n_rows; /* the most that m can be */
};

/* Records it. -EINVAL for numbers that do not fit. Engine thread. */
int must_check op_route_record(struct op_pool *pool, struct vk_command *c,
	const struct op_route_params *params, struct err *ret_err);

#endif
