/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/load.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/dtype.h"
#include "proto/util/err.h"
#include "vk/device.h"
#include "vk/memory.h"
#include "weightd/export.h"
#include "weightd/gguf.h"
#include "weightd/manifest-writer.h"
#include "weightd/placement.h"
#include "weightd/validate.h"

struct load {
	const struct load_params *params;
	struct stat before;
	struct gguf *gguf;
	struct validate_model model;
	struct placement *placement;
	struct export *export;
};

static void load_fini(struct load *l)
{
	export_free(l->export);
	placement_free(l->placement);
	gguf_free(l->gguf);
}

uint32_t load_find_heap(const struct vk_device *d)
{
	const struct vk_device_info *info = vk_device_get_info(d);
	uint32_t best = 0;
	uint64_t n_bytes = 0;

	for (uint32_t i = 0; i < info->n_heaps; i++) {
		if (!info->heaps[i].device_local || info->heaps[i].n_bytes <= n_bytes)
			continue;
		best = i;
		n_bytes = info->heaps[i].n_bytes;
	}
	return best;
}

static int load_place(struct load *l, struct err *ret_err)
{
	const struct load_params *params = l->params;
	const struct vk_device_info *info = vk_device_get_info(params->device);
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	uint32_t heap = load_find_heap(params->device);
	struct placement_limits limits = {
		.device = info->name, .max_alloc_bytes = info->max_alloc_bytes};

	if (params->alloc_bytes && params->alloc_bytes < limits.max_alloc_bytes)
		limits.max_alloc_bytes = params->alloc_bytes;
	vk_device_query_heaps(params->device, heaps);
	/* Without VK_EXT_memory_budget nobody knows what others use: the heap less our account. */
	uint64_t budget = info->has_memory_budget ? heaps[heap].budget_bytes : heaps[heap].n_bytes;
	uint64_t used = info->has_memory_budget ? heaps[heap].usage_bytes : params->heap_used_bytes;
	limits.free_bytes = budget > used ? budget - used : 0;
	int rc = placement_new(l->gguf, &limits, ret_err, &l->placement);
	if (rc < 0)
		return rc;
	rc = export_new(l->placement->n_allocs, &l->export);
	if (rc < 0)
		return err_set(ret_err, -rc, "weights: out of memory");
	return 0;
}

static int load_allocate(struct load *l, struct err *ret_err)
{
	const struct placement *p = l->placement;
	int rc = 0;

	for (uint32_t i = 0; i < p->n_allocs; i++) {
		char name[64];
		snprintf(name, sizeof(name), "weights of generation %llu, allocation %u",
			(unsigned long long)l->params->generation, i);
		const struct vk_memory_params params = {.role = VK_MEMORY_WEIGHTS,
			.n_bytes = p->allocs[i].n_bytes,
			.is_exportable = true,
			.name = name};
		rc = vk_memory_new(
			l->params->device, &params, ret_err, &l->export->allocs[i].memory);
		if (rc == VK_DEVICE_LOST)
			return LOAD_DEVICE_LOST;
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int load_fill(struct load *l, struct err *ret_err, int *ret_refusal)
{
	const struct load_params *params = l->params;
	_cleanup_(cleanup_free)
	struct vk_memory **memories = calloc(l->export->n_allocs, sizeof(struct vk_memory *));

	if (!memories)
		return err_set(ret_err, ENOMEM, "weights: out of memory");
	for (uint32_t i = 0; i < l->export->n_allocs; i++)
		memories[i] = l->export->allocs[i].memory;
	const struct fill_params fill = {.device = params->device,
		.fd = params->fd,
		.gguf = l->gguf,
		.placement = l->placement,
		.memories = memories,
		.use_pread = params->use_pread,
		.progress = params->progress,
		.userdata = params->userdata};
	int rc = fill_run(&fill, ret_err, ret_refusal);
	return rc == FILL_DEVICE_LOST ? LOAD_DEVICE_LOST : rc;
}

/* A file cannot be sealed: what was read is one state of it only if none of this moved. */
static int load_check_unchanged(const struct load *l, struct err *ret_err)
{
	const struct stat *a = &l->before;
	struct stat b;

	if (fstat(l->params->fd, &b) < 0)
		return err_set(ret_err, errno, "file: fstat: %s", strerror(errno));
	if (a->st_size != b.st_size)
		return err_set(ret_err, ESTALE,
			"file: it changed while it was read: expected %lld bytes, found %lld",
			(long long)a->st_size, (long long)b.st_size);
	if (a->st_mtim.tv_sec != b.st_mtim.tv_sec || a->st_mtim.tv_nsec != b.st_mtim.tv_nsec)
		return err_set(ret_err, ESTALE,
			"file: it changed while it was read: somebody wrote to it");
	return 0;
}

static void load_describe(struct load *l)
{
	struct export *e = l->export;
	struct gguf_string architecture = l->model.architecture;
	uint64_t n_bytes[256] = {0}; /* by dtype id */
	uint64_t most = 0;

	if (architecture.n_bytes >= sizeof(e->architecture))
		architecture.n_bytes = sizeof(e->architecture) - 1;
	memcpy(e->architecture, architecture.data, architecture.n_bytes);
	e->n_parameters = l->model.hparams.n_parameters;
	e->n_tensors = l->placement->n_tensors;
	for (uint64_t i = 0; i < l->gguf->n_tensors; i++) {
		const struct gguf_tensor *t = &l->gguf->tensors[i];
		uint64_t *sum = &n_bytes[t->dtype->id % ARRAY_SIZE(n_bytes)];
		*sum += t->n_bytes;
		if (*sum <= most)
			continue;
		most = *sum;
		snprintf(e->format, sizeof(e->format), "%s", t->dtype->name);
	}
}

static int load_write_manifest(struct load *l, struct err *ret_err)
{
	static const uint8_t no_hash[32];
	const struct manifest_writer_placement placement = {.n_allocs = l->placement->n_allocs,
		.allocs = l->placement->allocs,
		.tensor_alloc = l->placement->tensor_alloc,
		.tensor_offset = l->placement->tensor_offset};

	return manifest_writer_write(l->gguf, &l->model, &placement, l->params->generation, no_hash,
		ret_err, &l->export->manifest_fd, &l->export->manifest_bytes);
}

int load_run(const struct load_params *params, struct err *ret_err, struct export **ret_export,
	int *ret_refusal)
{
	_cleanup_(load_fini)
	struct load l = {.params = params};
	int rc;

	if (fstat(params->fd, &l.before) < 0)
		return err_set(ret_err, errno, "file: fstat: %s", strerror(errno));
	rc = gguf_read(params->fd, ret_err, &l.gguf);
	if (rc == 0)
		rc = validate_model(l.gguf, ret_err, &l.model);
	if (rc == 0)
		rc = load_place(&l, ret_err);
	if (rc == 0) /* judges the tokenizer, so it comes before the expensive part */
		rc = load_write_manifest(&l, ret_err);
	if (rc == 0)
		rc = load_allocate(&l, ret_err);
	if (rc == 0)
		rc = load_fill(&l, ret_err, ret_refusal);
	if (rc == 0)
		rc = load_check_unchanged(&l, ret_err);
	if (rc == 0)
		rc = export_share(l.export, ret_err);
	if (rc)
		return rc;
	load_describe(&l);
	*ret_export = TAKE_PTR(l.export);
	return 0;
}
