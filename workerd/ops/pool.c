/* SPDX-License-Identifier: Apache-2.0 */
#include "workerd/ops/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/util/err.h"
#include "proto/util/log.h"
#include "shaders/abi.h"
#include "vk/command.h"
#include "vk/device.h"
#include "vk/pipeline.h"
#include "workerd/crew.h"
#include "workerd/ops/fragment.h"
#include "workerd/ops/matrix-order.h"

struct op_pool_entry {
	struct op_pool_kernel kernel;
	struct vk_pipeline *pipeline; /* NULL: not made yet, or it could not be */
};

struct op_pool {
	struct vk_device *d;
	const struct vk_device_info *info;
	op_pool_watch_fn watch;
	void *watch_userdata;
	const struct tuning *tuning;
	bool is_trial;
	bool is_gathering;
	uint32_t matrix_order;
	struct op_fragment fragment;
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
	/* What a driver refuses there is missed by kernels that have others in their place. */
	struct err refused = ERR_NULL;
	int r = op_matrix_order_find(d, &refused, &pool->matrix_order);
	if (r < 0)
		log_debug("order of matrices: %s", refused.text);
	if (r <= 0)
		r = op_fragment_find(d, pool, &refused, &pool->fragment);
	if (r < 0)
		log_debug("order of matrices: %s", refused.text);
	if (r > 0) {
		if (ret_err)
			*ret_err = refused;
		op_pool_free(pool);
		return r;
	}
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

uint32_t op_pool_count(const struct op_pool *pool)
{
	return pool->n;
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

uint32_t op_pool_get_matrix_order(const struct op_pool *pool)
{
	return pool->matrix_order;
}

const struct op_fragment *op_pool_get_fragment(const struct op_pool *pool)
{
	return &pool->fragment;
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

static int find_or_add(struct op_pool *pool, const struct op_pool_kernel *kernel,
	struct err *ret_err, struct op_pool_entry **ret_entry)
{
	uint32_t i = 0;

	while (i < pool->n && !is_same(&pool->entries[i].kernel, kernel))
		i++;
	if (i == OP_POOL_MAX_PIPELINES)
		return err_set(ret_err, ENOSPC, "kernel %s: expected at most %d pipelines",
			kernels_get(kernel->id)->name, OP_POOL_MAX_PIPELINES);
	if (i == pool->n)
		pool->entries[pool->n++] = (struct op_pool_entry){.kernel = *kernel};
	*ret_entry = &pool->entries[i];
	return 0;
}

/* Its pipeline, if there is none yet. Any thread; one an entry. */
static int make(struct op_pool *pool, struct op_pool_entry *entry, struct err *ret_err)
{
	const struct op_pool_kernel *kernel = &entry->kernel;
	const struct kernels_row *row = kernels_get(kernel->id);
	struct vk_pipeline_params params = {
		.name = row->name,
		.spirv = row->spirv,
		.n_spirv_bytes = row->n_spirv_bytes,
		.n_push_bytes = row->n_push_bytes,
		.n_spec = ABI_SPEC_KERNEL + kernel->n_spec,
		.spec = {[ABI_SPEC_LOCAL_SIZE] = pool->info->subgroup_size * kernel->n_subgroups,
			[ABI_SPEC_SUBGROUP] = pool->info->subgroup_size},
		.is_trial = pool->is_trial,
	};

	if (entry->pipeline)
		return 0;
	memcpy(params.spec + ABI_SPEC_KERNEL, kernel->spec,
		kernel->n_spec * sizeof(kernel->spec[0]));
	return vk_pipeline_new(pool->d, &params, ret_err, &entry->pipeline);
}

void op_pool_set_trial(struct op_pool *pool)
{
	pool->is_trial = true;
}

void op_pool_gather(struct op_pool *pool)
{
	pool->is_gathering = true;
}

/* What went wrong here is said by the dispatch that asks for it again. */
static int make_job(uint32_t i, void *userdata)
{
	struct op_pool *pool = userdata;
	struct err e = ERR_NULL;

	(void)make(pool, &pool->entries[i], &e);
	return 0;
}

void op_pool_make(struct op_pool *pool)
{
	uint32_t n_missing = 0;

	pool->is_gathering = false;
	for (uint32_t i = 0; i < pool->n; i++)
		n_missing += !pool->entries[i].pipeline;
	if (n_missing == 0)
		return;
	uint32_t n_cores = crew_count_cores(CREW_MAX_THREADS);
	crew_run(pool->n, n_missing < n_cores ? n_missing : n_cores, make_job, pool);
}

int op_pool_dispatch(struct op_pool *pool, struct vk_command *c,
	const struct op_pool_kernel *kernel, const void *push, uint32_t n_subgroups_x, uint32_t n_y,
	struct err *ret_err)
{
	struct op_pool_entry *entry = NULL;

	int r = find_or_add(pool, kernel, ret_err, &entry);
	if (r || pool->is_gathering)
		return r;
	r = make(pool, entry, ret_err);
	if (r)
		return r;
	uint32_t n_x = (n_subgroups_x + kernel->n_subgroups - 1) / kernel->n_subgroups;
	if (pool->watch)
		pool->watch(pool->watch_userdata, c, kernel->id, false);
	vk_command_dispatch(
		c, entry->pipeline, push, kernels_get(kernel->id)->n_push_bytes, n_x, n_y, 1);
	if (pool->watch)
		pool->watch(pool->watch_userdata, c, kernel->id, true);
	return 0;
}
