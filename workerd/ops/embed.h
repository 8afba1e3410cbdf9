/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_EMBED_H
#define WORKERD_OPS_EMBED_H

/*
 * y[i] = W[rows[i].token], numbers of any block format made f32 (shaders/embed.comp); the token may
 * be ABI_ROW_PICKED | j, for that which op_best has picked for row j.
 */
#include <stdint.h>

#include "proto/util/cleanup.h"
#include "workerd/weights.h"

struct err;
struct op_pool;
struct vk_command;

struct op_embed_params {
	struct weights_tensor w; /* [n_vocab][k] */
	uint64_t rows;           /* device address of [m] struct abi_row */
	uint64_t m;              /* device address of u32: rows of the step */
	uint64_t y;              /* device address of [m][k] f32 */
	uint64_t picked;         /* of op_best; 0: no row asks for it */
	uint32_t n_rows;         /* the most that m can be */
};

/* Records it. -ENOTSUP for a block format without kernels. Engine thread. */
int must_check op_embed_record(struct op_pool *pool, struct vk_command *c,
	const struct op_embed_params *params, struct err *ret_err);

#endif
