/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/mirror.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "workerd/lane.h"
#include "workerd/ops/pool.h"

enum {
	N_SUBGROUPS = 4,
	UNIT_BYTES = 16,
	LANE_UNITS = 4, /* that an invocation copies at once, see shaders/memory.comp */
};

struct mirror {
	struct mirror_params params;
	/* Of a lane and a bucket; of the table too. NULL: not recorded yet. */
	struct vk_command *commands[PLAN_LAYOUT_LANES][LANE_MAX_BUCKETS][2];
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

/* Of a lane [begin, end), rounded up to units. */
static int record_part(const struct mirror_params *p, struct vk_command *c, uint32_t lane,
	uint64_t begin, uint64_t end, struct err *ret_err)
{
	struct vk_slice from = p->lane_from, to = p->lane_to;

	from.offset += lane * p->lane_from.n_bytes + begin;
	to.offset += begin;
	from.n_bytes = to.n_bytes = (end - begin + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
	return record_copy(p, c, &to, &from, ret_err);
}

static int make_command(const struct mirror_params *p, uint32_t lane, uint32_t bucket,
	bool has_table, struct err *ret_err, struct vk_command **ret_command)
{
	uint64_t n_row_bytes = sizeof(struct abi_row) << bucket;
	struct vk_command *c = NULL;
	int r = vk_command_new(p->device, 0, ret_err, &c);

	if (r)
		return r;
	/* The last bucket may be for more rows than there is room for. */
	if (n_row_bytes > p->spans - p->rows)
		n_row_bytes = p->spans - p->rows;
	vk_command_begin(c);
	r = record_part(p, c, lane, 0, p->rows + n_row_bytes, ret_err);
	if (!r && 1u << bucket >= p->n_span_rows)
		r = record_part(p, c, lane, p->spans, p->lane_from.n_bytes, ret_err);
	if (!r && has_table)
		r = record_copy(p, c, &p->table_to, &p->table_from, ret_err);
	int ended = vk_command_end(c, ret_err);
	r = r ? r : ended;
	if (r)
		c = vk_command_free(c);
	*ret_command = c;
	return r;
}

int mirror_new(const struct mirror_params *params, struct err *ret_err, struct mirror **ret_mirror)
{
	struct mirror *m = calloc(1, sizeof(*m));

	if (!m)
		return err_set(ret_err, ENOMEM, "step: no memory");
	m->params = *params;
	*ret_mirror = m;
	return 0;
}

struct mirror *mirror_free(struct mirror *m)
{
	if (!m)
		return NULL;
	for (int lane = 0; lane < PLAN_LAYOUT_LANES; lane++)
		for (int bucket = 0; bucket < LANE_MAX_BUCKETS; bucket++)
			for (int i = 0; i < 2; i++)
				vk_command_free(m->commands[lane][bucket][i]);
	free(m);
	return NULL;
}

int mirror_get_command(struct mirror *m, uint32_t lane, uint32_t bucket, uint64_t table_version,
	struct err *ret_err, struct vk_command **ret_command)
{
	bool is_same = m->has_table && m->table_version == table_version;
	struct vk_command **command = &m->commands[lane][bucket][!is_same];

	if (!*command) {
		int r = make_command(&m->params, lane, bucket, !is_same, ret_err, command);
		if (r)
			return r;
	}
	m->has_table = true;
	m->table_version = table_version;
	*ret_command = *command;
	return 0;
}
