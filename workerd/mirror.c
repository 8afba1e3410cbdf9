/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/mirror.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "workerd/ops/pool.h"

enum {
	N_SUBGROUPS = 4,
	UNIT_BYTES = 16,
	LANE_UNITS = 4, /* that an invocation copies at once, see shaders/memory.comp */
};

struct mirror {
	struct vk_command *commands[2]; /* of the step; of the table too */
	uint64_t table_version;
	bool has_table;
};

/* A kernel, for the device's own copies cost more to begin; a software driver would compile it. */
static int record_copy(const struct mirror_params *p, struct vk_command *c,
	const struct vk_slice *to, const struct vk_slice *from, struct err *ret_err)
{
	const struct op_pool_kernel kernel = {
		.id = KERNELS_MEMORY_COPY, .n_subgroups = N_SUBGROUPS};
	const struct abi_memory push = {.src = vk_memory_slice_address(from),
		.dst = vk_memory_slice_address(to),
		.n = (uint32_t)(from->n_bytes / UNIT_BYTES)};
	const uint32_t n_lanes = LANE_UNITS * op_pool_get_subgroup_size(p->pool);

	if (!op_pool_is_software(p->pool))
		return op_pool_dispatch(
			p->pool, c, &kernel, &push, (push.n + n_lanes - 1) / n_lanes, 1, ret_err);
	vk_command_copy(c, to, from);
	return 0;
}

static int make_command(const struct mirror_params *p, bool has_table, struct err *ret_err,
	struct vk_command **ret_command)
{
	struct vk_command *c = NULL;
	int r = vk_command_new(p->device, 0, ret_err, &c);

	if (r)
		return r;
	vk_command_begin(c);
	r = record_copy(p, c, &p->step_to, &p->step_from, ret_err);
	if (!r && has_table)
		r = record_copy(p, c, &p->table_to, &p->table_from, ret_err);
	if (!r)
		r = vk_command_end(c, ret_err);
	if (r)
		c = vk_command_free(c);
	*ret_command = c;
	return r;
}

int mirror_new(const struct mirror_params *params, struct err *ret_err, struct mirror **ret_mirror)
{
	struct mirror *m = calloc(1, sizeof(*m));
	int r = m ? 0 : err_set(ret_err, ENOMEM, "step: no memory");

	for (int i = 0; !r && i < 2; i++)
		r = make_command(params, i == 1, ret_err, &m->commands[i]);
	if (r) {
		mirror_free(m);
		return r;
	}
	*ret_mirror = m;
	return 0;
}

struct mirror *mirror_free(struct mirror *m)
{
	if (!m)
		return NULL;
	for (int i = 0; i < 2; i++)
		vk_command_free(m->commands[i]);
	free(m);
	return NULL;
}

struct vk_command *mirror_get_command(struct mirror *m, uint64_t table_version)
{
	bool is_same = m->has_table && m->table_version == table_version;

	m->has_table = true;
	m->table_version = table_version;
	return m->commands[!is_same];
}
