/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/pipeline.h"

/*
 * All specializations of all kernels that one model asks for are some dozens, and those of tuned
 * products one for each of them and number of rows.
 */
enum { OP_POOL_MAX_PIPELINES = 1024 };

struct op_pool_entry {
	struct op_pool_kernel kernel;
	struct vk_pipeline *pipeline;
};

struct op_pool {
	struct vk_device *d;
	const struct vk_device_info *info;
	op_pool_watch_fn watch;
	void *watch_userdata;
	const struct tuning *tuning;
	uint32_t n;
	struct op_pool_entry entries[OP_POOL_MAX_PIPELINES];
};

int op_pool_new(struct vk_device *d, struct err *ret_err, struct op_pool **ret_pool)
{
	const struct vk_device_info *info = vk_device_get_info(d);

	/* shaders/dtype.glsl: eight lanes share a block. */
	if (info->subgroup_size < 8 || info->subgroup_size > 64)
		return err_set(ret_err, ENOTSUP,
			"device %s: subgroup size: expected 8 to 64, found %u", info->name,
			info->subgroup_size);
	struct op_pool *pool = calloc(1, sizeof(*pool));
	if (!pool)
		return err_set(ret_err, ENOMEM, "pipelines: no memory");
	pool->d = d;
	pool->info = info;
	*ret_pool = pool;
	return 0;
}

struct op_pool *op_pool_free(struct op_pool *pool)
{
	if (!pool)
		return NULL;
	for (uint32_t i = 0; i < pool->n; i++)
		vk_pipeline_free(pool->entries[i].pipeline);
	free(pool);
	return NULL;
}

uint32_t op_pool_get_subgroup_size(const struct op_pool *pool)
{
	return pool->info->subgroup_size;
}

const struct vk_device_info *op_pool_get_info(const struct op_pool *pool)
{
	return pool->info;
}

uint32_t op_pool_get_shared_bytes(const struct op_pool *pool)
{
	return pool->info->max_shared_bytes;
}

void op_pool_set_watch(struct op_pool *pool, op_pool_watch_fn fn, void *userdata)
{
	pool->watch = fn;
	pool->watch_userdata = userdata;
}

void op_pool_set_tuning(struct op_pool *pool, const struct tuning *tuning)
{
	pool->tuning = tuning;
}

const struct tuning *op_pool_get_tuning(const struct op_pool *pool)
{
	return pool->tuning;
}

bool op_pool_is_software(const struct op_pool *pool)
{
	return pool->info->is_software;
}

static bool is_same(const struct op_pool_kernel *a, const struct op_pool_kernel *b)
{
	return a->id == b->id && a->n_subgroups == b->n_subgroups && a->n_spec == b->n_spec &&
	       !memcmp(a->spec, b->spec, a->n_spec * sizeof(a->spec[0]));
}

static int find_or_make(struct op_pool *pool, const struct op_pool_kernel *kernel,
	struct err *ret_err, struct vk_pipeline **ret_pipeline)
{
	const struct kernels_row *row = kernels_get(kernel->id);
	struct vk_pipeline_params params = {
		.name = row->name,
		.spirv = row->spirv,
		.n_spirv_bytes = row->n_spirv_bytes,
		.n_push_bytes = row->n_push_bytes,
		.n_spec = ABI_SPEC_KERNEL + kernel->n_spec,
		.spec = {[ABI_SPEC_LOCAL_SIZE] = pool->info->subgroup_size * kernel->n_subgroups,
			[ABI_SPEC_SUBGROUP] = pool->info->subgroup_size},
	};
	struct vk_pipeline *pipeline = NULL;

	for (uint32_t i = 0; i < pool->n; i++) {
		if (is_same(&pool->entries[i].kernel, kernel)) {
			*ret_pipeline = pool->entries[i].pipeline;
			return 0;
		}
	}
	if (pool->n == OP_POOL_MAX_PIPELINES)
		return err_set(ret_err, ENOSPC, "kernel %s: expected at most %d pipelines",
			row->name, OP_POOL_MAX_PIPELINES);
	memcpy(params.spec + ABI_SPEC_KERNEL, kernel->spec,
		kernel->n_spec * sizeof(kernel->spec[0]));
	int r = vk_pipeline_new(pool->d, &params, ret_err, &pipeline);
	if (r)
		return r;
	pool->entries[pool->n++] = (struct op_pool_entry){.kernel = *kernel, .pipeline = pipeline};
	*ret_pipeline = pipeline;
	return 0;
}

int op_pool_dispatch(struct op_pool *pool, struct vk_command *c,
	const struct op_pool_kernel *kernel, const void *push, uint32_t n_subgroups_x, uint32_t n_y,
	struct err *ret_err)
{
	struct vk_pipeline *pipeline = NULL;

	int r = find_or_make(pool, kernel, ret_err, &pipeline);
	if (r)
		return r;
	uint32_t n_x = (n_subgroups_x + kernel->n_subgroups - 1) / kernel->n_subgroups;
	if (pool->watch)
		pool->watch(pool->watch_userdata, c, kernel->id, false);
	vk_command_dispatch(c, pipeline, push, kernels_get(kernel->id)->n_push_bytes, n_x, n_y, 1);
	if (pool->watch)
		pool->watch(pool->watch_userdata, c, kernel->id, true);
	return 0;
}
