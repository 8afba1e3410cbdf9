/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKERD_OPS_GROUP_H
#define WORKERD_OPS_GROUP_H

/* The pairs of rows and their experts sorted by expert (shaders/group.comp). */
#include <stdint.h>

#include "proto/util/cleanup.h"

struct err;
struct op_pool;
struct vk_command;

struct op_group_params {
	uint64_t choice;    /* device address of [m][n_used] struct abi_choice */
	uint64_t pairs;     /* of [m * n_used] u32 */
	uint64_t groups;    /* of [op_group_count_slots] struct abi_group */
	uint64_t wide;      /* of [op_group_count_wide], for kernels on matrices; 0: not wanted */
	uint64_t m;         /* of u32: rows of the step */
	uint32_t wide_rows; /* of a wide group: see op_group_choose_wide */
	uint32_t n_expert;
	uint32_t n_used;
	uint32_t n_rows; /* the most that m can be */
};

/* Slots of groups that n_rows rows need; some of them are left empty. */
uint32_t op_group_count_slots(uint32_t n_rows, uint32_t n_expert, uint32_t n_used);

/*
 * Rows of a wide group, where up to n_rows rows take their experts: about as many as an expert has,
 * as far as there are kernels (workerd/ops/matrix-experts.h). ABI_MIN_WIDE_ROWS at least.
 */
uint32_t op_group_choose_wide(uint32_t n_rows, uint32_t n_expert, uint32_t n_used);

/* As op_group_count_slots, of groups of wide_rows. */
uint32_t op_group_count_wide(
	uint32_t n_rows, uint32_t n_expert, uint32_t n_used, uint32_t wide_rows);

/* Records it. -EINVAL for numbers that do not fit. Engine thread. */
int must_check op_group_record(struct op_pool *pool, struct vk_command *c,
	const struct op_group_params *params, struct err *ret_err);

#endif
