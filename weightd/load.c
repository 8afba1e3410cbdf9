/* SPDX-License-Identifier: Apache-2.0 */
#include "weightd/load.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/dtype.h"
#include "proto/util/clock.h"
#include "proto/util/err.h"
#include "proto/util/log.h"
#include "vk/device.h"
#include "weightd/allocator.h"
#include "weightd/export.h"
#include "weightd/gguf.h"
#include "weightd/heat.h"
#include "weightd/host-memory.h"
#include "weightd/load-sums.h"
#include "weightd/manifest-writer.h"
#include "weightd/placement.h"
#include "weightd/policy.h"
#include "weightd/source.h"
#include "weightd/validate.h"

enum {
	/* What every device allocates (maxMemoryAllocationSize of the Vulkan specification). */
	LOAD_ANY_ALLOC_BYTES = 1 << 30,
	/* The largest minImportedHostPointerAlignment that drivers have. */
	LOAD_ANY_PAGE_BYTES = 64 << 10,
	LOAD_MAX_TRIES = 4, /* placements, when allocations fail that should have worked */
};

/* Of a memfd that no device sees: any size. */
static const uint64_t LOAD_COOL_ALLOC_BYTES = UINT64_MAX >> 1;

struct load {
	const struct load_params *params;
	const struct gguf *gguf;
	struct gguf *own_gguf; /* NULL: gguf is the source's */
	struct validate_model model;
	struct placement *placement;
	struct export *export;
	uint64_t short_bytes; /* of LOAD_SHORT */
};

static void load_fini(struct load *l)
{
	export_free(l->export);
	placement_free(l->placement);
	gguf_free(l->own_gguf);
}

uint32_t load_find_heap(const struct vk_device *d)
{
	return load_find_largest_heap(vk_device_get_info(d));
}

