/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/fragment.h"

#include <string.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "vk/memory.h"
#include "vk/submit.h"
#include "workerd/ops/pool.h"

enum { MAX_SUBGROUP = 64, MAX_DEPTH = 8, MIN_LANES = 4, MAX_LANES = 8 };
enum { N_WORDS = 2 * MAX_SUBGROUP * ABI_FRAGMENT_ELEMENTS };

/* One side: n_rows in all, whose numbers of k go where ret_k says, or have to be there. */
static bool fits_side(const uint32_t *words, uint32_t n_subgroup, uint32_t n_rows, uint32_t k,
	uint32_t n_lanes, uint32_t *ret_k)
{
	uint32_t n_step = n_subgroup / n_lanes, depth = k / n_lanes;
	uint32_t n = n_rows / n_step;

	for (uint32_t l = 0; l < n_subgroup; l++) {
		const uint32_t *has = &words[l * ABI_FRAGMENT_ELEMENTS];
		for (uint32_t e = 0; e < n * depth; e++) {
			uint32_t row = l / n_lanes + e / depth * n_step;
			uint32_t *at = &ret_k[l % n_lanes * depth + e % depth];
			if (has[e] == ABI_FRAGMENT_NONE || has[e] / k != row)
				return false;
			if (*at == ABI_FRAGMENT_NONE)
				*at = has[e] % k;
			else if (*at != has[e] % k)
				return false;
		}
		if (has[n * depth] != ABI_FRAGMENT_NONE)
			return false;
	}
	return true;
}

bool op_fragment_fits(const uint32_t *words, uint32_t n_subgroup,
	const struct vk_device_matrix *matrix, uint32_t n_lanes)
{
	uint32_t k[MAX_LANES * MAX_DEPTH];
	uint32_t n_step = n_subgroup / n_lanes, depth = matrix->k / n_lanes;

	if (n_lanes < MIN_LANES || n_lanes > MAX_LANES || n_subgroup % n_lanes ||
		matrix->k % n_lanes || depth == 0 || MAX_DEPTH % depth || matrix->m % n_step ||
		matrix->n % n_step || matrix->m / n_step * depth >= ABI_FRAGMENT_ELEMENTS ||
		matrix->n / n_step * depth >= ABI_FRAGMENT_ELEMENTS ||
		matrix->m * matrix->k > ABI_FRAGMENT_MAX_NUMBERS ||
		matrix->n * matrix->k > ABI_FRAGMENT_MAX_NUMBERS)
		return false;
	memset(k, 0xff, sizeof(k));
	return fits_side(words, n_subgroup, matrix->m, matrix->k, n_lanes, k) &&
	       fits_side(words + n_subgroup * ABI_FRAGMENT_ELEMENTS, n_subgroup, matrix->n,
		       matrix->k, n_lanes, k);
}

/* Runs the kernel; the words are in m then. */
static int ask(struct vk_device *d, struct op_pool *pool, const struct vk_device_matrix *matrix,
	struct vk_memory *m, struct err *ret_err)
{
	const struct op_pool_kernel kernel = {
		.id = KERNELS_FRAGMENT,
		.n_subgroups = 1,
		.n_spec = ABI_FRAGMENT_SPEC_K + 1 - ABI_SPEC_KERNEL,
		.spec = {[ABI_FRAGMENT_SPEC_M - ABI_SPEC_KERNEL] = matrix->m,
			[ABI_FRAGMENT_SPEC_N - ABI_SPEC_KERNEL] = matrix->n,
			[ABI_FRAGMENT_SPEC_K - ABI_SPEC_KERNEL] = matrix->k},
	};
	const struct abi_fragment push = {.y = vk_memory_get_address(m)};
	struct vk_command *c = NULL;
	uint64_t ticket = 0;

	int r = vk_command_new(d, 0, ret_err, &c);
	if (r)
		return r;
	vk_command_begin(c);
	r = op_pool_dispatch(pool, c, &kernel, &push, 1, 1, ret_err);
	vk_command_host_barrier(c);
	int ended = vk_command_end(c, ret_err);
	r = r ? r : ended;
	if (!r)
		r = vk_submit(d, &c, 1, ret_err, &ticket);
	if (!r)
		r = vk_submit_wait(d, ticket, UINT64_MAX);
	vk_command_free(c);
	return r;
}

int op_fragment_find(struct vk_device *d, struct op_pool *pool, struct err *ret_err,
	struct op_fragment *ret_fragment)
{
	const struct vk_device_info *info = vk_device_get_info(d);
	const struct vk_memory_params params = {.role = VK_MEMORY_IO,
		.n_bytes = N_WORDS * sizeof(uint32_t),
		.name = "lanes of matrices"};
	struct op_fragment found = {0};
	struct vk_memory *m = NULL;
	void *map = NULL;
	int r = 0;

	if (kernels_has(KERNELS_FRAGMENT) && info->n_matrices)
		r = vk_memory_new(d, &params, ret_err, &m);
	if (!r && m)
		r = vk_memory_map(m, ret_err, &map);
	for (uint32_t i = 0; !r && m && i < info->n_matrices && !found.n_lanes; i++) {
		const struct vk_device_matrix *matrix = &info->matrices[i];
		if (matrix->n != ABI_SKINNY_COLUMNS)
			continue;
		r = ask(d, pool, matrix, m, ret_err);
		for (uint32_t n = MIN_LANES; !r && n <= MAX_LANES; n *= 2)
			if (op_fragment_fits(map, info->subgroup_size, matrix, n))
				found = (struct op_fragment){.n_lanes = n, .matrix = *matrix};
	}
	vk_memory_free(m);
	if (!r)
		*ret_fragment = found;
	return r;
}
