/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/matrix-order.h"

#include <string.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "shaders/kernels.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "vk/pipeline.h"
#include "vk/submit.h"

enum {
	EDGE = 16,
	N_LANES = 32,
	N_NUMBERS = ABI_MATRIX_ORDER_NUMBERS,
	N_PAIRS = N_NUMBERS / 2,
	X_BYTES = EDGE * EDGE * 2,
	Y_BYTES = 2 * N_LANES * N_NUMBERS * 4,
};

/* A whole number below 1024 as f16. */
static uint16_t get_half(uint32_t v)
{
	uint32_t exponent = 0;

	if (v == 0)
		return 0;
	while (v >> (exponent + 1))
		exponent++;
	return (uint16_t)((exponent + 15) << 10 | (v << (10 - exponent) & 0x3ff));
}

/* Is pair `pair` of every lane what lanes are to have of this half of rows and half of k? */
static bool is_pair(
	const uint32_t (*numbers)[N_NUMBERS], uint32_t pair, uint32_t row_half, uint32_t k_half)
{
	for (uint32_t lane = 0; lane < N_LANES; lane++)
		for (uint32_t i = 0; i < 2; i++) {
			uint32_t row = lane / 4 + 8 * row_half, k = 2 * (lane % 4) + 8 * k_half + i;

			if (numbers[lane][2 * pair + i] != row * EDGE + k + 1)
				return false;
		}
	return true;
}

/* Of one operand; false where it has another order. */
static bool get_order(const uint32_t (*numbers)[N_NUMBERS], uint32_t *ret_order)
{
	uint32_t order = 0;

	for (uint32_t i = 0; i < N_PAIRS; i++) {
		uint32_t pair = 0;

		while (pair < N_PAIRS && !is_pair(numbers, pair, i / 2, i % 2))
			pair++;
		if (pair == N_PAIRS)
			return false;
		order |= pair << (2 * i);
	}
	*ret_order = order;
	return true;
}

static int run(
	struct vk_device *d, const struct vk_pipeline *p, struct vk_memory *io, struct err *ret_err)
{
	const struct vk_slice y = {.memory = io, .offset = X_BYTES, .n_bytes = Y_BYTES};
	const struct abi_matrix_order push = {
		.x = vk_memory_get_address(io), .y = vk_memory_get_address(io) + X_BYTES};
	struct vk_command *c = NULL;
	uint64_t ticket = 0;
	int r = vk_command_new(d, 0, ret_err, &c);

	if (r)
		return r;
	vk_command_begin(c);
	vk_command_fill(c, &y, 0);
	vk_command_barrier(c);
	vk_command_dispatch(c, p, &push, sizeof(push), 1, 1, 1);
	vk_command_host_barrier(c);
	r = vk_command_end(c, ret_err);
	if (!r)
		r = vk_submit(d, &c, 1, ret_err, &ticket);
	if (!r)
		r = vk_submit_wait(d, ticket, UINT64_MAX);
	vk_command_free(c);
	return r;
}

static int try_order(
	struct vk_device *d, const struct vk_pipeline *p, struct err *ret_err, uint32_t *ret_order)
{
	const struct vk_memory_params params = {
		.role = VK_MEMORY_IO, .n_bytes = X_BYTES + Y_BYTES, .name = "order of matrices"};
	uint32_t numbers[2][N_LANES][N_NUMBERS], x = 0, w = 0;
	uint16_t places[EDGE * EDGE];
	struct vk_memory *io = NULL;
	void *map = NULL;
	int r = vk_memory_new(d, &params, ret_err, &io);

	if (!r)
		r = vk_memory_map(io, ret_err, &map);
	if (!r) {
		for (uint32_t i = 0; i < EDGE * EDGE; i++)
			places[i] = get_half(i);
		memcpy(map, places, sizeof(places));
		r = run(d, p, io, ret_err);
	}
	if (!r) {
		memcpy(numbers, (uint8_t *)map + X_BYTES, sizeof(numbers));
		*ret_order =
			get_order(numbers[0], &x) && get_order(numbers[1], &w) ? x | w << 8 : 0;
	}
	vk_memory_free(io);
	return r;
}

int op_matrix_order_find(struct vk_device *d, struct err *ret_err, uint32_t *ret_order)
{
	const struct vk_device_info *info = vk_device_get_info(d);
	const struct kernels_row *row = kernels_get(KERNELS_MATRIX_ORDER);
	const struct vk_pipeline_params params = {.name = row->name,
		.spirv = row->spirv,
		.n_spirv_bytes = row->n_spirv_bytes,
		.n_push_bytes = row->n_push_bytes,
		.n_spec = ABI_SPEC_KERNEL,
		.spec = {[ABI_SPEC_LOCAL_SIZE] = N_LANES, [ABI_SPEC_SUBGROUP] = N_LANES}};
	struct vk_pipeline *p = NULL;

	*ret_order = 0;
	if (!kernels_has(KERNELS_MATRIX_ORDER) || info->subgroup_size != N_LANES ||
		info->n_matrices == 0 || info->matrices[0].m != EDGE ||
		info->matrices[0].n != EDGE || info->matrices[0].k != EDGE)
		return 0;
	int r = vk_pipeline_new(d, &params, ret_err, &p);
	if (!r)
		r = try_order(d, p, ret_err, ret_order);
	vk_pipeline_free(p);
	if (r)
		err_prefix(ret_err, "order of matrices");
	return r;
}