uint32_t load_find_largest_heap(const struct vk_device_info *info)
{
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

static uint64_t load_cap(uint64_t n, uint64_t cap)
{
	return cap && cap < n ? cap : n;
}

/* What the device has and takes. */
static void load_set_device_limits(const struct load *l, struct placement_limits *limits)
{
	const struct load_params *params = l->params;
	const struct vk_device_info *info = vk_device_get_info(params->device);
	struct vk_device_heap heaps[VK_DEVICE_MAX_HEAPS];
	uint32_t heap = load_find_heap(params->device);

	vk_device_query_heaps(params->device, heaps);
	/* Without VK_EXT_memory_budget nobody knows what others use: the heap less our account. */
	uint64_t budget = info->has_memory_budget ? heaps[heap].budget_bytes : heaps[heap].n_bytes;
	uint64_t used = info->has_memory_budget ? heaps[heap].usage_bytes : params->heap_used_bytes;
	limits->free_bytes = budget > used ? budget - used : 0;
	/* The account has left the reserve out already, the placement will do so again. */
	if (params->room_bytes < UINT64_MAX - params->policy->reserve_bytes &&
		params->room_bytes + params->policy->reserve_bytes < limits->free_bytes)
		limits->free_bytes = params->room_bytes + params->policy->reserve_bytes;
	limits->used_bytes = params->heap_used_bytes;
	limits->device = info->name;
	limits->has_device = true;
	limits->max_alloc_bytes = info->max_alloc_bytes;
	limits->page_bytes = limits->host_page_bytes;
	if (info->import_align > limits->page_bytes)
		limits->page_bytes = info->import_align;
}

static struct placement_limits load_get_limits(const struct load *l)
{
	const struct load_params *params = l->params;
	const struct source *source = params->source;
	struct placement_limits limits = {
		.device = "any device",
		.max_alloc_bytes = LOAD_ANY_ALLOC_BYTES,
		.page_bytes = LOAD_ANY_PAGE_BYTES,
		.host_page_bytes = (uint64_t)sysconf(_SC_PAGESIZE),
		.host_free_bytes = host_memory_get_free(),
		.host_used_bytes = source_account_sum(params->account),
		.file_bytes = source_get_bytes(source),
		.can_export_host =
			params->device && (params->abilities.exports_host_fd ||
						  params->abilities.exports_host_dma_buf),
		.may_free_bytes = params->may_free_bytes,
	};

	if (params->device)
		load_set_device_limits(l, &limits);
	limits.max_alloc_bytes = load_cap(limits.max_alloc_bytes, params->alloc_bytes);
	limits.max_window_bytes = load_cap(limits.max_alloc_bytes, params->window_bytes);
	limits.can_import_memfd =
		params->abilities.imports_memfd && limits.page_bytes <= LOAD_ANY_PAGE_BYTES;
	/* Nobody imports it, and what it has there already costs nothing more. */
	if (params->goal == LOAD_COOL) {
		uint64_t n_bytes = source_get_staged_bytes(source);
		limits.max_alloc_bytes = limits.max_window_bytes = LOAD_COOL_ALLOC_BYTES;
		/* Nobody has it, so nobody imports its file's pages, and they go with the exports.
		 */
		limits.host_used_bytes -= n_bytes + source_get_pinned_bytes(source);
		if (limits.host_free_bytes < UINT64_MAX - n_bytes)
			limits.host_free_bytes += n_bytes;
	}
	limits.can_pin =
		params->goal != LOAD_COOL && source_get_shared_fd(source) >= 0 &&
		params->abilities
			.imports_file[source_is_in_memory(source)][source_is_writable(source)];
	return limits;
}

static int load_place(struct load *l, struct placement_limits *limits, struct err *ret_err)
{
	_cleanup_(cleanup_free)
	bool *is_staged = calloc(l->gguf->n_tensors + 1, 2 * sizeof(*is_staged));
	bool *is_pinned = is_staged ? is_staged + l->gguf->n_tensors : NULL;
	/* Rules say where workers find it; while it is cool, there are none. */
	static const struct policy no_rules;
	struct policy cool = no_rules;
	cool.host_budget = l->params->policy->host_budget;
	if (!is_staged)
		return err_set(ret_err, ENOMEM, "placement: out of memory");
	source_list_host(l->params->source, (uint32_t)l->gguf->n_tensors, is_staged, is_pinned);
	limits->is_staged = l->params->goal == LOAD_COOL ? NULL : is_staged;
	limits->is_pinned = l->params->goal == LOAD_COOL ? NULL : is_pinned;
	int rc = placement_new(l->gguf, limits,
		l->params->goal == LOAD_COOL ? &cool : l->params->policy, ret_err, &l->short_bytes,
		&l->placement);

	limits->is_staged = limits->is_pinned = NULL;
	if (rc == PLACEMENT_SHORT)
		return LOAD_SHORT;
	if (rc < 0)
		return rc;
	if (l->params->goal == LOAD_COOL && l->placement->n_unmet_bytes)
		return err_set(ret_err, ENOSPC, "host memory has no room for %llu of its bytes",
			(unsigned long long)l->placement->n_unmet_bytes);
	for (uint32_t i = 0; i < l->placement->n_allocs; i++)
		if (l->placement->homes[i].home == PLACEMENT_FILE &&
			source_get_shared_fd(l->params->source) < 0)
			return err_set(ret_err, EACCES,
				source_get_gguf(l->params->source)
					? "memfd: not all of it has room where a device reads"
					: "file: it was opened for writing and cannot be opened "
					  "for reading alone, which workers would need");
	rc = export_new(l->placement->n_allocs, l->params->source, &l->export);
	if (rc < 0)
		return err_set(ret_err, -rc, "weights: out of memory");
	return 0;
}

/* Of rules for other models there may be many; of one that is mistyped this is all there is. */
static void load_say_unused(const struct load *l)
{
	const struct policy *p = l->params->policy;

	for (uint32_t i = 0; i < p->n_rules; i++) {
		uint64_t k = 0;
		for (; k < l->gguf->n_tensors; k++) {
			const struct gguf_string *name = &l->gguf->tensors[k].name;
			char text[GGUF_MAX_NAME_BYTES + 1];
			snprintf(text, sizeof(text), "%.*s", (int)name->n_bytes, name->data);
			if (policy_names(p, i, text))
				break;
		}
		if (k == l->gguf->n_tensors)
			log_warn("generation %llu: --place %s: the model has no such tensor",
				(unsigned long long)l->params->generation, p->rules[i].pattern);
	}
}

static void load_forget_place(struct load *l)
{
	l->export = export_free(l->export);
	l->placement = placement_free(l->placement);
}

static int load_write_manifest(struct load *l, struct err *ret_err)
{
	const struct manifest_writer_placement placement = {.n_allocs = l->placement->n_allocs,
		.allocs = l->placement->allocs,
		.tensor_alloc = l->placement->tensor_alloc,
		.tensor_offset = l->placement->tensor_offset};

	return manifest_writer_write(l->gguf, &l->model, &placement, l->params->generation, ret_err,
		&l->export->manifest_fd, &l->export->manifest_bytes);
}

static bool load_has_memfd(const struct load *l)
{
	for (uint32_t i = 0; i < l->placement->n_allocs; i++)
		if (l->placement->homes[i].home == PLACEMENT_MEMFD)
			return true;
	return false;
}

/* What is staged goes to the device at once where it imports memfds, else with the fill. */
static int load_heat(const struct load *l, struct fill_params *fill, struct err *ret_err)
{
	const struct load_params *params = l->params;
	const struct vk_device_info *info =
		params->device ? vk_device_get_info(params->device) : NULL;
	_cleanup_(cleanup_free)
	struct vk_memory **memories = calloc(l->export->n_allocs, sizeof(struct vk_memory *));
	struct heat_params heat = {.device = params->device,
		.source = params->source,
		.placement = l->placement,
		.memories = memories,
		.memfd = fill->memfd,
		.page_bytes = (uint64_t)sysconf(_SC_PAGESIZE),
		.progress = params->progress,
		.userdata = params->userdata};

	fill->staged = FILL_STAGED_RING;
	if (!info || !params->abilities.imports_memfd || !*params->may_import ||
		info->import_align > LOAD_ANY_PAGE_BYTES)
		return 0;
	if (info->import_align > heat.page_bytes)
		heat.page_bytes = info->import_align;
	heat.max_window_bytes = load_cap(info->max_alloc_bytes, params->window_bytes);
	int rc = memories ? 0 : err_set(ret_err, ENOMEM, "weights: out of memory");
	for (uint32_t i = 0; i < l->placement->n_allocs && rc == 0; i++)
		if (l->placement->homes[i].home <= PLACEMENT_HOST_MEMORY)
			rc = allocator_wait(fill->allocator, i, ret_err, &memories[i]);
	if (rc)
		return rc == ALLOCATOR_DEVICE_LOST ? LOAD_DEVICE_LOST : rc;
	rc = heat_run(&heat, ret_err);
	if (rc == HEAT_REFUSED) {
		log_warn("device %s: its driver refuses to import a memfd: %s", info->name,
			ret_err->text);
		*params->may_import = false;
		return vk_device_is_poisoned(params->device) ? LOAD_DEVICE_LOST : 0;
	}
	if (rc == 0)
		fill->staged = FILL_STAGED_DONE;
	return rc == HEAT_DEVICE_LOST ? LOAD_DEVICE_LOST : rc;
}

/* The memory that is there, or is made meanwhile, is filled. */
static int load_fill(
	struct load *l, struct allocator *allocator, struct err *ret_err, int *ret_refusal)
{
	const struct load_params *params = l->params;
	struct fill_params fill = {.device = params->device,
		.ring = params->ring,
		.source = params->source,
		.gguf = l->gguf,
		.placement = l->placement,
		.allocator = allocator,
		.use_pread = params->use_pread,
		.progress = params->progress,
		.userdata = params->userdata};
	bool is_heating = params->goal == LOAD_HEAT && source_get_memfd(params->source) >= 0;
	bool is_staging = is_heating || load_has_memfd(l);
	int rc = 0;

	if (is_staging)
		rc = source_begin_staging(
			params->source, l->placement->memfd_bytes, ret_err, &fill.memfd);
	if (rc < 0)
		return rc;
	if (is_heating)
		rc = load_heat(l, &fill, ret_err);
	if (rc == 0)
		rc = fill_run(&fill, ret_err, ret_refusal);
	if (is_staging)
		source_end_staging(params->source);
	return rc == FILL_DEVICE_LOST ? LOAD_DEVICE_LOST : rc;
}

/* ret_summary: what the memory came to; its failure is the load's. */
static int load_allocate_and_fill(struct load *l, struct err *ret_err, int *ret_refusal,
	struct allocator_summary *ret_summary)
{
	const struct allocator_params params = {.device = l->params->device,
		.placement = l->placement,
		.export = l->export,
		.host_handle = l->params->abilities.exports_host_dma_buf ? VK_HANDLE_DMA_BUF
									 : VK_HANDLE_OPAQUE_FD,
		.generation = l->params->generation};
	struct allocator *allocator = NULL;
	int rc = allocator_new(&params, ret_err, &allocator);

	if (rc < 0)
		return rc;
	rc = load_fill(l, allocator, ret_err, ret_refusal);
	allocator_stop(allocator, ret_err, ret_summary);
	allocator_free(allocator);
	if (ret_summary->code)
		rc = ret_summary->code;
	return rc == ALLOCATOR_DEVICE_LOST ? LOAD_DEVICE_LOST : rc;
}

/* Budgets are estimates, and others allocate too: what then fails is placed anew in less. */
static int load_place_and_fill(struct load *l, struct err *ret_err, int *ret_refusal)
{
	struct placement_limits limits = load_get_limits(l);
	int rc = 0;

	for (int i = 0; i < LOAD_MAX_TRIES; i++) {
		struct allocator_summary made = {0};
		load_forget_place(l);
		rc = load_place(l, &limits, ret_err);
		if (rc == 0) /* judges the tokenizer, so it comes before the expensive part */
			rc = load_write_manifest(l, ret_err);
		if (rc)
			return rc;
		rc = load_allocate_and_fill(l, ret_err, ret_refusal, &made);
		if (rc == 0)
			log_debug("generation %llu: %llu bytes of the device were there after "
				  "%.1f ms",
				(unsigned long long)l->params->generation,
				(unsigned long long)made.device_bytes, (double)made.busy_ns / 1e6);
		if (made.code != -ENOMEM)
			return rc;
		log_debug("generation %llu: after %llu bytes: %s",
			(unsigned long long)l->params->generation,
			(unsigned long long)made.device_bytes, ret_err->text);
		/* The kernel has pages of the file all the same. */
		if (made.is_host)
			limits.host_free_bytes =
				made.host_bytes +
				l->placement->n_placed_bytes[MANIFEST_PLACEMENT_PINNED];
		else
			limits.free_bytes = made.device_bytes;
	}
	return rc;
}

/* What is there now is what all later sums are compared with. */
static int load_sum(struct load *l, struct err *ret_err)
{
	const struct load_sums_params params = {.device = l->params->device,
		.key = l->params->key,
		.checksum = l->params->checksum,
		.source = l->params->source,
		.export = l->export};
	int rc = load_sums_take(&params, l->gguf, ret_err);

	return rc == LOAD_SUMS_DEVICE_LOST ? LOAD_DEVICE_LOST : rc;
}

/* To the host's account, whose memfds say for themselves what they take. */
static int load_charge(struct load *l, struct err *ret_err)
{
	const struct placement *p = l->placement;
	struct export *e = l->export;

	for (uint32_t i = 0; i < p->n_allocs; i++)
		if (p->homes[i].home == PLACEMENT_HOST_MEMORY)
			e->host_bytes += p->homes[i].n_bytes;
	int rc = source_charge(l->params->source, p->n_tensors, e->host_bytes);
	if (rc < 0)
		return err_set(ret_err, -rc, "weights: out of memory");
	e->is_charged = true;
	for (uint32_t i = 0; i < p->n_tensors; i++)
		if (p->allocs[p->tensor_alloc[i]].placement == MANIFEST_PLACEMENT_PINNED)
			source_charge_tensor(l->params->source, i, l->gguf->tensors[i].n_bytes);
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
	memcpy(e->n_placed_bytes, l->placement->n_placed_bytes, sizeof(e->n_placed_bytes));
	e->n_unmet_bytes = l->placement->n_unmet_bytes;
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

static int load_read(struct load *l, struct err *ret_err)
{
	const struct source *source = l->params->source;
	int rc = 0;

	l->gguf = source_get_gguf(source);
	if (!l->gguf) {
		rc = gguf_read(source_get_fd(source), ret_err, &l->own_gguf);
		l->gguf = l->own_gguf;
	}
	return rc == 0 ? validate_model(l->gguf, ret_err, &l->model) : rc;
}

int load_run(const struct load_params *params, struct err *ret_err, struct export **ret_export,
	int *ret_refusal, uint64_t *ret_short_bytes)
{
	_cleanup_(load_fini)
	struct load l = {.params = params};
	uint64_t start_ns = clock_now_ns(), read_ns;
	int rc;

	if (source_get_fd(params->source) < 0)
		return err_set(ret_err, EBADF,
			"file: weightd was started anew and does not have it any more");
	/* It was read before: another file now is a change, whatever is wrong with it. */
	rc = params->goal == LOAD_NEW ? 0 : source_check(params->source, ret_err);
	if (rc == 0)
		rc = load_read(&l, ret_err);
	read_ns = clock_now_ns();
	if (rc == 0 && params->goal == LOAD_NEW && params->device)
		load_say_unused(&l);
	if (rc == 0)
		rc = load_place_and_fill(&l, ret_err, ret_refusal);
	if (rc == LOAD_SHORT)
		*ret_short_bytes = l.short_bytes;
	/* A file cannot be sealed: what was read is one state of it only if it did not move. */
	if (rc == 0)
		rc = source_check(params->source, ret_err);
	if (rc == 0 && params->goal == LOAD_COOL)
		source_keep_gguf(params->source, &l.own_gguf);
	if (rc || params->goal == LOAD_COOL)
		return rc;
	rc = export_share(l.export, l.placement, ret_err);
	if (rc == 0)
		rc = load_sum(&l, ret_err);
	if (rc == 0)
		rc = load_charge(&l, ret_err);
	if (rc)
		return rc;
	if (params->goal == LOAD_HEAT && !load_has_memfd(&l))
		source_drop_staged(params->source);
	load_describe(&l);
	log_debug("generation %llu: %.1f ms to read the metadata, %.1f ms to place, allocate, fill "
		  "and "
		  "share",
		(unsigned long long)params->generation, (double)(read_ns - start_ns) / 1e6,
		(double)(clock_now_ns() - read_ns) / 1e6);
	if (load_has_memfd(&l))
		source_keep_gguf(params->source, &l.own_gguf);
	*ret_export = TAKE_PTR(l.export);
	return 0;
}
